package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func startJobsHighWater(t *testing.T) *setup {
	t.Helper()
	return start(t, &etcdguard.Options{Mode: etcdguard.HighWater, Directory: jobs})
}

// TestConcurrencyLockRaisesTheMark: a tenure goes on until a newer one has come to the
// guard, also if the newer one is of the same session and has the same key.
func TestConcurrencyLockRaisesTheMark(t *testing.T) {
	for name, made := range both {
		t.Run(name, func(t *testing.T) {
			s := startJobsHighWater(t)
			lock := made(session(t, s.client))
			must(t, lock.acquire(soon(t)))
			first := fenceOf(t, lock)
			must(t, s.guard.Advance(t.Context(), "report", first.Token()))
			put := func(k etcdguard.LockKey, value string) error {
				_, err := fenced(t, s.guard, k).Put(t.Context(), "data", value)
				return err
			}
			must(t, put(first, "7"))
			must(t, lock.giveUp(soon(t)))
			must(t, put(first, "8"))

			must(t, lock.acquire(soon(t)))
			second := fenceOf(t, lock)
			if second.Key() != first.Key() {
				t.Fatalf("the key was %q and is %q: nothing was tried", first.Key(), second.Key())
			}
			must(t, s.guard.Advance(t.Context(), "report", second.Token()))
			wantStale(t, put(first, "5"), resourceguard.StaleError{Resource: "report", Presented: first.Token(), Accepted: second.Token()})
			s.wantValue(t, "data", "8")
			must(t, put(second, "9"))
			s.wantValue(t, "data", "9")
			m, ok, err := s.guard.Mark(t.Context(), "report")
			if err != nil || !ok || m.Token != second.Token() {
				t.Errorf("the mark is %v, %v, %v, want %s", m, ok, err, second.Token())
			}
		})
	}
}

// TestConcurrencyWaiterRaisesNothing: the one waiter that FromElection cannot tell
// from the leader.
func TestConcurrencyWaiterRaisesNothing(t *testing.T) {
	s := startJobsHighWater(t)
	leader := concurrency.NewElection(session(t, s.truth), job)
	must(t, leader.Campaign(soon(t), "leads"))
	candidate := session(t, s.client)
	key := jobs("report") + "candidate"
	put, err := s.truth.Put(t.Context(), key, "waits", clientv3.WithLease(candidate.Lease()))
	must(t, err)
	e := concurrency.ResumeElection(candidate, job+"/", key, put.Header.Revision)
	must(t, e.Proclaim(soon(t), "believes"))
	k, err := etcdguard.FromElection("report", e)
	must(t, err)
	if _, err := fenced(t, s.guard, k).Put(t.Context(), "data", "5"); !errors.Is(err, resourceguard.ErrStale) {
		t.Errorf("Put of a candidate: %v", err)
	}
	if m, ok, err := s.guard.Mark(t.Context(), "report"); err != nil || ok {
		t.Errorf("the mark is %v, %v, %v, want none", m, ok, err)
	}
	_, exists := s.value(t, "data")
	if exists {
		t.Error("the candidate has written")
	}
}

// TestMarksBeforeTheFirstCoordinator: to a coordinator, marks without an epoch record
// are the remains of a restore. So there is none before the record, whoever asks, and
// a lost record does not stop the work under a mark that is there.
func TestMarksBeforeTheFirstCoordinator(t *testing.T) {
	s := startJobsHighWater(t)
	epoch := etcdguard.DefaultPrefix + "epoch"
	remove := func() {
		_, err := s.truth.Delete(t.Context(), epoch)
		must(t, err)
	}
	remove()
	m := concurrency.NewMutex(session(t, s.client), job)
	must(t, m.Lock(soon(t)))
	k, err := etcdguard.FromMutex("report", m)
	must(t, err)
	kv := fenced(t, s.guard, k)
	do := func(ctx context.Context) error {
		_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "report", Token: k.Token()}, clientv3.OpPut("data", "8"))
		return err
	}
	put := func(ctx context.Context) error {
		_, err := kv.Put(ctx, "data", "8")
		return err
	}
	for name, call := range map[string]func(context.Context) error{
		"Advance": func(ctx context.Context) error { return s.guard.Advance(ctx, "report", k.Token()) },
		"Put":     put,
		"Do":      do,
		"Get":     func(ctx context.Context) error { _, err := kv.Get(ctx, "data"); return err },
		"SetFloor": func(ctx context.Context) error {
			return s.guard.SetFloor(ctx, revisionfence.Mark{Resource: "report", Token: k.Token()}, "test")
		},
	} {
		err := call(soon(t))
		wantRefused(t, name, err, etcdguard.ErrNoEpoch)
		if !strings.Contains(err.Error(), epoch) || !strings.Contains(err.Error(), "Ping") {
			t.Errorf("%s: %v, which does not name what is missing and the way out", name, err)
		}
	}
	resp, err := s.truth.Get(t.Context(), etcdguard.DefaultPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != 0 {
		t.Fatalf("under the prefix are %v, %v, want nothing", resp, err)
	}

	c, err := coordinator.New(s.truth, &coordinator.Options{Directory: jobs})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close(soonAfter(t))) })
	must(t, c.Ping(soon(t)))
	must(t, put(soon(t)))
	remove()
	must(t, put(soon(t)))
	must(t, do(soon(t)))
}
