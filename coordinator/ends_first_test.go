package coordinator_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// endings watches, at the moment at which a client sends away a lock key, or the
// lease that it hangs on, whether the grant of it has ended in this process. From
// then on somebody else may hold the lock.
type endings struct {
	mu   sync.Mutex
	held map[string]func() bool // whether a key's grant is relied on
	sent int                    // deletes of keys with a grant
	bad  []string
}

func watchEndings(w *wire.Wire) *endings {
	e := &endings{held: make(map[string]func() bool)}
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		e.mu.Lock()
		switch request := call.Request.(type) {
		case *pb.TxnRequest:
			// The last first: one that is just ending keeps whoever asks it waiting.
			for _, op := range slices.Backward(request.Success) {
				if d := op.GetRequestDeleteRange(); d != nil && strings.HasPrefix(string(d.Key), locksPrefix) {
					e.givesUp(string(d.Key), transactionOf(request))
				}
			}
		case *pb.LeaseRevokeRequest:
			for key := range e.held {
				e.givesUp(key, "revoke")
			}
		}
		e.mu.Unlock()
		return call.Send(ctx)
	})
	return e
}

func (e *endings) givesUp(key, how string) {
	held := e.held[key]
	if held == nil {
		return
	}
	if e.sent++; held() {
		e.bad = append(e.bad, how+" of "+key)
	}
	delete(e.held, key)
}

// crowd is how many contexts hang on each watched grant. Ending it takes some
// milliseconds then, as with a server that has many requests under it, and so
// whoever does not wait for the end shows.
const crowd = 20_000

func (e *endings) watch(t *testing.T, grants ...*coordinator.Grant) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range grants {
		for range crowd {
			_, cancel := context.WithCancel(g.Context())
			t.Cleanup(cancel)
		}
		e.held[g.Key()] = func() bool { return g.Err() == nil || g.Context().Err() == nil }
	}
}

// gone waits until so many of the watched keys were given up.
func (e *endings) gone(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the locks are given up", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.sent >= n
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.bad) > 0 {
		t.Errorf("others may hold what this process still relies on: %s", strings.Join(e.bad, ", "))
	}
	if e.sent != n || len(e.held) > 0 {
		t.Errorf("%d keys were given up, want %d; %d grants are left", e.sent, n, len(e.held))
	}
	e.sent, e.bad = 0, nil
}

// Whichever way a lock is given up, its grant has ended before.
func TestGrantEndsBeforeItsLockIsGivenUp(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	e := watchEndings(w)
	c := newCoordinator(t, client, steady)
	mine := errors.New("that will do")

	ways := []struct {
		name string
		n    int
		do   func(t *testing.T)
	}{
		{"release", 1, func(t *testing.T) {
			g := acquire(t, c, "a")
			e.watch(t, g)
			release(t, g)
		}},
		{"hand-on", 1, func(t *testing.T) {
			g := acquire(t, c, "a")
			next := ask(t, c, "a")
			e.watch(t, g)
			release(t, g)
			release(t, next.granted(t))
		}},
		{"release of all together", 2, func(t *testing.T) {
			all := acquireAll(t, c, []string{"a", "b"})
			e.watch(t, all.Grant("a"), all.Grant("b"))
			releaseAll(t, all)
		}},
		{"release of all one by one", 2, func(t *testing.T) {
			all := acquireAll(t, c, []string{"a", "b"})
			next := ask(t, c, "b")
			e.watch(t, all.Grant("a"), all.Grant("b"))
			releaseAll(t, all)
			release(t, next.granted(t))
		}},
		{"held too long", 1, func(t *testing.T) {
			e.watch(t, acquire(t, c, "a", coordinator.MaxHold(300*time.Millisecond)))
		}},
		{"forgotten", 1, func(t *testing.T) {
			func() {
				g := obtain(t, c, "a")
				done := g.Context().Done() // which does not keep the grant
				e.mu.Lock()
				defer e.mu.Unlock()
				e.held[g.Key()] = func() bool { return open(done) }
			}()
			eventually(t, "forgotten", func() bool { runtime.GC(); return c.Health().Held == 0 })
		}},
		{"do", 1, func(t *testing.T) {
			if err := c.Do(within(t, patience), "a", func(_ context.Context, g *coordinator.Grant) error {
				e.watch(t, g)
				return mine
			}); !errors.Is(err, mine) {
				t.Error(err)
			}
		}},
		{"lead", 1, func(t *testing.T) {
			if err := c.Lead(within(t, patience), "a", func(_ context.Context, g *coordinator.Grant) error {
				e.watch(t, g)
				return mine
			}); !errors.Is(err, mine) {
				t.Error(err)
			}
		}},
		{"a barrier that fails", 1, func(t *testing.T) {
			if _, err := c.Acquire(within(t, patience), "a", barrierOf(e, "a", mine)); !errors.Is(err, mine) {
				t.Error(err)
			}
		}},
		{"all given back", 2, func(t *testing.T) {
			if _, err := c.AcquireAll(within(t, patience), []string{"a", "b"}, barrierOf(e, "b", mine)); !errors.Is(err, mine) {
				t.Error(err)
			}
		}},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			way.do(t)
			e.gone(t, way.n)
		})
	}
	t.Run("close", func(t *testing.T) {
		all := acquireAll(t, c, []string{"a", "b"})
		e.watch(t, all.Grant("a"), all.Grant("b"))
		if err := c.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
		e.gone(t, 2)
	})
}

// barrierOf watches the grants that barriers run under, and fails for one of the
// locks: its own context must have ended too.
func barrierOf(e *endings, lock string, err error) coordinator.AcquireOption {
	return coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		key, held := coordinator.Relied(ctx)
		e.held[key] = func() bool { return held() || token.Lock() == lock && ctx.Err() == nil }
		if token.Lock() == lock {
			return err
		}
		return nil
	})
}

func open(done <-chan struct{}) bool {
	select {
	case <-done:
		return false
	default:
		return true
	}
}
