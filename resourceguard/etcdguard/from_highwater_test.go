package etcdguard_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
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

// TestMarksBeforeTheFirstCoordinator: a prefix with marks and without an epoch record
// looks like one whose record was lost.
func TestMarksBeforeTheFirstCoordinator(t *testing.T) {
	for _, pinged := range []bool{false, true} {
		s := startJobsHighWater(t)
		c, err := coordinator.New(s.truth, &coordinator.Options{Directory: jobs})
		must(t, err)
		t.Cleanup(func() { must(t, c.Close(soonAfter(t))) })
		if pinged {
			must(t, c.Ping(soon(t)))
		}
		m := concurrency.NewMutex(session(t, s.client), job)
		must(t, m.Lock(soon(t)))
		k, err := etcdguard.FromMutex("report", m)
		must(t, err)
		must(t, s.guard.Advance(t.Context(), "report", k.Token()))
		must(t, m.Unlock(soon(t)))

		g, err := c.Acquire(soon(t), "report")
		switch {
		case !pinged:
			if !errors.Is(err, coordinator.ErrRestored) {
				t.Errorf("the first coordinator beside marks: %v, want %v", err, coordinator.ErrRestored)
			}
		case err != nil:
			t.Errorf("a coordinator that was there before the marks: %v", err)
		default:
			must(t, s.guard.Advance(t.Context(), "report", g.Token()))
		}
	}
}
