package coordinator_test

import (
	"context"
	"errors"
	"slices"
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

// Nobody else can release what a call has taken that panics, in a barrier or in a
// hook. The panic goes on.
func TestCallThatPanicsReleases(t *testing.T) {
	etcd := cluster(t, nil)
	barrier := coordinator.Raise(func(_ context.Context, token revisionfence.Token) error {
		if token.Lock() != "a" { // the first of several is held by then
			panic("boom")
		}
		return nil
	})
	opts := steady
	c := newCoordinator(t, etcd.NewClient(t), opts)
	opts.Hooks.AcquireEnd = func(_ context.Context, end coordinator.AcquireEnd) {
		if end.Lock != "a" && end.Err == nil {
			panic("boom")
		}
	}
	hooked := newCoordinator(t, etcd.Client(), opts)
	other := newCoordinator(t, etcd.Client(), steady)
	nothing := func(context.Context, *coordinator.Grant) error { return nil }
	seq := slices.Values([]string{"b"})
	ctx := within(t, patience)

	for name, call := range map[string]func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption){
		"Acquire": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_, _ = c.Acquire(ctx, "b", opts...)
		},
		"TryAcquire": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_, _ = c.TryAcquire(ctx, "b", opts...)
		},
		"TryAcquireAny": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_, _ = c.TryAcquireAny(ctx, seq, opts...)
		},
		"Do": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_ = c.Do(ctx, "b", nothing, opts...)
		},
		"Lead": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_ = c.Lead(ctx, "b", nothing, opts...)
		},
		"AcquireAll": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			_, _ = c.AcquireAll(ctx, []string{"a", "b", "c"}, opts...)
		},
		"AcquireAll, one by one": func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			g := acquire(t, other, "a")
			go func() {
				for c.Health().Waiting == 0 && ctx.Err() == nil {
					pause()
				}
				_ = g.Release(ctx)
			}()
			_, _ = c.AcquireAll(ctx, []string{"a", "b", "c"}, opts...)
		},
	} {
		panics := func(c *coordinator.Coordinator, opts ...coordinator.AcquireOption) {
			t.Helper()
			func() {
				defer func() {
					if r := recover(); r != "boom" {
						t.Errorf("%s: recovered %v", name, r)
					}
				}()
				call(c, opts...)
			}()
			if n := c.Health().Held; n != 0 {
				t.Errorf("%s: %d locks are held", name, n)
			}
			for _, lock := range []string{"a", "b", "c"} {
				queued(t, etcd.Client(), lock, 0)
			}
		}
		panics(c, barrier)
		panics(hooked)
	}
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
