package coordinator_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// Somebody else of the process has asked, and etcd has not answered: nobody knows
// whether the lock is held.
func TestTryWaitsForTheAnswerToAnother(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, other := newCoordinator(t, client, steady), newCoordinator(t, etcd.Client(), steady)
	for _, asked := range []string{"LeaseGrant", enters, reads} { // there is one session
		t.Run(asked, func(t *testing.T) {
			lock := "free of " + asked
			method, opts := "Txn", []wire.Option{of(asked)}
			switch asked {
			case "LeaseGrant":
				method, opts = asked, nil
			case reads: // where the key stands that came of an acquire without an answer
				w.DropReply("Txn", 1, of(enters))
			}
			request := w.Hold(method, opts...)
			first := ask(t, c, lock)
			held(t, request)
			for tries, try := range map[string]func(context.Context) (*coordinator.Grant, error){
				"TryAcquire":    func(ctx context.Context) (*coordinator.Grant, error) { return c.TryAcquire(ctx, lock) },
				"TryAcquireAny": func(ctx context.Context) (*coordinator.Grant, error) { return c.TryAcquireAny(ctx, only(lock)) },
			} {
				if _, err := try(within(t, 50*time.Millisecond)); err == nil || errors.Is(err, coordinator.ErrBusy) && asked != reads || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s while nothing is known: %v", tries, err)
				}
			}
			results := make(chan error, 2)
			go func() { results <- errOf(c.TryAcquire(within(t, patience), lock)) }()
			go func() { results <- errOf(c.TryAcquireAny(within(t, patience), only(lock))) }()
			eventually(t, "both wait", func() bool { return coordinator.Waiting(c) == 3 })
			request.Release()
			g := first.granted(t)
			for range 2 {
				var busy *coordinator.BusyError
				if err := receive(t, results, "a try"); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
					t.Errorf("%v, want that %s holds it", err, g.Token())
				}
			}
			release(t, g)
		})
	}
	t.Run("whose lock another process holds", func(t *testing.T) {
		g := acquire(t, other, "taken")
		request := w.Hold("Txn", of(enters))
		first := ask(t, c, "taken")
		held(t, request)
		result := make(chan error, 1)
		go func() { result <- errOf(c.TryAcquire(within(t, patience), "taken")) }()
		eventually(t, "both wait", func() bool { return coordinator.Waiting(c) == 2 })
		request.Release()
		var busy *coordinator.BusyError
		if err := receive(t, result, "a try"); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Errorf("%v, want that %s holds it", err, g.Token())
		}
		first.waits(t)
		release(t, g)
		release(t, first.granted(t))
	})
	t.Run("who left meanwhile", func(t *testing.T) {
		request := w.Hold("Txn", of(enters))
		first := ask(t, c, "left")
		held(t, request)
		granted := make(chan *coordinator.Grant, 1)
		go func() {
			g, err := c.TryAcquire(within(t, patience), "left")
			if err != nil {
				t.Error(err)
			}
			granted <- g
		}()
		eventually(t, "both wait", func() bool { return coordinator.Waiting(c) == 2 })
		first.cancel()
		_ = first.failed(t)
		request.Release()
		release(t, receive(t, granted, "the grant of the one that stayed"))
	})
}

func only(locks ...string) iter.Seq[string] { return slices.Values(locks) }

// Many try one lock at once: exactly one gets it, and the others are told who.
func TestOneOfManyTriesGetsTheLock(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	for range 20 {
		var all sync.WaitGroup
		grants := make(chan *coordinator.Grant, 50)
		busy := make(chan *coordinator.BusyError, 50)
		for range 50 {
			all.Go(func() {
				g, err := c.TryAcquire(within(t, patience), "orders")
				var b *coordinator.BusyError
				switch {
				case err == nil:
					grants <- g
				case errors.As(err, &b):
					busy <- b
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(grants) != 1 || len(busy) != 49 {
			t.Fatalf("%d grants, %d busy", len(grants), len(busy))
		}
		g := <-grants
		for range 49 {
			if b := <-busy; b.Holder.Token != g.Token() {
				t.Errorf("busy: %v", b)
			}
		}
		release(t, g)
	}
}

// A caller that set no deadline is not told that its deadline is over, and waits
// for a bounded time.
func TestSilentEtcdHasAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client := etcd.NewClient(t, through(proxy))
	f := &fleet{t: t, client: client}
	held, g := f.hold(steady.TTL)
	fresh, opening := f.open(steady.TTL), f.open(steady.TTL)
	proxy.Cut()
	ctx := context.WithoutCancel(t.Context())
	calls := map[string]func() error{
		"first try":  func() error { return errOf(fresh.TryAcquire(ctx, "a")) },
		"ping":       func() error { return opening.Ping(ctx) },
		"later try":  func() error { return errOf(held.TryAcquire(ctx, "a")) },
		"try of any": func() error { return errOf(held.TryAcquireAny(ctx, only("b"))) },
		"bounded wait": func() error {
			return errOf(held.Acquire(ctx, "c", coordinator.WaitAtMost(2*time.Second)))
		},
		"status": func() error { _, err := held.Status(ctx, "a"); return err },
		"current": func() error {
			_, err := held.IsCurrent(ctx, g.Token())
			return err
		},
		"evict":     func() error { return held.Evict(ctx, g.Token(), "") },
		"set value": func() error { return g.SetValue(ctx, nil) },
		"list": func() error {
			for _, err := range held.List(ctx, "") {
				return err
			}
			return nil
		},
	}
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			start := time.Now()
			err := call()
			t.Logf("%s, after %v: %v", name, time.Since(start), err)
			if !errors.Is(err, coordinator.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, coordinator.ErrBusy) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(start); took > 12*time.Second {
				t.Errorf("%s took %v", name, took)
			}
		})
	}
	eventually(t, "health fails though nothing was answered yet", func() bool { return errors.Is(fresh.Health().Err, coordinator.ErrNoAnswer) })
	all.Wait()
	proxy.Heal()
	f.close()
}

func TestCloseFromWithinFailsAtOnce(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c, other := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, etcd.Client(), steady)
	closes := func(ctx context.Context, g *coordinator.Grant) error {
		for name, ctx := range map[string]context.Context{"the function's": ctx, "the grant's": g.Context()} {
			if err := c.Close(ctx); !errors.Is(err, coordinator.ErrWaitsForItself) {
				t.Errorf("with %s context: %v", name, err)
			}
		}
		if err := g.Err(); err != nil || c.Health().Closed {
			t.Errorf("something was closed: %v", err)
		}
		return nil
	}
	var kept context.Context
	for name, run := range map[string]func() error{
		"Do":   func() error { return c.Do(t.Context(), "orders", closes) },
		"Lead": func() error { return c.Lead(t.Context(), "orders", closes) },
		"one within another": func() error {
			return c.Do(t.Context(), "orders", func(ctx context.Context, _ *coordinator.Grant) error {
				kept = ctx //nolint:fatcontext // one, to be used when it is over
				return other.Do(ctx, "others", closes)
			})
		},
	} {
		if err := run(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Another coordinator may be closed, and this one once the function is over.
	err := c.Do(t.Context(), "orders", func(ctx context.Context, _ *coordinator.Grant) error { return other.Close(ctx) })
	if err != nil {
		t.Errorf("close of another: %v", err)
	}
	if err := c.Close(context.WithoutCancel(kept)); err != nil {
		t.Errorf("close after the function: %v", err)
	}
}
