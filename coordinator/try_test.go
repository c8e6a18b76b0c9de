package coordinator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// Somebody who tries after a release was done must not be told that the lock is
// held.
func TestTryAfterARelease(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	for i := range 200 {
		g, err := c.TryAcquire(within(t, patience), "orders")
		if err != nil {
			t.Fatalf("the lock is free since release %d, and trying says: %v", i, err)
		}
		release(t, g)
	}
}

// The same for one who has just been told that it was held.
func TestTryAfterABusyTry(t *testing.T) {
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	for i := range 100 {
		g := acquire(t, a, "orders")
		var busy *coordinator.BusyError
		if _, err := b.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Fatalf("try on a held lock: %v", err)
		}
		release(t, g)
		g, err := b.TryAcquire(within(t, patience), "orders")
		if err != nil {
			t.Fatalf("the lock is free since release %d, and trying says: %v", i, err)
		}
		release(t, g)
	}
}

// Somebody else was faster between the look and the acquire.
func TestTryThatComesSecondLeavesNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	request := w.Hold("Txn", of(enters))
	tried := make(chan error, 1)
	go func() {
		g, err := b.TryAcquire(t.Context(), "orders")
		tried <- errOf(g, err)
	}()
	held(t, request)
	g := acquire(t, a, "orders")
	request.Release()
	select {
	case err := <-tried:
		var busy *coordinator.BusyError
		if !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Errorf("%v, want that %s holds", err, g.Token())
		}
	case <-time.After(patience):
		t.Fatal("a try waits for the lock")
	}
	if keys := queue(t, client, "orders"); len(keys) != 1 || keys[0].CreateRevision != g.Token().Revision() {
		t.Errorf("the queue: %v", keys)
	}
	release(t, g)
}
