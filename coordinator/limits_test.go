package coordinator_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestGrantHeldPastItsLimitIsLostAndPassesOn(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, a, "orders", coordinator.MaxHold(100*time.Millisecond))
	other := acquire(t, a, "others")
	next := ask(t, b, "orders")
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostHeldTooLong || lost.Token != g.Token() {
		t.Errorf("it ended with %v", err)
	}
	second := next.granted(t)
	rises(t, g, second)
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) || !errors.As(err, &lost) || lost.Reason != coordinator.LostHeldTooLong {
		t.Errorf("a release afterwards: %v", err)
	}
	stands(t, etcd.Client(), second)
	if other.Err() != nil {
		t.Errorf("another grant: %v", other.Err())
	}
	release(t, second)
	release(t, other)
	// One that is released in time is not lost afterwards, and to a waiter of
	// the same process the lock is handed on.
	early := acquire(t, a, "orders", coordinator.MaxHold(200*time.Millisecond))
	local := ask(t, a, "orders", coordinator.MaxHold(time.Minute))
	third := local.granted(t)
	if !errors.As(early.Err(), &lost) || lost.Reason != coordinator.LostHeldTooLong {
		t.Errorf("the first ended with %v", early.Err())
	}
	release(t, third)
	<-time.After(250 * time.Millisecond)
	if errors.Is(third.Err(), coordinator.ErrLost) {
		t.Errorf("released in time: %v", third.Err())
	}
}

// collected runs the garbage collector until something shows.
func collected(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		runtime.GC()
		return ok()
	})
}

// keeps runs the garbage collector often enough for anything to be found.
func keeps() {
	for range 5 {
		runtime.GC()
		<-time.After(10 * time.Millisecond)
	}
}

func obtainAll(t *testing.T, c *coordinator.Coordinator, locks []string) *coordinator.Grants {
	t.Helper()
	all, err := c.AcquireAll(within(t, patience), locks)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestForgottenGrantIsReleasedAndReported(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	reg := prometheus.NewRegistry()
	opts := steady
	opts.Registerer = reg
	lost := make(chan *coordinator.LostError, 10)
	opts.Hooks.Lost = func(e *coordinator.LostError) { lost <- e }
	c := newCoordinator(t, etcd.Client(), opts)

	forget := map[string]func(){
		"grant": func() { obtain(t, c, "orders") },
		"context": func() {
			ctx := obtain(t, c, "orders").Context()
			_ = ctx.Err()
		},
		// A cancel that is not called is no reason to keep a lock for ever.
		"bound context": func() { _, _ = obtain(t, c, "orders").Bind(t.Context()) },
		"derived contexts": func() {
			ctx, cancel := context.WithCancel(obtain(t, c, "orders").Context())
			defer cancel()
			_, cancel = context.WithTimeout(ctx, time.Hour)
			defer cancel()
		},
	}
	leaked := 0
	for name, f := range forget {
		f()
		collected(t, name+" is collected", func() bool { return c.Health().Held == 0 })
		queued(t, etcd.Client(), "orders", 0)
		if e := receive(t, lost, "the loss of a forgotten "+name); e.Reason != coordinator.LostForgotten {
			t.Errorf("%s: %v", name, e)
		}
		leaked++
		if n := metric(t, reg, "etcd_fence_grants_leaked_total"); n != float64(leaked) {
			t.Errorf("%s: %v leaked grants reported, want %d", name, n, leaked)
		}
	}
	// A waiter gets the lock of one that was forgotten.
	forget["grant"]()
	next := ask(t, c, "orders")
	collected(t, "the waiter's turn", func() bool {
		select {
		case <-next.done:
			return true
		default:
			return false
		}
	})
	release(t, next.granted(t))

	all := []string{"a", "b", "c"}
	obtainAll(t, c, all)
	collected(t, "several locks at once are collected", func() bool { return c.Health().Held == 0 })
	_ = obtainAll(t, c, all).Context().Err()
	collected(t, "several locks and their context are collected", func() bool { return c.Health().Held == 0 })
	for _, lock := range all {
		queued(t, etcd.Client(), lock, 0)
	}
}

// What a program holds on to is enough to hold the lock.
func TestGrantIsNotForgottenWhileAnyPartOfItIsKept(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	check := func(name string, lock string, kept any) {
		t.Helper()
		keeps()
		if held := c.Health().Held; held == 0 || len(queue(t, etcd.Client(), lock)) != 1 {
			t.Errorf("keeping only %s: the lock was released", name)
		}
		runtime.KeepAlive(kept)
	}
	check("the grant", "orders", obtain(t, c, "orders"))
	collected(t, "the grant", func() bool { return c.Health().Held == 0 })

	check("its context", "orders", obtain(t, c, "orders").Context())
	collected(t, "its context", func() bool { return c.Health().Held == 0 })

	derived, cancel := context.WithTimeout(obtain(t, c, "orders").Context(), time.Hour)
	check("a context derived from it", "orders", derived)
	cancel()
	collected(t, "a context derived from it", func() bool { return c.Health().Held == 0 })

	bound, end := obtain(t, c, "orders").Bind(t.Context())
	check("a bound context", "orders", bound)
	end()
	collected(t, "a bound context", func() bool { return c.Health().Held == 0 })

	all := obtainAll(t, c, []string{"a", "b"})
	one := all.Grant("a")
	ctx := all.Context()
	keeps()
	if c.Health().Held != 2 {
		t.Errorf("keeping only the context of several locks: %d held", c.Health().Held)
	}
	runtime.KeepAlive(ctx)
	collected(t, "the context of several locks", func() bool { return c.Health().Held == 1 })
	queued(t, etcd.Client(), "b", 0)
	release(t, one)
}

// Draining is an early word: the lease was not proven for a while, and may be
// again.
func TestDrainingClosesBeforeTheWindowAndOpensAgain(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := coordinator.Options{TTL: 4 * time.Second, DrainMargin: 2 * time.Second}
	c := newCoordinator(t, client, opts)
	g := acquire(t, c, "orders")
	draining := g.Draining()
	select {
	case <-draining:
		t.Fatal("a new grant is draining")
	case <-time.After(opts.TTL / 2): // a proof or two
	}
	silence := w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if m.Method == "LeaseKeepAlive" {
			return wire.ErrDrop
		}
		return nil
	})
	select {
	case <-draining:
	case <-g.Context().Done():
		t.Fatal("the window closed before draining was told")
	case <-time.After(patience):
		t.Fatal("nobody told of draining")
	}
	if left := g.TrustedFor(); left == 0 || left > opts.DrainMargin {
		t.Errorf("draining was told with %v left, want less than %v", left, opts.DrainMargin)
	}
	if err := c.Health().Err; err == nil {
		t.Error("all is said to be well while draining")
	}
	silence.Remove()
	open := func() bool {
		select {
		case <-g.Draining():
			return false
		default:
			return true
		}
	}
	eventually(t, "draining is over", open)
	if g.Err() != nil || g.TrustedFor() < opts.DrainMargin || c.Health().Err != nil {
		t.Errorf("after recovery: err %v, trusted for %v, health %v", g.Err(), g.TrustedFor(), c.Health().Err)
	}
	// It stays over, proof after proof.
	for range 10 {
		<-time.After(100 * time.Millisecond)
		if !open() {
			t.Fatal("draining again though every proof succeeds")
		}
	}
	etcd.Expire(t, g)
	_ = ended(t, g)
	if open() {
		t.Error("a grant that has ended is not draining")
	}
}

// Nobody is told of the end of a session, in whichever way, while Draining still
// says that something may be started.
func TestDrainingIsClosedBeforeTheEndIsTold(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	for how, end := range map[string]func(*coordinator.Coordinator, *coordinator.Grant) error{
		"gone": func(c *coordinator.Coordinator, g *coordinator.Grant) error {
			etcd.Expire(t, g)
			release(t, acquire(t, c, "others")) // finds out
			return nil
		},
		"closed": func(c *coordinator.Coordinator, _ *coordinator.Grant) error { return c.Close(within(t, patience)) },
	} {
		var g atomic.Pointer[coordinator.Grant]
		told := make(chan bool, 2)
		opts := steady
		opts.Logger = slog.New(sessionEnds{slog.DiscardHandler, func() { told <- open(g.Load().Draining()) }})
		c := newCoordinator(t, etcd.Client(), opts)
		g.Store(acquire(t, c, "orders"))
		if err := end(c, g.Load()); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if receive(t, told, "the end of the session") {
			t.Errorf("%s: told while Draining was open", how)
		}
	}
}

// sessionEnds is a log handler that does something when a session ends.
type sessionEnds struct {
	slog.Handler
	do func()
}

func (sessionEnds) Enabled(context.Context, slog.Level) bool { return true }

func (h sessionEnds) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "session over" {
		h.do()
	}
	return nil
}

func TestDrainingWhenCutOff(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{proxy.Endpoint()} })
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	draining := g.Draining()
	proxy.Cut()
	var drained, over time.Time
	for drained.IsZero() || over.IsZero() {
		select {
		case <-draining:
			drained, draining = time.Now(), nil
		case <-g.Context().Done():
			over = time.Now()
		case <-time.After(patience):
			t.Fatal("the window stays open")
		}
		if !over.IsZero() && drained.IsZero() {
			t.Fatal("the window closed without a word")
		}
	}
	var lost *coordinator.LostError
	if !errors.As(g.Err(), &lost) || lost.Reason != coordinator.LostUnproven {
		t.Errorf("it ended with %v", g.Err())
	}
	t.Logf("drained %v before the window closed", over.Sub(drained))
	proxy.Heal()
}

func TestDrainMarginMustLeaveRoomForProofs(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	for _, opts := range []coordinator.Options{
		{DrainMargin: 7 * time.Second},
		{DrainMargin: -1},
		{TTL: time.Second, DrainMargin: 650 * time.Millisecond},
	} {
		if _, err := coordinator.New(etcd.Client(), &opts); !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("TTL %v, DrainMargin %v: %v", opts.TTL, opts.DrainMargin, err)
		}
	}
	newCoordinator(t, etcd.Client(), coordinator.Options{DrainMargin: 7*time.Second - 1})
}
