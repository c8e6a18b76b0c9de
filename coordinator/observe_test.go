package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// sight is what an observer was shown.
type sight struct {
	holder coordinator.Holder
	err    error
}

// observing is an Observe that runs. It is shown the next thing only when the
// last was taken.
type observing struct {
	seen   chan sight
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func observe(t *testing.T, c *coordinator.Coordinator, lock string) *observing {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	o := &observing{seen: make(chan sight), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for h, err := range c.Observe(ctx, lock) {
			select {
			case o.seen <- sight{h, err}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() { // after the end of t's context
		cancel(nil)
		<-o.done
	})
	return o
}

func (o *observing) next(t *testing.T) coordinator.Holder {
	t.Helper()
	s := receive(t, o.seen, "a change")
	if s.err != nil {
		t.Fatalf("observe: %v", s.err)
	}
	return s.holder
}

// until takes what is shown until it is of a token.
func (o *observing) until(t *testing.T, token revisionfence.Token) (shown []coordinator.Holder) {
	t.Helper()
	for {
		shown = append(shown, o.next(t))
		if shown[len(shown)-1].Token == token {
			return shown
		}
	}
}

// quiet fails if anything is shown for a while.
func (o *observing) quiet(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case s := <-o.seen:
		t.Errorf("shown %v, %v, though nothing changed", s.holder, s.err)
	case <-time.After(d):
	}
}

func identified(identity string) coordinator.Options {
	opts := steady
	opts.Identity = identity
	return opts
}

func TestObserverSeesTheHolderChangesAndVacancies(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), identified("a"))
	b := newCoordinator(t, etcd.Client(), identified("b"))
	o := observe(t, newCoordinator(t, client, steady), "orders")
	if h := o.next(t); !h.IsZero() {
		t.Fatalf("a lock that nobody holds: shown %v", h)
	}
	first := acquire(t, a, "orders", coordinator.Reason("nightly"), coordinator.Value([]byte("here")))
	h := o.next(t)
	if h.Token != first.Token() || h.Identity != "a" || h.Reason != "nightly" || string(h.Value) != "here" || h.Lease != first.Lease() || h.Key != first.Key() {
		t.Errorf("shown %v of %s", h, first.Token())
	}
	next := ask(t, b, "orders")
	queued(t, client, "orders", 2)
	o.quiet(t, 50*time.Millisecond)
	if err := first.SetValue(t.Context(), []byte("there")); err != nil {
		t.Fatal(err)
	}
	if h := o.next(t); h.Token != first.Token() || string(h.Value) != "there" {
		t.Errorf("shown %v with %q, want the new value", h, h.Value)
	}
	release(t, first)
	second := next.granted(t)
	if h := o.next(t); h.Token != second.Token() || h.Identity != "b" {
		t.Errorf("shown %v of %s", h, second.Token())
	}
	release(t, second)
	if h := o.next(t); !h.IsZero() {
		t.Errorf("a lock that was released: shown %v", h)
	}
	// Who comes later is shown at once what is so.
	third := acquire(t, a, "orders")
	late := observe(t, b, "orders")
	if h := late.next(t); h.Token != third.Token() {
		t.Errorf("a new observer is shown %v of %s", h, third.Token())
	}
	release(t, third)
}

func TestSlowObserverSkipsToTheNewest(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	r := watchReads(w)
	o := observe(t, newCoordinator(t, client, steady), "orders")
	o.next(t)
	r.forget()
	g := acquire(t, a, "orders")
	r.await(t) // and now it is about to show the first grant
	const tenures = 50
	for range tenures {
		release(t, g)
		g = acquire(t, a, "orders")
	}
	shown := o.until(t, g.Token())
	if len(shown) > 3 {
		t.Errorf("shown %d holders of %d that passed while it was busy", len(shown), tenures)
	}
	o.quiet(t, 50*time.Millisecond)
	release(t, g)
}

func TestObserverSurvivesTheRestartOfAMember(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	o := observe(t, a, "orders")
	o.next(t)
	first := acquire(t, a, "orders")
	o.next(t)
	etcd.Stop(t)
	etcd.Restart(t)
	o.quiet(t, 50*time.Millisecond)
	release(t, first)
	second := acquire(t, a, "orders")
	last := revisionfence.Token{}
	for _, h := range o.until(t, second.Token()) {
		if !h.IsZero() && !last.IsZero() && h.Token.Int64() <= last.Int64() {
			t.Errorf("shown %s after %s", h.Token, last)
		}
		last = h.Token
	}
	release(t, second)
}

// While the observer is cut off, the lock passes on and the history of it is
// compacted away.
func TestObserverSurvivesCompaction(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	remote := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{proxy.Endpoint()} })
	a := newCoordinator(t, etcd.Client(), steady)
	o := observe(t, newCoordinator(t, remote, steady), "orders")
	o.next(t)
	first := acquire(t, a, "orders")
	if h := o.next(t); h.Token != first.Token() {
		t.Fatalf("shown %v", h)
	}
	proxy.Cut()
	release(t, first)
	second := acquire(t, a, "orders")
	if _, err := etcd.Client().Compact(t.Context(), second.Token().Revision()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Heal()
	for _, h := range o.until(t, second.Token()) {
		if h.Token == first.Token() {
			t.Errorf("shown %v once more", h)
		}
	}
	release(t, second)
}

// A watch may lose an event, or wait for a revision that a restored server will
// reach in an hour.
func TestObserverOfASilentWatchLooksAgain(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	o := observe(t, newCoordinator(t, client, hasty), "orders")
	o.next(t)
	onEvents(w, func(*pb.WatchResponse) error { return wire.ErrDrop })
	g := acquire(t, a, "orders")
	if h := o.next(t); h.Token != g.Token() {
		t.Errorf("shown %v of %s", h, g.Token())
	}
	release(t, g)
}

// Nothing else may be left either: tapped and cluster look for watches and
// goroutines when the test ends.
func TestObserverEndsWithItsContext(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	o := observe(t, c, "orders")
	o.next(t)
	cause := errors.New("enough")
	o.cancel(cause)
	if s := receive(t, o.seen, "the end"); !errors.Is(s.err, cause) || !errors.Is(s.err, context.Canceled) || !s.holder.IsZero() {
		t.Errorf("ended with %v, %v; want the cause", s.holder, s.err)
	}
	receive(t, o.done, "the end of the loop")
	eventually(t, "the watch ends", func() bool { return w.Open("Watch") == 0 })

	for h, err := range c.Observe(t.Context(), "orders") { // left at once
		if !h.IsZero() || err != nil {
			t.Errorf("shown %v, %v", h, err)
		}
		break
	}
	eventually(t, "the watch ends", func() bool { return w.Open("Watch") == 0 })

	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	shown := 0
	for _, err := range c.Observe(ended, "orders") {
		if shown++; !errors.Is(err, cause) {
			t.Errorf("a context that had ended: %v", err)
		}
	}
	if shown != 1 {
		t.Errorf("a context that had ended: shown %d times", shown)
	}
}

func TestObserverIsToldWhatIsIncurable(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	for _, err := range c.Observe(t.Context(), "") {
		if !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("no name: %v", err)
		}
	}
	o := observe(t, c, "orders")
	o.next(t)
	if err := c.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if s := receive(t, o.seen, "the end"); !errors.Is(s.err, coordinator.ErrClosed) {
		t.Errorf("closed: %v", s.err)
	}
	receive(t, o.done, "the end of the loop")
}
