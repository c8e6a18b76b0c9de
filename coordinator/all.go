package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// MaxLocks is how many locks [Coordinator.AcquireAll] takes at once: as many
// compares as leave room for a transaction's own.
const MaxLocks = 64

// Grants are several locks held at once. Each has its own token: no single token
// stands for two locks.
type Grants struct {
	c      *Coordinator
	order  []*Grant        // in the order in which they were taken
	outer  context.Context // what Context returns: keeps the Grants from being garbage
	cancel context.CancelCauseFunc
	unhook []func() bool
}

// AcquireAll acquires all of the locks or none. Duplicates are taken once. If all
// are free they are taken with one request. Otherwise they are taken one after
// another in an order that is the same for everybody, so that callers who want
// some of the same locks cannot wait for each other in a circle. (Putting keys
// into queues that are not empty in one transaction would not do: behind a caller
// who holds one of the locks and waits for another, that is a deadlock.) It takes
// at most [MaxLocks].
//
// The options apply to each: barriers given with [Raise] run for each lock with
// its token, and [WaitAtMost] bounds the wait for each. Its errors are those of
// [Coordinator.Acquire], for one of the locks; what was taken before is given
// back, and an [ErrUnsettled] is joined if that is not known to be done.
func (c *Coordinator) AcquireAll(ctx context.Context, locks []string, opts ...AcquireOption) (_ *Grants, err error) {
	o, err := optionsOf(opts, false)
	if err != nil {
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	order, err := c.inOrder(locks)
	if err != nil {
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	if err := live(ctx); err != nil {
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	for _, p := range order {
		if c.holds(ctx, p.directory) {
			return nil, fmt.Errorf("acquire %q: %w", p.lock, ErrAlreadyHeld)
		}
	}
	all := &Grants{c: c}
	returned := false
	defer func() { // also if a barrier or a hook panics
		if !returned {
			err = errors.Join(err, all.giveBack(ctx))
		}
	}()
	if err := all.take(ctx, order, o); err != nil {
		return nil, err
	}
	if err := all.Err(); err != nil { // lost while the last was granted
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	all.begin(ctx)
	returned = true
	return all, nil
}

// take acquires the locks. With an error, a.order has what is to be given back.
func (a *Grants) take(ctx context.Context, order []site, o *acquireOptions) (failed error) {
	c := a.c
	var acquires []*acquiring
	for _, p := range order {
		acquires = append(acquires, c.begins(ctx, p.lock, p.directory, false, o))
	}
	at := heldIn(ctx)
	began := c.now()
	together, failed := c.tryTogether(ctx, acquires, o.wait)
	wait := o.wait
	if wait > 0 { // that was part of it; at 0 it would be endless
		wait = max(wait-c.now().since(began), time.Nanosecond)
	}
	for _, g := range together {
		at = &held{grant: g.hold, outer: at}
	}
	a.order = append(a.order, together...)
	// A lock that is lost while others are waited for ends the waiting.
	lost, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	for i, acquire := range acquires {
		if failed != nil {
			_, _ = acquire.ends(nil, failed)
			continue
		}
		bound, cancel := context.WithCancelCause(context.WithValue(acquire.ctx, heldKey{}, at))
		defer cancel(nil)
		defer context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })()
		acquire.ctx = bound //nolint:fatcontext // each lock has one of its own
		if together != nil {
			if _, failed = acquire.ends(together[i], nil); failed != nil {
				a.order = slices.DeleteFunc(a.order, func(g *Grant) bool { return g == together[i] }) // released
			}
			continue
		}
		acquire.start = c.now()
		var g *Grant
		if g, failed = acquire.ends(c.obtain(bound, acquire.waiter(), acquire.directory, wait)); failed != nil {
			continue
		}
		a.order = append(a.order, g)
		at = &held{grant: g.hold, outer: at} // this keeps none of the others from being forgotten
		defer g.onEnd(lose)()
	}
	return failed
}

// site is a lock and where its queue lies.
type site struct{ directory, lock string }

// inOrder removes duplicates and sorts by directory, which is what excludes.
func (c *Coordinator) inOrder(locks []string) ([]site, error) {
	if len(locks) == 0 {
		return nil, fmt.Errorf("%w: no lock given", ErrInvalidOption)
	}
	places := make([]site, 0, len(locks))
	for _, lock := range locks {
		d, err := c.directory(lock)
		if err != nil {
			return nil, err
		}
		places = append(places, site{d, lock})
	}
	slices.SortStableFunc(places, func(a, b site) int { return strings.Compare(a.directory, b.directory) })
	places = slices.CompactFunc(places, func(a, b site) bool { return a.directory == b.directory })
	if len(places) > MaxLocks {
		return nil, fmt.Errorf("%w: %d locks, at most %d at once", ErrInvalidOption, len(places), MaxLocks)
	}
	return places, nil
}

func (a *Grants) begin(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, g := range a.order {
		ctx = context.WithValue(ctx, heldKey{}, &held{grant: g.hold, outer: heldIn(ctx)}) //nolint:fatcontext // as above
	}
	inner, cancel := context.WithCancelCause(ctx)
	var siblings []*hold
	for _, g := range a.order {
		siblings = append(siblings, g.hold)
	}
	for _, g := range a.order {
		g.siblings.Store(&siblings)
		a.unhook = append(a.unhook, g.onEnd(cancel))
	}
	a.cancel, a.outer = cancel, context.WithValue(inner, keepKey{}, a)
}

// giveBack releases what was taken so far. Only outcomes that are not known are
// worth telling.
func (a *Grants) giveBack(ctx context.Context) error {
	ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel() // so that CleanupTimeout bounds it
	err := a.release(ended)
	if !errors.Is(err, ErrUnsettled) {
		return nil
	}
	return err
}

// Grant returns the grant of one of the locks, nil if it is not among them. Names
// that [Options.Directory] puts into one place are one lock, whose token has one
// of the names.
func (a *Grants) Grant(lock string) *Grant {
	directory, err := a.c.directory(lock)
	if err != nil {
		return nil
	}
	for _, g := range a.order {
		if g.entry.q.directory == directory {
			return g
		}
	}
	return nil
}

// All yields the grants, in the order of their locks' places in etcd: for guards
// that want each token with its resource.
func (a *Grants) All() iter.Seq2[string, *Grant] {
	return func(yield func(string, *Grant) bool) {
		for _, g := range a.order {
			if !yield(g.Lock(), g) {
				return
			}
		}
	}
}

// Context returns a context that ends as soon as one of the grants has ended,
// with its reason as the cause. It carries no token, since there are several.
func (a *Grants) Context() context.Context {
	if err := a.Err(); err != nil {
		a.cancel(err) // now, where the grant's own end would do it soon
	}
	return a.outer
}

// Err returns nil while all grants may be relied on; see [Grant.Err].
func (a *Grants) Err() error {
	for _, g := range a.order {
		if err := g.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Fence returns the compares of all grants.
func (a *Grants) Fence() []clientv3.Cmp {
	var fence []clientv3.Cmp
	for _, g := range a.order {
		fence = append(fence, g.Fence()...)
	}
	return fence
}

// Release gives all locks up, in one transaction if nobody in this process waits
// for any of them. See [Grant.Release] for its errors, which are joined.
func (a *Grants) Release(ctx context.Context) error {
	for _, stop := range a.unhook {
		stop()
	}
	a.cancel(errReleased)
	return a.release(ctx)
}

// release starts all releases before it waits for any, so that they have one
// bound together.
func (a *Grants) release(ctx context.Context) error {
	a.leaveTogether()
	errs := make([]error, len(a.order))
	for i, g := range a.order {
		errs[i] = g.beginRelease()
	}
	grace, cancel := graceful(ctx, a.c.opts.CleanupTimeout)
	defer cancel()
	for i, g := range a.order {
		if errs[i] == nil {
			errs[i] = g.awaitRelease(ctx, grace)
		}
		a.c.opts.Hooks.releaseEnd(ctx, ReleaseEnd{Token: g.token, Err: errs[i]})
	}
	return errors.Join(errs...)
}

// leaveTogether gives up all locks in one transaction, where that is all there
// is to do. What it cannot settle is left to the drivers of the single queues.
func (a *Grants) leaveTogether() {
	c := a.c
	if len(a.order) < 2 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range a.order {
		e, q := g.entry, g.entry.q
		if g.leaving || g.ctx.Err() != nil || e.lost != "" || e.slow || q.driving || q.waiters.Len() > 0 || e.s != a.order[0].entry.s {
			return
		}
	}
	if c.drained {
		return // the driver's goroutine would not start, and the keys went with the lease
	}
	// Whoever drives a queue is the only one who does anything for it at etcd:
	// for now that is one goroutine, for all of them. It starts only when all of
	// the grants have ended: once it has sent the deletes, others may hold the
	// locks, and ending a grant takes as long as it has contexts under it.
	for _, g := range a.order {
		g.entry.q.driving = true
		g.endLocked(errReleased)
		g.leaveLocked()
	}
	c.spawnLocked(func() {
		if err := a.deleteAll(); err != nil {
			c.log.Debug("locks not released together", "locks", len(a.order), "error", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, g := range a.order {
			q := g.entry.q
			q.driving = false
			q.startLocked()
		}
	})
}

func (a *Grants) deleteAll() error {
	s := a.order[0].entry.s
	var deletes []clientv3.Op
	for _, g := range a.order {
		deletes = append(deletes, clientv3.OpDelete(g.entry.key))
	}
	ctx, cancel := context.WithTimeout(s.ctx, a.c.callTimeout)
	defer cancel()
	resp, err := a.c.kv.Txn(ctx).If(a.Fence()...).Then(deletes...).Else(clientv3.OpGet(s.key, clientv3.WithKeysOnly())).Commit()
	switch {
	case err != nil:
		if !etcdonce.Definite(err) {
			for _, g := range a.order {
				g.entry.asked = true
			}
		}
		return err
	case !resp.Succeeded:
		return ErrNotHeld
	}
	for _, g := range a.order {
		g.entry.q.left(g.entry, nil)
	}
	return nil
}
