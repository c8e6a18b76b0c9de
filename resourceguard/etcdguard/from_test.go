package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// jobs is where the programs of these tests have their locks.
func jobs(lock string) string { return "/jobs/" + lock + "/" }

const job = "/jobs/report"

func startJobs(t *testing.T) *setup {
	t.Helper()
	return start(t, &etcdguard.Options{Directory: jobs})
}

func session(t *testing.T, client *clientv3.Client) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(client, concurrency.WithTTL(600))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Orphan)
	return s
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// both are the two ways in which the concurrency package keeps a lock, in one
// form. They have the same tests.
var both = map[string]func(*concurrency.Session) tenant{
	"Mutex": func(s *concurrency.Session) tenant {
		m := concurrency.NewMutex(s, job)
		return tenant{
			acquire: m.Lock, giveUp: m.Unlock, key: m.Key,
			fence: func(lock string) (etcdguard.LockKey, error) { return etcdguard.FromMutex(lock, m) },
		}
	},
	"Election": func(s *concurrency.Session) tenant {
		e := concurrency.NewElection(s, job)
		return tenant{
			acquire: func(ctx context.Context) error { return e.Campaign(ctx, "me") }, giveUp: e.Resign, key: e.Key,
			fence: func(lock string) (etcdguard.LockKey, error) { return etcdguard.FromElection(lock, e) },
		}
	},
}

type tenant struct {
	acquire, giveUp func(context.Context) error
	key             func() string
	fence           func(lock string) (etcdguard.LockKey, error)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fenceOf(t *testing.T, of tenant) etcdguard.LockKey {
	t.Helper()
	k, err := of.fence("report")
	must(t, err)
	return k
}

// holds checks that the fence lets reads and writes through, by the whole way
// that a new owner goes.
func (s *setup) holds(t *testing.T, k etcdguard.LockKey, value string) {
	t.Helper()
	if err := s.guard.Advance(t.Context(), "data", k.Token()); err != nil {
		t.Errorf("Advance of the owner: %v", err)
	}
	kv := fenced(t, s.guard, k)
	if _, err := kv.Get(t.Context(), "data"); err != nil {
		t.Errorf("Get of the owner: %v", err)
	}
	if _, err := kv.Put(t.Context(), "data", value); err != nil {
		t.Errorf("Put of the owner: %v", err)
	}
	s.wantValue(t, "data", value)
}

// refused checks that nothing passes under the fence, and who is said to be the
// owner instead.
func (s *setup) refused(t *testing.T, k etcdguard.LockKey, owner revisionfence.Token) {
	t.Helper()
	before, _ := s.value(t, "data")
	want := resourceguard.StaleError{Resource: "data", Presented: k.Token(), Accepted: owner}
	wantStale(t, s.guard.Advance(t.Context(), "data", k.Token()), want)
	kv := fenced(t, s.guard, k)
	for _, op := range every {
		wantResource := want
		err := op.do(t.Context(), kv)
		if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
			wantResource.Resource = stale.Resource // it differs with the operation
		}
		wantStale(t, err, wantResource)
	}
	s.wantValue(t, "data", before)
}

// TestConcurrencyLockFences goes through the life of a lock: held, given up, and
// held again by the same session, which uses the same key again.
func TestConcurrencyLockFences(t *testing.T) {
	for name, made := range both {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t)
			lock := made(session(t, s.client))
			must(t, lock.acquire(soon(t)))
			first := fenceOf(t, lock)
			if first.Key() != lock.key() || first.Token().Lock() != "report" || first.Token().Epoch() != 0 {
				t.Errorf("the fence is %s on %q, want one of lock report on %q", first.Token(), first.Key(), lock.key())
			}
			s.holds(t, first, "7")

			must(t, lock.giveUp(soon(t)))
			s.refused(t, first, revisionfence.Token{})

			must(t, lock.acquire(soon(t)))
			second := fenceOf(t, lock)
			if order, err := second.Token().Compare(first.Token()); err != nil || order <= 0 {
				t.Errorf("token %s comes after %s", second.Token(), first.Token())
			}
			if second.Key() != first.Key() {
				t.Fatalf("the key was %q and is %q: nothing was tried", first.Key(), second.Key())
			}
			s.refused(t, first, second.Token())
			s.holds(t, second, "8")
		})
	}
}

// TestConcurrencyTokenIsOfTheKey: after waiting, the header is newer than the key,
// and others have queued up in between.
func TestConcurrencyTokenIsOfTheKey(t *testing.T) {
	for name, made := range both {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t)
			holder := made(session(t, s.truth))
			must(t, holder.acquire(soon(t)))
			lock := made(session(t, s.client))
			waiting := s.wire.Hold("Range") // of the keys that are to go first
			acquired := make(chan error, 1)
			go func() { acquired <- lock.acquire(soon(t)) }()
			<-waiting.Arrived()
			for range 3 {
				s.put(t, "other", "writes come between")
			}
			must(t, holder.giveUp(soon(t)))
			waiting.Release()
			must(t, <-acquired)

			k := fenceOf(t, lock)
			got, err := s.truth.Get(t.Context(), lock.key())
			must(t, err)
			if created := got.Kvs[0].CreateRevision; k.Token().Revision() != created {
				t.Errorf("the token is %s, the key was created at revision %d", k.Token(), created)
			}
			s.holds(t, k, "7")
		})
	}
}

// TestConcurrencyLockThatExpired: the session ends and the holder does not know.
func TestConcurrencyLockThatExpired(t *testing.T) {
	for name, made := range both {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t)
			mine := session(t, s.client)
			lock := made(mine)
			must(t, lock.acquire(soon(t)))
			before := fenceOf(t, lock)
			s.holds(t, before, "7")
			s.etcd.Expire(t, mine)
			after := fenceOf(t, lock)
			if after != before {
				t.Errorf("the fence was %v and is %v", before, after)
			}
			s.refused(t, after, revisionfence.Token{})

			next := made(session(t, s.truth))
			must(t, next.acquire(soon(t)))
			k := fenceOf(t, next)
			s.holds(t, k, "8")
			s.refused(t, before, k.Token())
		})
	}
}

// TestNoFenceBeforeTheLock: the key of a waiter exists, and a fence of it would
// let the waiter through. The waiter is asked from inside of its own wait, which
// is the only moment at which it can be without a race: both when it has never
// held the lock and when it has.
func TestNoFenceBeforeTheLock(t *testing.T) {
	for name, made := range both {
		t.Run(name, func(t *testing.T) {
			s := startJobs(t)
			lock := made(session(t, s.client))
			notHeld := func(when string) {
				t.Helper()
				k, err := lock.fence("report")
				if !errors.Is(err, etcdguard.ErrNotHeld) || k != (etcdguard.LockKey{}) {
					t.Errorf("%s: %v, %v, want %v", when, k, err, etcdguard.ErrNotHeld)
				}
				if o := resourceguard.OutcomeOf(err); o != resourceguard.NotApplied {
					t.Errorf("%s: outcome %v", when, o)
				}
			}
			waits := func(when string) {
				t.Helper()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				asked := false
				hook := s.wire.OnUnary(func(ctx context.Context, call *wire.Call) error {
					if r, ok := call.Request.(*pb.RangeRequest); ok && !asked && strings.HasPrefix(string(r.Key), job) {
						asked = true
						notHeld(when)
						cancel()
					}
					return call.Send(ctx)
				})
				defer hook.Remove()
				if err := lock.acquire(ctx); !errors.Is(err, context.Canceled) || !asked {
					t.Fatalf("%s: the wait ended with %v, asked: %v", when, err, asked)
				}
				notHeld(when + ", and gave up")
			}
			notHeld("never locked")

			holder := made(session(t, s.truth))
			must(t, holder.acquire(soon(t)))
			waits("waits for the first time")
			must(t, holder.giveUp(soon(t)))

			must(t, lock.acquire(soon(t)))
			fenceOf(t, lock)
			must(t, lock.giveUp(soon(t)))
			notHeld("given up")

			must(t, holder.acquire(soon(t)))
			waits("waits after it has held")
		})
	}
}

// TestTryLockOfAHeldMutexGivesNoFence: it has put its key and deleted it.
func TestTryLockOfAHeldMutexGivesNoFence(t *testing.T) {
	s := startJobs(t)
	must(t, concurrency.NewMutex(session(t, s.truth), job).Lock(soon(t)))
	m := concurrency.NewMutex(session(t, s.client), job)
	if err := m.TryLock(soon(t)); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("TryLock: %v", err)
	}
	if k, err := etcdguard.FromMutex("report", m); !errors.Is(err, etcdguard.ErrNotHeld) {
		t.Errorf("FromMutex: %v, %v", k, err)
	}
}

// TestLeaderThatNeverWas: Campaign does not see that its session has ended while it
// waited, and says that it won.
func TestLeaderThatNeverWas(t *testing.T) {
	s := startJobs(t)
	leader := concurrency.NewElection(session(t, s.truth), job)
	must(t, leader.Campaign(soon(t), "leader"))
	mine := session(t, s.client)
	e := concurrency.NewElection(mine, job)
	waiting := s.wire.Hold("Range")
	won := make(chan error, 1)
	go func() { won <- e.Campaign(soon(t), "phantom") }()
	<-waiting.Arrived()
	s.etcd.Expire(t, mine)
	must(t, leader.Resign(soon(t)))
	waiting.Release()
	must(t, <-won)
	k, err := etcdguard.FromElection("report", e)
	must(t, err)
	s.refused(t, k, revisionfence.Token{})
}

// TestResumedElection: nothing tells a resumed leader from a resumed candidate but
// the barrier.
func TestResumedElection(t *testing.T) {
	s := startJobs(t)
	won := concurrency.NewElection(session(t, s.truth), job)
	must(t, won.Campaign(soon(t), "before the restart"))

	resumed := concurrency.ResumeElection(session(t, s.client), job+"/", won.Key(), won.Rev())
	if k, err := etcdguard.FromElection("report", resumed); !errors.Is(err, etcdguard.ErrNotHeld) {
		t.Errorf("before Proclaim: %v, %v", k, err)
	}
	must(t, resumed.Proclaim(soon(t), "after the restart"))
	leader, err := etcdguard.FromElection("report", resumed)
	must(t, err)
	s.holds(t, leader, "7")

	candidate := session(t, s.client)
	key := jobs("report") + "candidate"
	put, err := s.truth.Put(t.Context(), key, "waits", clientv3.WithLease(candidate.Lease()))
	must(t, err)
	e := concurrency.ResumeElection(candidate, job+"/", key, put.Header.Revision)
	must(t, e.Proclaim(soon(t), "believes"))
	k, err := etcdguard.FromElection("report", e)
	must(t, err)
	wantStale(t, s.guard.Advance(t.Context(), "data", k.Token()),
		resourceguard.StaleError{Resource: "data", Presented: k.Token(), Accepted: leader.Token()})
}

// TestEpochOfAConcurrencyLock: the epoch of a coordinator on the same prefix counts
// for everybody's tokens.
func TestEpochOfAConcurrencyLock(t *testing.T) {
	s := startJobs(t)
	s.put(t, etcdguard.DefaultPrefix+"epoch", `{"format":1,"epoch":3}`)
	m := concurrency.NewMutex(session(t, s.client), job)
	must(t, m.Lock(soon(t)))
	zero, err := etcdguard.FromMutex("report", m)
	must(t, err)
	three, err := zero.WithEpoch(3)
	must(t, err)
	if three.Token().Epoch() != 3 || three.Token().Revision() != zero.Token().Revision() || three.Key() != zero.Key() {
		t.Errorf("%s with epoch 3 is %s", zero.Token(), three.Token())
	}
	wantStale(t, s.guard.Advance(t.Context(), "data", zero.Token()),
		resourceguard.StaleError{Resource: "data", Presented: zero.Token(), Accepted: three.Token()})
	s.holds(t, three, "7")
	must(t, m.Unlock(soon(t)))
	s.refused(t, three, revisionfence.Token{})

	if _, err := zero.WithEpoch(revisionfence.MaxEpoch + 1); !errors.Is(err, revisionfence.ErrOutOfRange) {
		t.Errorf("an epoch that is too large: %v", err)
	}
	if _, err := (etcdguard.LockKey{}).WithEpoch(1); !errors.Is(err, resourceguard.ErrNoToken) {
		t.Errorf("an epoch for no tenure: %v", err)
	}
}

func TestFromNothing(t *testing.T) {
	s := startJobs(t)
	m := concurrency.NewMutex(session(t, s.client), job)
	must(t, m.Lock(soon(t)))
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"nil Mutex":     {second(etcdguard.FromMutex("report", nil)), resourceguard.ErrInvalid},
		"nil Election":  {second(etcdguard.FromElection("report", nil)), resourceguard.ErrInvalid},
		"zero Mutex":    {second(etcdguard.FromMutex("report", new(concurrency.Mutex))), etcdguard.ErrNotHeld},
		"zero Election": {second(etcdguard.FromElection("report", new(concurrency.Election))), etcdguard.ErrNotHeld},
		"no lock":       {second(etcdguard.FromMutex("", m)), revisionfence.ErrInvalidName},
		"zero LockKey":  {second(s.guard.KV(etcdguard.LockKey{})), resourceguard.ErrNoToken},
	} {
		if !errors.Is(test.err, test.want) || resourceguard.OutcomeOf(test.err) != resourceguard.NotApplied {
			t.Errorf("%s: %v with outcome %v, want %v", name, test.err, resourceguard.OutcomeOf(test.err), test.want)
		}
	}

	// Without the directory the guard does not know the keys.
	k, err := etcdguard.FromMutex("report", m)
	must(t, err)
	for name, opts := range map[string]*etcdguard.Options{
		"no directory":      nil,
		"another directory": {Directory: func(lock string) string { return "/job/" + lock + "/" }},
		"no slash":          {Directory: func(lock string) string { return "/jobs/" + lock }},
	} {
		if _, err := newGuard(t, s.client, opts).KV(k); !errors.Is(err, resourceguard.ErrInvalid) || !strings.Contains(err.Error(), "Options.Directory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// soonAfter is soon for what is done after the test.
func soonAfter(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
