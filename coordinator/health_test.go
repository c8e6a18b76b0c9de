package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

func TestHealthTellsWhatIsSo(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	if h := c.Health(); h != (coordinator.Health{}) {
		t.Errorf("before anything was asked for: %+v", h)
	}
	if w.Calls("") != 0 {
		t.Errorf("Health asked etcd: %v", w.Counts())
	}
	g := acquire(t, c, "orders")
	acquire(t, c, "others")
	next := ask(t, c, "orders")
	h := c.Health()
	if h.Lease != g.Lease() || h.TTL != g.TTL() || h.TrustedFor <= 0 || h.TrustedFor > h.TTL || h.ProofAge < 0 || h.ProofAge > h.TTL ||
		h.Held != 2 || h.Waiting != 1 || h.Releasing != 0 || h.Closed || h.Err != nil {
		t.Errorf("with two grants and a waiter: %+v", h)
	}
	next.cancel()
	_ = next.failed(t)
	release(t, g)
	if h := c.Health(); h.Held != 1 || h.Waiting != 0 || h.Releasing != 0 || h.Err != nil {
		t.Errorf("after a release: %+v", h)
	}
	if err := c.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if h := c.Health(); !h.Closed || !errors.Is(h.Err, coordinator.ErrClosed) || h.Held != 0 || h.Lease != 0 {
		t.Errorf("closed: %+v", h)
	}
}

// A lease that ran out is no reason to say that all is well, though nobody has
// asked for anything since.
func TestHealthFailsWhileEtcdIsOutOfReach(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{proxy.Endpoint()} })
	c := newCoordinator(t, client, hasty)
	if err := c.Ping(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, "orders")
	proxy.Cut()
	eventually(t, "health fails while the grant still holds", func() bool {
		h := c.Health()
		return h.Err != nil && h.Lease == g.Lease()
	})
	_ = ended(t, g)
	h := c.Health()
	if h.Err == nil || h.Lease != 0 || h.Held != 0 || h.TrustedFor != 0 {
		t.Errorf("after the end of the lease: %+v", h)
	}
	// Nobody waits long enough to be told.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); err == nil {
		t.Error("etcd cannot be reached, and Ping succeeded")
	}
	if c.Health().Err == nil {
		t.Error("health succeeds though there is no session")
	}
	proxy.Heal()
	proxy.Reset()
	if err := c.Ping(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if h := c.Health(); h.Err != nil || h.Lease == 0 {
		t.Errorf("after recovery: %+v", h)
	}
}

// The only one who wanted a session left before there could be one: that is not
// etcd's fault.
func TestHealthIsNotOfThoseWhoDidNotWait(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	latch := w.Hold("LeaseGrant")
	ctx, cancel := context.WithCancel(t.Context())
	pinged := make(chan error, 1)
	go func() { pinged <- c.Ping(ctx) }()
	held(t, latch)
	cancel()
	if err := receive(t, pinged, "Ping"); !errors.Is(err, context.Canceled) {
		t.Errorf("ping: %v", err)
	}
	latch.Release()
	release(t, acquire(t, c, "orders"))
	if err := c.Health().Err; err != nil {
		t.Errorf("health: %v", err)
	}
}

func TestHealthSaysWhyThereIsNoSession(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	refused := w.FailBefore("LeaseGrant", 0)
	next := ask(t, c, "orders")
	eventually(t, "health fails", func() bool { return c.Health().Err != nil })
	if h := c.Health(); h.Lease != 0 || h.Waiting != 1 {
		t.Errorf("%+v", h)
	}
	refused.Remove()
	release(t, next.granted(t))
	if err := c.Health().Err; err != nil {
		t.Errorf("after recovery: %v", err)
	}
}
