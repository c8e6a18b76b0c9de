package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

var errMine = errors.New("mine")

func TestDoReturnsTheFunctionsErrorAsItIs(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	for _, want := range []error{nil, errMine} {
		err := c.Do(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
			if token, ok := revisionfence.FromContext(ctx); !ok || token != g.Token() {
				t.Errorf("the context carries %v, the grant has %v", token, g.Token())
			}
			stands(t, etcd.Client(), g)
			return want
		})
		if err != want {
			t.Errorf("Do returned %v, want %v itself", err, want)
		}
		if left := queue(t, etcd.Client(), "orders"); len(left) != 0 {
			t.Errorf("left in the queue after Do: %v", left)
		}
	}
}

func TestDoJoinsTheLoss(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), hasty)
	for _, mine := range []error{nil, errMine} {
		err := c.Do(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
			etcd.Expire(t, g)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, coordinator.ErrLost) {
				t.Errorf("the context ended with %v", cause)
			}
			return mine
		})
		var lost *coordinator.LostError
		if !errors.As(err, &lost) || lost.Reason != coordinator.LostRevoked {
			t.Errorf("Do whose grant was lost, fn returned %v: %v", mine, err)
		}
		if mine != nil && !errors.Is(err, mine) {
			t.Errorf("the function's own error is gone: %v", err)
		}
	}
}

func TestDoReleasesAfterAPanic(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	func() {
		defer func() {
			if r := recover(); r != errMine {
				t.Errorf("recovered %v, want the function's own panic", r)
			}
		}()
		_ = c.Do(within(t, patience), "orders", func(context.Context, *coordinator.Grant) error { panic(errMine) })
	}()
	if left := queue(t, etcd.Client(), "orders"); len(left) != 0 {
		t.Errorf("left in the queue after a panic: %v", left)
	}
}

// A function that takes its time to stop still works under the lock: others
// start when it has returned.
func TestLockIsHeldUntilTheFunctionHasReturned(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a, b := newCoordinator(t, etcd.Client(), hasty), newCoordinator(t, etcd.Client(), hasty)
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	stopping, stopped := make(chan *coordinator.Grant), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- a.Do(ctx, "orders", func(ctx context.Context, g *coordinator.Grant) error {
			close(started)
			<-ctx.Done()
			stopping <- g
			<-stopped
			return ctx.Err()
		})
	}()
	<-started
	waiter := ask(t, b, "orders")
	cancel()
	g := <-stopping
	// Longer than the lease: it must be renewed meanwhile.
	for renewed := time.Now().Add(g.TTL() + g.TTL()/2); time.Now().Before(renewed); pause() {
		if err := g.Err(); err != nil {
			t.Fatalf("the grant ended while the function was stopping: %v", err)
		}
		waiter.waits(t)
	}
	stands(t, etcd.Client(), g)
	close(stopped)
	if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, coordinator.ErrLost) {
		t.Errorf("Do: %v", err)
	}
	next := waiter.granted(t)
	rises(t, g, next)
	release(t, next)
}

// A call that could not begin is nothing that Close waits for.
func TestContextThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	var none context.Context
	nothing := func(context.Context, *coordinator.Grant) error { return nil }
	_, acquired := c.Acquire(none, "orders")
	_, tried := c.TryAcquire(none, "orders")
	_, all := c.AcquireAll(none, []string{"orders", "stock"})
	_, anyOf := c.TryAcquireAny(none, slices.Values([]string{"orders"}))
	for how, err := range map[string]error{
		"Acquire": acquired, "TryAcquire": tried, "AcquireAll": all, "TryAcquireAny": anyOf,
		"Do": c.Do(none, "orders", nothing), "Lead": c.Lead(none, "orders", nothing),
	} {
		if !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("%s without a context: %v", how, err)
		}
	}
	for how, do := range map[string]func(context.Context, string, func(context.Context, *coordinator.Grant) error, ...coordinator.AcquireOption) error{"Do": c.Do, "Lead": c.Lead} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the context's panic did not go on", how)
				}
			}()
			_ = do(panicsAtValue{t.Context()}, "orders", nothing)
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("close waited for calls that had not begun: %v, %v", err, ctx.Err())
	}
}

type panicsAtValue struct{ context.Context }

func (panicsAtValue) Value(any) any { panic("boom") }

// The first Close waits for the function, and keeps its lock; a second one that has
// no time for that leaves both alone.
func TestSecondCloseDoesNotCutTheFirstShort(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	opts := steady
	opts.CleanupTimeout = 50 * time.Millisecond
	c := newCoordinator(t, etcd.Client(), opts)
	running, finish := make(chan struct{}), make(chan struct{})
	worked, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		worked <- c.Do(context.WithoutCancel(t.Context()), "orders", func(context.Context, *coordinator.Grant) error {
			close(running)
			<-finish
			return nil
		})
	}()
	<-running
	go func() { closed <- c.Close(within(t, patience)) }()
	eventually(t, "the first Close has begun", func() bool { return c.Health().Closed })
	hurry := errors.New("no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(hurry)
	if err := c.Close(ctx); !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, hurry) {
		t.Errorf("a second Close, without time: %v", err)
	}
	if kvs := queue(t, etcd.Client(), "orders"); len(kvs) != 1 {
		t.Errorf("the function is at work, and its lock is free: %v", kvs)
	}
	third := make(chan error, 1)
	go func() { third <- c.Close(within(t, patience)) }()
	close(finish)
	for _, err := range []error{receive(t, closed, "the first Close"), receive(t, third, "the third Close"), c.Close(ctx)} {
		if err != nil {
			t.Errorf("once the function has returned: %v", err)
		}
	}
	if err := receive(t, worked, "Do"); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("Do: %v", err)
	}
	queued(t, etcd.Client(), "orders", 0)
}

func TestLocksAreNotReentrant(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	other := newCoordinator(t, etcd.Client(), steady)
	err := c.Do(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
		return c.Do(ctx, "stock", func(ctx context.Context, _ *coordinator.Grant) error {
			for _, lock := range []string{"orders", "stock"} {
				if _, err := c.Acquire(ctx, lock); !errors.Is(err, coordinator.ErrAlreadyHeld) {
					t.Errorf("acquire %q under itself: %v", lock, err)
				}
				if _, err := c.TryAcquire(ctx, lock); !errors.Is(err, coordinator.ErrAlreadyHeld) {
					t.Errorf("try %q under itself: %v", lock, err)
				}
			}
			if _, err := c.TryAcquire(g.Context(), "orders"); !errors.Is(err, coordinator.ErrAlreadyHeld) {
				t.Errorf("try under the grant's own context: %v", err)
			}
			// Another coordinator is another holder: it is merely busy.
			if _, err := other.TryAcquire(ctx, "orders"); !errors.Is(err, coordinator.ErrBusy) {
				t.Errorf("try by another coordinator: %v", err)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	// A context whose grant has ended holds nothing.
	g := acquire(t, c, "orders")
	release(t, g)
	again, err := c.Acquire(g.Context(), "orders")
	if err == nil {
		t.Fatal("a context that has ended was granted the lock")
	}
	if !errors.Is(err, coordinator.ErrNotHeld) || again != nil {
		t.Errorf("acquire under a context that ended with its grant: %v", err)
	}
}

// Whoever works under one of several grants holds the others too, and would wait for
// itself.
func TestLocksOfAcquireAllAreNotReentrant(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	other := newCoordinator(t, etcd.Client(), steady)
	locks := []string{"a", "b"}
	refuses := func(how string, all *coordinator.Grants) {
		t.Helper()
		for under, ctx := range map[string]context.Context{"all": all.Context(), "a": all.Grant("a").Context(), "b": all.Grant("b").Context()} {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			for _, lock := range locks {
				if _, err := c.Acquire(ctx, lock); !errors.Is(err, coordinator.ErrAlreadyHeld) {
					t.Errorf("%s: %q under the grant of %s: %v", how, lock, under, err)
				}
			}
			if _, err := c.AcquireAll(ctx, locks); !errors.Is(err, coordinator.ErrAlreadyHeld) {
				t.Errorf("%s: all under the grant of %s: %v", how, under, err)
			}
			cancel()
		}
		// One that was given up is anybody's again.
		release(t, all.Grant("b"))
		release(t, acquire(t, c, "b"))
		g, err := c.Acquire(all.Grant("a").Context(), "b")
		if err != nil {
			t.Fatalf("%s: b, which was released, under the grant of a: %v", how, err)
		}
		release(t, g)
		release(t, all.Grant("a"))
	}
	refuses("together", acquireAll(t, c, locks))

	g := acquire(t, other, "a")
	got := make(chan *coordinator.Grants, 1)
	go func() {
		all, err := c.AcquireAll(within(t, patience), locks)
		if err != nil {
			t.Error(err)
		}
		got <- all
	}()
	queued(t, etcd.Client(), "a", 2)
	release(t, g)
	refuses("one by one", receive(t, got, "AcquireAll"))
}

func TestWaitingThatEndsNamesTheHolder(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	holder := steady
	holder.Identity = "the holder"
	a, b := newCoordinator(t, etcd.Client(), holder), newCoordinator(t, etcd.Client(), steady)
	release(t, acquire(t, b, "warm")) // the session is open
	g := acquire(t, a, "orders", coordinator.Reason("stocktaking"))
	if err := b.Ping(within(t, patience)); err != nil { // its session is open: only the wait is measured
		t.Fatal(err)
	}
	for name, c := range map[string]*coordinator.Coordinator{"same process": a, "another process": b} {
		_, err := c.Acquire(within(t, patience), "orders", coordinator.WaitAtMost(400*time.Millisecond))
		named(t, name+", WaitAtMost", err, g)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: WaitAtMost ended, and the error speaks of the context: %v", name, err)
		}
		_, err = c.Acquire(within(t, 400*time.Millisecond), "orders")
		named(t, name+", deadline", err, g)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the context ended: %v", name, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(400*time.Millisecond, func() { cancel(errMine) })
		_, err = c.Acquire(ctx, "orders")
		named(t, name+", cancelled", err, g)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errMine) {
			t.Errorf("%s: the context was cancelled with a cause: %v", name, err)
		}
		_, err = c.TryAcquire(within(t, patience), "orders")
		named(t, name+", try", err, g)
	}
	if keys := queue(t, etcd.Client(), "orders"); len(keys) != 1 {
		t.Errorf("who gave up left keys: %v", keys)
	}
	release(t, g)
}

func named(t *testing.T, how string, err error, g *coordinator.Grant) {
	t.Helper()
	var busy *coordinator.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, coordinator.ErrBusy) {
		t.Errorf("%s: %v, want a BusyError", how, err)
		return
	}
	if h := busy.Holder; h.Token != g.Token() || h.Identity != "the holder" || h.Reason != "stocktaking" || h.Key != g.Key() || h.Lease != g.Lease() || h.Since.IsZero() {
		t.Errorf("%s: the holder is said to be %+v", how, h)
	}
	if errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("%s: etcd answers, and still: %v", how, err)
	}
}

func TestBarriersRunBeforeTheCallerSeesTheGrant(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	var order []string
	var raised revisionfence.Token
	barrier := func(name string, err error) func(context.Context, revisionfence.Token) error {
		return func(ctx context.Context, token revisionfence.Token) error {
			order = append(order, name)
			raised = token
			if carried, ok := revisionfence.FromContext(ctx); !ok || carried != token {
				t.Errorf("barrier %s: the context carries %v, the token is %v", name, carried, token)
			}
			return err
		}
	}
	g := acquire(t, c, "orders", coordinator.Raise(barrier("1", nil), barrier("2", nil)), coordinator.Raise(barrier("3", nil)))
	if raised != g.Token() || len(order) != 3 || order[0] != "1" || order[2] != "3" {
		t.Errorf("barriers %v ran with %v, the grant has %v", order, raised, g.Token())
	}
	release(t, g)

	order = nil
	_, err := c.Acquire(within(t, patience), "orders", coordinator.Raise(barrier("1", nil), barrier("2", errMine), barrier("3", nil)))
	if !errors.Is(err, errMine) || len(order) != 2 {
		t.Errorf("a barrier failed: %v after barriers %v", err, order)
	}
	if keys := queue(t, etcd.Client(), "orders"); len(keys) != 0 {
		t.Errorf("a barrier failed, and the lock is still held: %v", keys)
	}
}

// The grant outlives the context that it was acquired with.
func TestCancelEndsTheWaitingAndNothingElse(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), hasty)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	g, err := c.Acquire(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	bound, stop := g.Bind(ctx)
	defer stop()
	cancel()
	for end := time.Now().Add(g.TTL() + g.TTL()/2); time.Now().Before(end); pause() {
		if err := g.Err(); err != nil {
			t.Fatalf("the grant ended with the context of its Acquire: %v", err)
		}
	}
	if g.Context().Err() != nil || g.Context().Value(key{}) != "value" {
		t.Errorf("the grant's context: %v, value %v", g.Context().Err(), g.Context().Value(key{}))
	}
	if bound.Err() == nil {
		t.Error("the bound context did not end with the other one")
	}
	stands(t, etcd.Client(), g)
	release(t, g)
	if bound, stop := g.Bind(t.Context()); bound.Err() == nil || !errors.Is(context.Cause(bound), coordinator.ErrNotHeld) {
		t.Errorf("a context bound to a grant that was released: %v", context.Cause(bound))
	} else {
		stop()
	}
}
