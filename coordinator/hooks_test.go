package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

type spanKey struct{}

// diary notes the calls of all hooks, in order.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, fmt.Sprintf(format, args...))
}

// read returns what was noted since the last read.
func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	entries := d.entries
	d.entries = nil
	return entries
}

func (d *diary) hooks() coordinator.Hooks {
	n := 0
	return coordinator.Hooks{
		AcquireStart: func(ctx context.Context, s coordinator.AcquireStart) context.Context {
			d.mu.Lock()
			n++
			span := fmt.Sprint("span-", n)
			d.mu.Unlock()
			d.note("start %s %q try=%v", s.Lock, s.Reason, s.Try)
			return context.WithValue(ctx, spanKey{}, span)
		},
		AcquireEnd: func(ctx context.Context, e coordinator.AcquireEnd) {
			var busy *coordinator.BusyError
			d.note("end %s in %v, token %t, busy %t", e.Lock, ctx.Value(spanKey{}), !e.Token.IsZero(), errors.As(e.Err, &busy))
			if (e.Err == nil) == e.Token.IsZero() || e.Waited < 0 {
				d.note("contradiction: %+v", e)
			}
		},
		ReleaseEnd: func(_ context.Context, e coordinator.ReleaseEnd) {
			d.note("release %s, not held %t", e.Token.Lock(), errors.Is(e.Err, coordinator.ErrNotHeld))
		},
		Lost: func(e *coordinator.LostError) { d.note("lost %s: %s", e.Token.Lock(), e.Reason) },
		SessionStart: func(s coordinator.SessionInfo) {
			d.note("session start, lease %t, ttl %v, epoch %d", s.Lease != 0, s.TTL, s.Epoch)
		},
		SessionEnd: func(s coordinator.SessionInfo, reason coordinator.LostReason) {
			d.note("session end, lease %t: %s", s.Lease != 0, reason)
		},
	}
}

func TestHooksAreCalledOnceAndInOrder(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	var d diary
	opts := brisk
	opts.Hooks = d.hooks()
	c := newCoordinator(t, etcd.Client(), opts)
	is := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, d.read()); diff != "" {
			t.Errorf("hooks (-want +got):\n%s", diff)
		}
	}
	g := acquire(t, c, "orders", coordinator.Reason("nightly"))
	is(`start orders "nightly" try=false`, "session start, lease true, ttl 3s, epoch 0", "end orders in span-1, token true, busy false")
	if g.Context().Value(spanKey{}) != "span-1" {
		t.Error("the grant does not keep the values of the hook's context")
	}
	if _, err := c.TryAcquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrBusy) {
		t.Error(err)
	}
	is(`start orders "" try=true`, "end orders in span-2, token false, busy true")
	release(t, g)
	is("release orders, not held false")

	// A barrier works under the hook's context too, and its error ends the acquire.
	mine := errors.New("the resource is away")
	if _, err := c.Acquire(t.Context(), "orders", coordinator.Raise(func(ctx context.Context, _ revisionfence.Token) error {
		d.note("barrier in %v", ctx.Value(spanKey{}))
		return mine
	})); !errors.Is(err, mine) {
		t.Error(err)
	}
	is(`start orders "" try=false`, "barrier in span-3", "release orders, not held false", "end orders in span-3, token false, busy false")

	if err := c.Do(t.Context(), "orders", func(ctx context.Context, _ *coordinator.Grant) error {
		d.note("work in %v", ctx.Value(spanKey{}))
		return nil
	}); err != nil {
		t.Error(err)
	}
	got := d.read()
	if want := []string{`start orders "" try=false`, "end orders in span-4, token true, busy false", "work in <nil>", "release orders, not held false"}; !slices.Equal(got, want) {
		t.Errorf("Do: %q, want %q", got, want)
	}

	all := acquireAll(t, c, []string{"b", "a"})
	is(`start a "" try=false`, `start b "" try=false`, "end a in span-5, token true, busy false", "end b in span-6, token true, busy false")
	if err := all.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	is("release a, not held false", "release b, not held false")

	g = acquire(t, c, "orders")
	etcd.Expire(t, g)
	_ = ended(t, g)
	eventually(t, "the end of the session is told", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.entries) >= 4
	})
	is(`start orders "" try=false`, "end orders in span-7, token true, busy false", "lost orders: lease revoked", "session end, lease true: lease revoked")
	if err := g.Release(t.Context()); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Error(err)
	}
	is("release orders, not held true")

	acquire(t, c, "last")
	if err := c.Close(within(t, patience)); err != nil {
		t.Error(err)
	}
	is(`start last "" try=false`, "session start, lease true, ttl 3s, epoch 0", "end last in span-8, token true, busy false", "lost last: coordinator closed", "session end, lease true: coordinator closed")
}

// A session that nobody needs any more when it is open has begun and ended.
func TestHooksOfASessionThatCameTooLate(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	var d diary
	opts := steady
	opts.Hooks = d.hooks()
	c := newCoordinator(t, client, opts)
	latch := w.HoldReply("Txn", of(enrols))
	pinged := make(chan error, 1)
	go func() { pinged <- c.Ping(within(t, patience)) }()
	held(t, latch)
	closed := make(chan error, 1)
	go func() { closed <- c.Close(within(t, patience)) }()
	eventually(t, "Close has begun", func() bool { return c.Health().Closed })
	latch.Release()
	if err := receive(t, closed, "Close"); err != nil {
		t.Error(err)
	}
	if err := receive(t, pinged, "Ping"); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("ping: %v", err)
	}
	if want := []string{"session start, lease true, ttl 1m0s, epoch 0", "session end, lease true: coordinator closed"}; !slices.Equal(d.read(), want) {
		t.Error("the session did not begin and end once")
	}
}

// The hook's context may bound an acquire, as one with a deadline of its own.
func TestContextOfTheHookIsTheOneThatWaits(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	opts := steady
	cause := errors.New("told by the hook")
	first := true
	opts.Hooks.AcquireStart = func(ctx context.Context, _ coordinator.AcquireStart) context.Context {
		if first {
			first = false
			return ctx
		}
		ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Millisecond, cause)
		t.Cleanup(cancel)
		return ctx
	}
	c := newCoordinator(t, etcd.Client(), opts)
	g := acquire(t, c, "orders")
	if _, err := c.Acquire(within(t, patience), "orders"); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	release(t, g)
}
