package coordinator_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// What a leaver left behind is settled once somebody else wants it.
func TestLeaverWhoseKeyIsTakenOverIsSettled(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	latch := w.HoldReply("Txn", of(enters))
	first := ask(t, c, "orders")
	held(t, latch)
	start := time.Now()
	first.cancel()
	eventually(t, "left", func() bool { return coordinator.Waiting(c) == 0 })
	second := ask(t, c, "orders")
	latch.Release()
	g := second.granted(t)
	err := first.failed(t)
	t.Logf("after %v: %v", time.Since(start), err)
	if errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("the key was taken over, and the leaver was told: %v", err)
	}
	release(t, g)
}

func TestBarrierThatPanicsReleases(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.NewClient(t), steady)
	func() {
		defer func() { _ = recover() }()
		_, _ = c.Acquire(within(t, patience), "orders", coordinator.Raise(func(context.Context, revisionfence.Token) error { panic("boom") }))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	g, err := c.Acquire(ctx, "orders")
	if err != nil {
		t.Fatalf("the lock of a call that panicked: %v", err)
	}
	release(t, g)
}

func TestGrantLostDuringABarrierIsNotReturned(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.NewClient(t), hasty)
	g0 := acquire(t, c, "other")
	g, err := c.Acquire(within(t, patience), "orders", coordinator.Raise(func(ctx context.Context, _ revisionfence.Token) error {
		etcd.Expire(t, g0)
		<-ctx.Done()
		return nil
	}))
	if !errors.Is(err, coordinator.ErrLost) || g != nil {
		t.Errorf("Acquire: %v, %v", g, err)
	}
}

func TestPingWithoutAnEpochRecordWritesNothing(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.NewClient(t), steady)
	g := acquire(t, c, "orders")
	if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix+"epoch"); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, coordinator.ErrRestored) {
		t.Errorf("Ping: %v", err)
	}
	resp, _ := etcd.Client().Get(t.Context(), coordinator.DefaultPrefix+"locks/ping")
	if len(resp.Kvs) != 0 {
		t.Errorf("Ping wrote %v", resp.Kvs)
	}
	release(t, g)
}

func TestPingRevivesNoSession(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.NewClient(t), steady)
	g := acquire(t, c, "orders")
	if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	err := c.Ping(t.Context())
	if err == nil {
		t.Error("Ping says that all is well")
	}
	resp, _ := etcd.Client().Get(t.Context(), coordinator.DefaultPrefix+"sessions/", clientv3.WithPrefix())
	if len(resp.Kvs) != 0 {
		t.Errorf("Ping wrote %v", resp.Kvs)
	}
	if err := ended(t, g); !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("the grant of the deleted session: %v", err)
	}
}

// The end of a session must not take away how the next wait is stopped.
func TestLeavingAfterASessionEndedIsNoticed(t *testing.T) {
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.NewClient(t), steady)
	g := acquire(t, a, "orders")
	bad := 0
	for i := range 10 {
		client, w := tapped(t, etcd)
		b := newCoordinator(t, client, steady)
		other, err := b.Acquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		n := len(queue(t, etcd.Client(), "orders"))
		first := ask(t, b, "orders")
		queued(t, etcd.Client(), "orders", n+1)
		time.Sleep(20 * time.Millisecond)
		latch := w.Hold("LeaseGrant")
		if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix+"sessions/"+strconv.FormatInt(int64(other.Lease()), 16)); err != nil {
			t.Fatal(err)
		}
		tctx, tcancel := context.WithCancel(t.Context())
		go func() { _, _ = b.TryAcquire(tctx, "y") }() // notices
		held(t, latch)
		time.Sleep(5 * time.Millisecond)
		start := time.Now()
		first.cancel()
		err = first.failed(t)
		if d := time.Since(start); d > 500*time.Millisecond || errors.Is(err, coordinator.ErrUnsettled) {
			bad++
			t.Logf("round %d: %v: %v", i, d, err)
		}
		tcancel()
		latch.Release()
		_ = b.Close(within(t, patience))
	}
	if bad > 0 {
		t.Errorf("%d of 10", bad)
	}
	release(t, g)
}

// An etcd that has not answered is not a lock that somebody holds: a program
// that skips its work when the lock is busy must not skip it in an outage.
func TestSilentEtcdIsNotABusyLock(t *testing.T) {
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	c := newCoordinator(t, etcd.NewClient(t, through(proxy)), steady)
	proxy.Cut()
	defer proxy.Heal()
	_, try := c.TryAcquire(within(t, 300*time.Millisecond), "a")
	_, wait := c.Acquire(within(t, patience), "b", coordinator.WaitAtMost(300*time.Millisecond))
	_, ends := c.Acquire(within(t, 300*time.Millisecond), "c")
	for call, err := range map[string]error{"TryAcquire": try, "WaitAtMost": wait, "a deadline": ends} {
		if err == nil || errors.Is(err, coordinator.ErrBusy) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// The epoch record is refused to be made anew only while something lies beside
// it, as the package comment says.
func TestMissingEpochRecordIsRefusedWhileSomethingLiesBesideIt(t *testing.T) {
	etcd := cluster(t, nil)
	old := newCoordinator(t, etcd.NewClient(t), steady)
	g := acquire(t, old, "orders")
	if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix+"epoch"); err != nil {
		t.Fatal(err)
	}
	c := newCoordinator(t, etcd.NewClient(t), steady)
	if _, err := c.Acquire(within(t, patience), "orders"); !errors.Is(err, coordinator.ErrRestored) {
		t.Errorf("beside a session: %v", err)
	}
	release(t, g)
	if err := old.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, c, "orders"))
}
