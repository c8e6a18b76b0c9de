package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// The user of the client may not delete. That is told, and does not take for ever;
// the release is tried on, as the permission may be given.
func TestReleaseThatIsRefusedSaysWhy(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, coordinator.Options{TTL: time.Second, CleanupTimeout: 50 * time.Millisecond})
	refusal := w.FailBefore("Txn", 0, of(releases), wire.Code(codes.PermissionDenied))

	short := acquire(t, c, "short")
	err := short.Release(within(t, 500*time.Millisecond))
	if !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, context.DeadlineExceeded) || !denied(err) {
		t.Errorf("whose context ends: %v", err)
	}

	g := acquire(t, c, "orders")
	start := time.Now()
	err = g.Release(context.WithoutCancel(t.Context()))
	t.Logf("after %v: %v", time.Since(start), err)
	if !errors.Is(err, coordinator.ErrUnsettled) || !denied(err) {
		t.Errorf("whose context does not end: %v", err)
	}
	if again := g.Release(t.Context()); !errors.Is(again, coordinator.ErrUnsettled) {
		t.Errorf("the same again: %v", again)
	}
	if n := c.Health().Releasing; n != 2 {
		t.Errorf("%d releases are pending, want 2", n)
	}
	stands(t, etcd.Client(), g)

	refusal.Remove()
	queued(t, etcd.Client(), "orders", 0)
	queued(t, etcd.Client(), "short", 0)
	eventually(t, "nothing is pending", func() bool { return c.Health().Releasing == 0 })
	if err := g.Release(t.Context()); err != nil {
		t.Errorf("once it is done: %v", err)
	}
}

// denied reports whether somewhere in err etcd says that it is not permitted.
func denied(err error) bool { return status.Code(err) == codes.PermissionDenied }

// An operator deletes the key whose release etcd refuses.
func TestRefusedReleaseEndsWithItsKey(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	w.FailBefore("Txn", 0, of(releases), wire.Code(codes.PermissionDenied))
	g := acquire(t, c, "orders")
	released := make(chan error, 1)
	go func() { released <- g.Release(within(t, patience)) }()
	<-g.Context().Done()
	if _, err := etcd.Client().Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := receive(t, released, "Release"); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("%v, want that it was not held any more", err)
	}
	if took := time.Since(start); took > 2*hasty.TTL {
		t.Errorf("noticed after %v", took)
	}
}

// The same in the middle of a hand-on that got no answer, and may not be settled.
func TestUnsettledHandOnEndsWithItsKey(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	next := ask(t, c, "orders")
	lost := w.FailBefore("Txn", 1, of(handsOn))
	refused := w.FailBefore("Txn", 0, of(settlesHandOn), wire.Code(codes.PermissionDenied))
	released := make(chan error, 1)
	go func() { released <- g.Release(within(t, patience)) }()
	eventually(t, "the settling is refused", func() bool { return lost.Hits() == 1 && refused.Hits() > 0 })
	if _, err := etcd.Client().Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	h := next.granted(t)
	rises(t, g, h)
	if err := receive(t, released, "Release"); err != nil {
		t.Errorf("the release: %v", err) // an attempt of its own may have done it
	}
	release(t, h)
}
