package coordinator_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// asksBack is code of a user's that the coordinator calls: whatever it is called
// for, it asks the coordinator something.
type asksBack struct {
	slog.Handler
	asked atomic.Pointer[coordinator.Coordinator]
	calls atomic.Int64
}

func (b *asksBack) ask() {
	b.calls.Add(1)
	if c := b.asked.Load(); c != nil {
		c.Health()
	}
}

func (b *asksBack) Enabled(context.Context, slog.Level) bool           { b.ask(); return true }
func (b *asksBack) Handle(context.Context, slog.Record) error          { b.ask(); return nil }
func (b *asksBack) WithAttrs([]slog.Attr) slog.Handler                 { return b }
func (b *asksBack) WithGroup(string) slog.Handler                      { return b }
func (b *asksBack) context(ctx context.Context) context.Context        { return &asksBackContext{ctx, b} }
func (b *asksBack) put(c *coordinator.Coordinator)                     { b.asked.Store(c) }
func (b *asksBack) acquireEnd(context.Context, coordinator.AcquireEnd) { b.ask() }

// asksBackContext does so in each of its methods.
type asksBackContext struct {
	context.Context
	b *asksBack
}

func (c *asksBackContext) Value(key any) any           { c.b.ask(); return c.Context.Value(key) }
func (c *asksBackContext) Done() <-chan struct{}       { c.b.ask(); return c.Context.Done() }
func (c *asksBackContext) Err() error                  { c.b.ask(); return c.Context.Err() }
func (c *asksBackContext) Deadline() (time.Time, bool) { c.b.ask(); return c.Context.Deadline() }

// A log handler, a hook and a context are a user's code. Called while the
// coordinator holds its own lock, one that asks it something would stop the
// process for ever.
func TestUsersCodeMayAskTheCoordinator(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, &embedded.Options{})
	back := &asksBack{}
	client, w := tapped(t, etcd, func(c *clientv3.Config) { c.Context = back.context(context.WithoutCancel(t.Context())) })
	opts := coordinator.Options{TTL: 2 * time.Second, Logger: slog.New(back), Hooks: coordinator.Hooks{
		AcquireEnd:   back.acquireEnd,
		ReleaseEnd:   func(context.Context, coordinator.ReleaseEnd) { back.ask() },
		Lost:         func(*coordinator.LostError) { back.ask() },
		SessionStart: func(coordinator.SessionInfo) { back.ask() },
		SessionEnd:   func(coordinator.SessionInfo, coordinator.LostReason) { back.ask() },
	}}
	// Closed below: a Close that waits for ever would keep the test from failing.
	c, err := coordinator.New(client, &opts)
	if err != nil {
		t.Fatal(err)
	}
	other := newCoordinator(t, etcd.Client(), steady)
	back.put(c)
	ctx := back.context(within(t, patience))
	get := func(lock string, opts ...coordinator.AcquireOption) *coordinator.Grant {
		g, err := c.Acquire(ctx, lock, opts...)
		if err != nil {
			t.Fatal(err)
		}
		keep(t, g)
		return g
	}

	steps := map[string]func(){
		"refused release": func() {
			g := get("refused")
			refusal := w.FailBefore("Txn", -1, of(releases), wire.Code(codes.PermissionDenied))
			_ = g.Release(ctx) // after three TTLs
			refusal.Remove()
		},
		"eviction": func() {
			g := get("evicted")
			if err := other.Evict(ctx, g.Token(), "test"); err != nil {
				t.Error(err)
			}
			_ = ended(t, g)
		},
		"held too long": func() { _ = ended(t, get("long", coordinator.MaxHold(time.Millisecond))) },
		"settled": func() {
			w.DropReply("Txn", 1, of(enters))
			_ = get("settled").Release(ctx)
		},
		"several": func() {
			if all, err := c.AcquireAll(ctx, []string{"a", "b"}); err == nil {
				_ = all.Context().Err()
				_ = all.Release(ctx)
			}
		},
		"handed on": func() {
			g := get("handed")
			next := make(chan *coordinator.Grant)
			go func() { h, _ := c.Acquire(ctx, "handed"); next <- h }()
			eventually(t, "another waits", func() bool { return c.Health().Waiting > 0 })
			_, _ = c.TryAcquire(ctx, "handed")
			_ = g.Release(ctx)
			if h := <-next; h != nil {
				bound, cancel := h.Bind(ctx)
				_ = bound.Err()
				cancel()
				_ = h.SetValue(ctx, []byte("v"))
				_ = h.Release(ctx)
			}
		},
		"do": func() {
			_ = c.Do(ctx, "do", func(context.Context, *coordinator.Grant) error { return nil })
		},
	}
	done := make(chan string, len(steps))
	for name, step := range steps {
		go func() { step(); done <- name }()
	}
	for range len(steps) {
		select {
		case name := <-done:
			delete(steps, name)
		case <-time.After(patience):
			for name := range steps {
				t.Errorf("%s: the coordinator waits for itself", name)
			}
			t.FailNow()
		}
	}
	g := get("revoked")
	if _, err := etcd.Client().Revoke(t.Context(), g.Lease()); err != nil {
		t.Fatal(err)
	}
	_ = ended(t, g)
	release(t, get("at last"))
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	if back.calls.Load() < 50 {
		t.Errorf("the user's code was called %d times only: this test is about nothing", back.calls.Load())
	}
}
