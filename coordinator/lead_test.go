package coordinator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// leading is a Lead that runs.
type leading struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

func lead(t *testing.T, c *coordinator.Coordinator, lock string, fn func(context.Context, *coordinator.Grant) error, opts ...coordinator.AcquireOption) *leading {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	l := &leading{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.err = c.Lead(ctx, lock, fn, opts...)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-l.done
	})
	return l
}

// returned returns what Lead has returned.
func (l *leading) returned(t *testing.T) error {
	t.Helper()
	select {
	case <-l.done:
		return l.err
	case <-time.After(2 * patience):
		t.Fatal("Lead goes on")
		return nil
	}
}

// receive is a receive that does not take for ever.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("not in %v: %s", patience, what)
		panic("unreachable")
	}
}

func TestLeadReturnsWhatFnReturnedWhileHolding(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	mine := errors.New("mine")
	for _, want := range []error{nil, mine} {
		runs := 0
		err := c.Lead(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
			runs++
			if token, ok := revisionfence.FromContext(ctx); !ok || token != g.Token() {
				t.Errorf("fn's context carries %v", token)
			}
			stands(t, etcd.Client(), g)
			return want
		})
		if err != want || runs != 1 {
			t.Errorf("%v after %d runs, want %v after 1", err, runs, want)
		}
		queued(t, etcd.Client(), "orders", 0) // it has resigned
	}
}

func TestLeadWaitsForFnAfterALossAndContendsAgain(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), hasty)
	b := newCoordinator(t, etcd.Client(), steady)
	grants := make(chan *coordinator.Grant)
	stop := make(chan struct{})
	l := lead(t, a, "orders", func(ctx context.Context, g *coordinator.Grant) error {
		grants <- g
		<-ctx.Done()
		if g.Err() == nil {
			return errors.New("ended while holding")
		}
		<-stop
		return ctx.Err()
	})
	first := receive(t, grants, "the first tenure")
	etcd.Expire(t, first)
	var lost *coordinator.LostError
	if err := ended(t, first); !errors.As(err, &lost) {
		t.Fatalf("the tenure ended with %v", err)
	}
	// The lock is free, and fn of the lost tenure is still at work.
	rival := acquire(t, b, "orders")
	queued(t, etcd.Client(), "orders", 1)
	close(stop)
	queued(t, etcd.Client(), "orders", 2) // now it contends
	release(t, rival)
	second := receive(t, grants, "the second tenure")
	rises(t, first, rival)
	rises(t, rival, second)
	stands(t, etcd.Client(), second)
	l.cancel(errors.New("enough"))
	if err := l.returned(t); err == nil || err.Error() != "ended while holding" {
		t.Errorf("Lead returned %v", err)
	}
}

// Each tenure ends by force. By the account of what the fence let through, work
// of one tenure never comes after work of a later one, and every contender goes
// on contending.
func TestLeadOverAHundredForcedLosses(t *testing.T) {
	t.Parallel()
	const locks, losses = 10, 10
	etcd := cluster(t, nil)
	client := etcd.Client()
	type write struct {
		revision int64
		token    revisionfence.Token
	}
	var refused, lostWhileWriting atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	for i := range locks {
		// Forcing a loss ends a whole session.
		contenders := []*coordinator.Coordinator{newCoordinator(t, client, hasty), newCoordinator(t, client, hasty)}
		all.Go(func() {
			lock := fmt.Sprint("lock-", i)
			var mu sync.Mutex
			var account []write
			tenures := make([]int, len(contenders))
			began := make(chan *coordinator.Grant)
			fenced := func(g *coordinator.Grant) bool {
				resp, err := client.Txn(t.Context()).If(g.Fence()...).
					Then(clientv3.OpPut("resource/"+lock, g.Token().String())).
					Else(clientv3.OpGet("resource/"+lock, clientv3.WithCountOnly())).Commit()
				if err != nil {
					t.Error(err)
					return false
				}
				if resp.Succeeded {
					mu.Lock()
					defer mu.Unlock()
					account = append(account, write{resp.Header.Revision, g.Token()})
				}
				return resp.Succeeded
			}
			ctx, cancel := context.WithCancel(within(t, 3*patience))
			var pair sync.WaitGroup
			for n, c := range contenders {
				pair.Go(func() {
					err := c.Lead(ctx, lock, func(ctx context.Context, g *coordinator.Grant) error {
						mu.Lock()
						tenures[n]++
						mu.Unlock()
						fenced(g)
						select {
						case began <- g:
						case <-ctx.Done():
						}
						for ctx.Err() == nil {
							fenced(g)
						}
						// It has been told, and writes all the same.
						if !fenced(g) {
							refused.Add(1)
						}
						if errors.Is(g.Err(), coordinator.ErrLost) {
							lostWhileWriting.Add(1)
						}
						return errors.New("void")
					})
					if ctx.Err() == nil {
						t.Errorf("%s: contender %d gave up: %v", lock, n, err)
					}
				})
			}
			var last *coordinator.Grant
			for range losses + 1 {
				g := <-began
				if last != nil {
					if order, err := g.Token().Compare(last.Token()); err != nil || order <= 0 {
						t.Errorf("a tenure with token %s after one with %s", g.Token(), last.Token())
					}
				}
				if err := etcd.ExpireLease(t.Context(), g.Lease()); err != nil {
					t.Error(err)
				}
				last = g
			}
			cancel()
			pair.Wait()
			slices.SortFunc(account, func(a, b write) int { return cmp.Compare(a.revision, b.revision) })
			for i := 1; i < len(account); i++ {
				if account[i].token.Int64() < account[i-1].token.Int64() {
					t.Errorf("%s: a write under %s came after one under %s", lock, account[i].token, account[i-1].token)
				}
			}
			if tenures[0] < 2 || tenures[1] < 2 {
				t.Errorf("%s: tenures %v: one contender had none", lock, tenures)
			}
		})
	}
	all.Wait()
	t.Logf("%d tenures ended by loss, %d late writes were refused", lostWhileWriting.Load(), refused.Load())
	if refused.Load() < locks*losses {
		t.Errorf("%d late writes were refused, for %d forced losses", refused.Load(), locks*losses)
	}
}

func TestLeadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	cause := errors.New("shutting down")

	began := make(chan struct{})
	holding := lead(t, a, "orders", func(ctx context.Context, g *coordinator.Grant) error {
		close(began)
		<-ctx.Done()
		if g.Err() != nil {
			t.Errorf("the grant ended with fn's context: %v", g.Err())
		}
		return context.Cause(ctx)
	})
	receive(t, began, "the tenure")
	waiting := lead(t, b, "orders", func(context.Context, *coordinator.Grant) error {
		t.Error("led though it was told to stop")
		return nil
	})
	queued(t, etcd.Client(), "orders", 2)
	waiting.cancel(cause)
	// The key can be seen in the queue before its process has the answer.
	if err := waiting.returned(t); !errors.Is(err, cause) || !errors.Is(err, coordinator.ErrBusy) && !errors.Is(err, coordinator.ErrNoAnswer) {
		t.Errorf("Lead ended while waiting with %v", err)
	}
	queued(t, etcd.Client(), "orders", 1)
	holding.cancel(cause)
	if err := holding.returned(t); err != cause {
		t.Errorf("Lead ended while leading with %v, want what fn returned", err)
	}
	queued(t, etcd.Client(), "orders", 0)
}

func TestLeadEndsWithItsContextAfterALoss(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), hasty)
	cause := errors.New("shutting down")
	var l *leading
	ready := make(chan struct{})
	l = lead(t, a, "orders", func(ctx context.Context, g *coordinator.Grant) error {
		<-ready
		etcd.Expire(t, g)
		<-g.Context().Done()
		l.cancel(cause)
		return errors.New("void")
	})
	close(ready)
	if err := l.returned(t); !errors.Is(err, cause) {
		t.Errorf("Lead ended with %v", err)
	}
}

func TestLeadEndsWithTheCoordinator(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	began := make(chan struct{})
	stop := make(chan struct{})
	holding := lead(t, a, "orders", func(ctx context.Context, _ *coordinator.Grant) error {
		close(began)
		<-ctx.Done()
		<-stop
		return nil
	})
	receive(t, began, "the tenure")
	waiting := lead(t, b, "orders", func(context.Context, *coordinator.Grant) error { return nil })
	queued(t, etcd.Client(), "orders", 2)

	if err := b.Close(within(t, patience)); err != nil {
		t.Error(err)
	}
	if err := waiting.returned(t); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("Lead that waited returned %v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- a.Close(within(t, patience)) }()
	// fn is still at work: its lock stays.
	select {
	case err := <-closed:
		t.Errorf("Close did not wait for fn: %v", err)
	case <-holding.done:
		t.Error("Lead did not wait for fn")
	case <-time.After(50 * time.Millisecond):
	}
	queued(t, etcd.Client(), "orders", 1)
	close(stop)
	if err := receive(t, closed, "Close"); err != nil {
		t.Error(err)
	}
	err := holding.returned(t)
	if !errors.Is(err, coordinator.ErrClosed) || !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("Lead that led returned %v", err)
	}
	if err := a.Lead(t.Context(), "orders", func(context.Context, *coordinator.Grant) error { return nil }); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("Lead after Close returned %v", err)
	}
}

func TestBarriersRunAtEachTenure(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), hasty)
	var raised []revisionfence.Token
	failed := false
	var tenures []revisionfence.Token
	err := c.Lead(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
		tenures = append(tenures, g.Token())
		if raised[len(raised)-1] != g.Token() {
			t.Errorf("tenure of %s after barriers for %v", g.Token(), raised)
		}
		if len(tenures) == 3 {
			return nil
		}
		etcd.Expire(t, g)
		<-ctx.Done()
		return nil
	}, coordinator.Raise(func(_ context.Context, token revisionfence.Token) error {
		raised = append(raised, token)
		// A resource that is out of reach for a moment is worth another try.
		if len(raised) == 2 {
			failed = true
			return errors.New("the resource is away")
		}
		return nil
	}))
	if err != nil || !failed || len(tenures) != 3 || len(raised) != 4 {
		t.Errorf("%v; tenures %v, barriers for %v", err, tenures, raised)
	}
}

func TestPanicUnderLeadReleasesTheLock(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	runs := 0
	func() {
		defer func() {
			if p := recover(); p != "mine" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = c.Lead(within(t, patience), "orders", func(context.Context, *coordinator.Grant) error {
			runs++
			panic("mine")
		})
	}()
	if runs != 1 {
		t.Errorf("fn ran %d times", runs)
	}
	queued(t, etcd.Client(), "orders", 0)
}

func TestLeadReturnsWhatTryingAgainDoesNotCure(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, a, "orders")
	never := func(context.Context, *coordinator.Grant) error {
		t.Error("led")
		return nil
	}
	var busy *coordinator.BusyError
	err := b.Lead(within(t, patience), "orders", never, coordinator.WaitAtMost(500*time.Millisecond))
	if !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
		t.Errorf("the time to wait is over: %v", err)
	}
	if err := b.Lead(within(t, patience), "", never); !errors.Is(err, coordinator.ErrInvalidName) {
		t.Errorf("no name: %v", err)
	}
	if err := b.Lead(within(t, patience), "orders", never, coordinator.MaxHold(-1)); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("an option out of range: %v", err)
	}
	if err := a.Lead(g.Context(), "orders", never); !errors.Is(err, coordinator.ErrAlreadyHeld) {
		t.Errorf("under its own lock: %v", err)
	}
	release(t, g)
}
