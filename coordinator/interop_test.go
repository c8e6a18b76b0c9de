package coordinator_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// mutexOn is a concurrency.Mutex in the directory where a coordinator has a lock.
func mutexOn(t *testing.T, etcd *embedded.Cluster, lock string) *concurrency.Mutex {
	t.Helper()
	s, err := concurrency.NewSession(etcd.Client(), concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the mutex's session: %v", err)
		}
	})
	d := directory(lock)
	return concurrency.NewMutex(s, d[:len(d)-1])
}

func TestMutexKeepsCoordinatorOut(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	m := mutexOn(t, etcd, "orders")
	c := newCoordinator(t, etcd.Client(), steady)
	if err := m.Lock(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	var busy *coordinator.BusyError
	if _, err := c.TryAcquire(within(t, patience), "orders"); !errors.As(err, &busy) || busy.Holder.Key != m.Key() || !busy.Holder.Token.IsZero() {
		t.Fatalf("try while a mutex holds: %v", err)
	}
	waiter := ask(t, c, "orders")
	queued(t, etcd.Client(), "orders", 2)
	waiter.waits(t)
	if err := m.Unlock(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	release(t, waiter.granted(t))
}

func TestCoordinatorKeepsMutexOut(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	m := mutexOn(t, etcd, "orders")
	c := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, c, "orders")
	if err := m.TryLock(within(t, patience)); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("mutex tries while a grant holds: %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m.Lock(within(t, patience)) }()
	queued(t, etcd.Client(), "orders", 2)
	select {
	case err := <-locked:
		t.Fatalf("mutex locked while a grant holds: %v", err)
	default:
	}
	// Somebody of the same process waits too: the mutex came first, though the
	// lock would be handed on in one transaction.
	waiter := ask(t, c, "orders")
	release(t, g)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	waiter.waits(t)
	if err := m.Unlock(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	next := waiter.granted(t)
	rises(t, g, next)
	release(t, next)
}

// Both kinds at once, many hand-offs in both directions. The mutexes use the
// same keys again and again.
func TestMutexAndCoordinatorShareALock(t *testing.T) {
	// Not parallel: it would take the processor from tests about time.
	const each, turns = 3, 15
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	var (
		all             sync.WaitGroup
		holders         atomic.Int32
		last            atomic.Int64
		fromMutex       atomic.Bool
		toCoord, toMutx atomic.Int32
	)
	enter := func(mutex bool) {
		if n := holders.Add(1); n != 1 {
			t.Errorf("%d holders at once", n)
		}
		if before := fromMutex.Swap(mutex); before != mutex {
			if mutex {
				toMutx.Add(1)
			} else {
				toCoord.Add(1)
			}
		}
		holders.Add(-1)
	}
	for range each {
		m := mutexOn(t, etcd, "orders")
		all.Go(func() {
			for range turns {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				enter(true)
				if err := m.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for range turns {
				err := c.Do(t.Context(), "orders", func(_ context.Context, g *coordinator.Grant) error {
					enter(false)
					if token := g.Token().Int64(); last.Swap(token) >= token {
						t.Errorf("token %s after a larger one", g.Token())
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("hand-offs from mutex to coordinator %d, back %d", toCoord.Load(), toMutx.Load())
	if toCoord.Load() == 0 || toMutx.Load() == 0 {
		t.Error("the lock did not go both ways")
	}
}
