package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestTryAcquireAnyTakesTheFirstFreeLock(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	release(t, acquire(t, b, "warm")) // the session is open
	const busy = 150                  // two whole batches, and part of a third
	var locks []string
	for i := range 200 {
		locks = append(locks, fmt.Sprintf("job-%03d", i))
	}
	var all sync.WaitGroup
	for _, lock := range locks[:busy] {
		all.Go(func() {
			g, err := a.Acquire(within(t, patience), lock)
			if err != nil {
				t.Error(err)
			}
			keep(t, g)
		})
	}
	all.Wait()
	txns := count(w)
	w.Reset()
	g, err := b.TryAcquireAny(within(t, patience), slices.Values(locks))
	if err != nil || g.Lock() != locks[busy] {
		t.Fatalf("%v, %v, want %q", g, err, locks[busy])
	}
	// One read for 64 locks, and what the one that is free costs.
	if txns.of(reads) != 3 || txns.of(enters) != 1 || w.Calls("Txn") != 4 || w.Calls("Range") > 1 {
		t.Errorf("%v for %d busy locks", w.Counts(), busy)
	}
	stands(t, client, g)

	// What this process uses itself is not asked for, nor waited for.
	w.Reset()
	txns.reset()
	next, err := b.TryAcquireAny(within(t, patience), slices.Values(locks[busy:]))
	if err != nil || next.Lock() != locks[busy+1] {
		t.Fatalf("%v, %v, want %q", next, err, locks[busy+1])
	}
	var taken *coordinator.BusyError
	if _, err := b.TryAcquireAny(within(t, patience), slices.Values(locks[busy:busy+2])); !errors.As(err, &taken) || taken.Holder.Token != next.Token() || taken.Lock != next.Lock() {
		t.Errorf("all are ours: %v", err)
	}
	if txns.of(reads) != 1 {
		t.Errorf("%d reads", txns.of(reads))
	}
	if _, err := b.TryAcquireAny(g.Context(), slices.Values([]string{g.Lock()})); !errors.As(err, &taken) {
		t.Errorf("the lock of this very context: %v", err)
	}
	release(t, g)
	release(t, next)
}

func TestTryAcquireAnyOfBusyLocksNamesAHolder(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), identified("a"))
	b := newCoordinator(t, etcd.Client(), steady)
	acquire(t, a, "x")
	last := acquire(t, a, "y")
	var busy *coordinator.BusyError
	_, err := b.TryAcquireAny(within(t, patience), slices.Values([]string{"x", "y"}))
	if !errors.As(err, &busy) || busy.Lock != "y" || busy.Holder.Token != last.Token() || busy.Holder.Identity != "a" {
		t.Errorf("%v, want the holder of y", err)
	}
	queued(t, etcd.Client(), "x", 1)
	queued(t, etcd.Client(), "y", 1)
}

// A lock that was free when it was read may be taken when it is asked for.
func TestTryAcquireAnyGoesOnWhenOthersAreFaster(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	release(t, acquire(t, b, "warm"))
	var once sync.Once
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if transaction(call) == reads {
			once.Do(func() { acquire(t, a, "x") })
		}
		return err
	})
	g, err := b.TryAcquireAny(within(t, patience), slices.Values([]string{"x", "y"}))
	if err != nil || g.Lock() != "y" {
		t.Fatalf("%v, %v, want y", g, err)
	}
	queued(t, client, "x", 1)
	release(t, g)
}

func TestTryAcquireAnyReportsMisuse(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	if _, err := c.TryAcquireAny(t.Context(), slices.Values([]string(nil))); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("no lock: %v", err)
	}
	if _, err := c.TryAcquireAny(t.Context(), slices.Values([]string{"a", ""})); !errors.Is(err, coordinator.ErrInvalidName) {
		t.Errorf("a lock without a name: %v", err)
	}
	if _, err := c.TryAcquireAny(t.Context(), slices.Values([]string{"a"}), coordinator.WaitAtMost(time.Second)); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("it does not wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.TryAcquireAny(ctx, slices.Values([]string{"a"})); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	acquire(t, c, "a")
	if err := c.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquireAny(t.Context(), slices.Values([]string{"a"})); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Only that a lock is held is a reason to look at the next one.
func TestTryAcquireAnyTellsWhatIsMoreThanBusy(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	other := newCoordinator(t, etcd.Client(), steady)
	opts := steady
	opts.CleanupTimeout = 100 * time.Millisecond
	c := newCoordinator(t, client, opts)
	var busy *coordinator.BusyError

	guard := acquire(t, other, "guard")
	_, err := c.TryAcquireAny(within(t, patience), slices.Values([]string{"x", "y"}), coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		if token.Lock() != "x" {
			return nil
		}
		_, err := c.TryAcquire(ctx, "guard")
		return err
	}))
	if !errors.As(err, &busy) || busy.Holder.Token != guard.Token() {
		t.Errorf("a barrier found its own lock busy: %v", err)
	}
	queued(t, client, "x", 0)

	mine := acquire(t, c, "mine")
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	offered := 0
	_, err = c.TryAcquireAny(ctx, func(yield func(string) bool) {
		for offered < 100 && yield(mine.Lock()) {
			if offered++; offered == 10 {
				cancel(cause)
			}
		}
	})
	if !errors.Is(err, cause) || offered > 10 {
		t.Errorf("the context ended at the 10th lock that this process holds itself, at the %dth: %v", offered, err)
	}

	// No answer tells whether it was granted, and none comes any more.
	w.DropReply("Txn", 1, of(enters))
	ctx, cancel = context.WithCancelCause(t.Context())
	back := make(chan struct{})
	w.OnUnary(func(call context.Context, request *wire.Call) error {
		switch txn, _ := request.Request.(*pb.TxnRequest); {
		case txn == nil:
		case transaction(request) == releases, transaction(request) == reads && len(txn.Success) == 3:
			cancel(cause)
			<-back
		}
		return request.Send(call)
	})
	_, err = c.TryAcquireAny(ctx, slices.Values([]string{"x"}))
	if !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, cause) {
		t.Errorf("its key stands in the queue, and its context ended: %v", err)
	}
	queued(t, etcd.Client(), "x", 1)
	close(back)
	queued(t, etcd.Client(), "x", 0)
}

// A pool of workers in two processes shares a list of jobs. Each job is done
// once, though everybody is offered everything. (Not parallel: it leaves nothing
// of the machine to others.)
func TestPoolOfWorkersDoesEachJobOnce(t *testing.T) {
	const workers, names, jobs = 200, 10_000, 500
	etcd := cluster(t, nil)
	processes := []*coordinator.Coordinator{newCoordinator(t, etcd.Client(), steady), newCoordinator(t, etcd.Client(), steady)}
	var done, inside [names]atomic.Int32
	var finished atomic.Int32
	// open yields the jobs that are not known to be done, from a place on.
	open := func(from int) iter.Seq[string] {
		return func(yield func(string) bool) {
			for i := range names {
				if n := (from + i) % names; done[n].Load() == 0 && !yield(fmt.Sprintf("job-%d", n)) {
					return
				}
			}
		}
	}
	start := time.Now()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			c := processes[i%2]
			for finished.Load() < jobs {
				// Four begin at the same place, two of each process, to meet.
				g, err := c.TryAcquireAny(within(t, 3*patience), open(i/4*4*names/workers))
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				if _, err := fmt.Sscanf(g.Lock(), "job-%d", &n); err != nil {
					t.Error(err)
				}
				if in := inside[n].Add(1); in != 1 {
					t.Errorf("%s is done by %d at once", g.Lock(), in)
				}
				if done[n].Load() == 0 { // it may have been done before it was granted
					finished.Add(1)
				}
				done[n].Add(1)
				inside[n].Add(-1)
				if err := g.Release(within(t, patience)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d jobs of %d by %d workers in %v", finished.Load(), names, workers, time.Since(start))
}
