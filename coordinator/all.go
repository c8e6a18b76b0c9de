package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// AcquireAll acquires all of the locks or none. Duplicates are taken once. The
// locks are taken one after another in an order that is the same for everybody,
// so that callers who want some of the same locks cannot wait for each other in
// a circle. (Putting all keys into their queues in one transaction would not
// do: behind a caller who holds one of them and waits for another, that is a
// deadlock.) It takes at most [MaxLocks].
//
// The options apply to each: barriers given with [Raise] run for each lock with
// its token, and [WaitAtMost] bounds the wait for each.
func (c *Coordinator) AcquireAll(ctx context.Context, locks []string, opts ...AcquireOption) (*Grants, error) {
	order, err := c.inOrder(locks)
	if err != nil {
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	if _, err := optionsOf(opts, false); err != nil {
		return nil, fmt.Errorf("acquire all: %w", err)
	}
	all := &Grants{c: c}
	// A lock that is lost while others are waited for ends the waiting.
	bound, stops := ctx, []context.CancelFunc{}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, lock := range order {
		g, err := c.Acquire(bound, lock, opts...)
		if err != nil {
			return nil, errors.Join(err, all.giveBack(ctx))
		}
		all.order = append(all.order, g)
		var stop context.CancelFunc
		// This keeps none of the others from being forgotten.
		bound, stop = g.bind(bound) //nolint:fatcontext // a chain of at most MaxLocks, one for each lock
		stops = append(stops, stop)
	}
	if err := all.Err(); err != nil { // lost while the last was granted
		return nil, errors.Join(fmt.Errorf("acquire all: %w", err), all.giveBack(ctx))
	}
	all.begin(ctx)
	return all, nil
}

// inOrder removes duplicates and sorts by directory, which is what excludes.
func (c *Coordinator) inOrder(locks []string) ([]string, error) {
	if len(locks) == 0 {
		return nil, fmt.Errorf("%w: no lock given", ErrInvalidOption)
	}
	type place struct{ directory, lock string }
	places := make([]place, 0, len(locks))
	for _, lock := range locks {
		d, err := c.directory(lock)
		if err != nil {
			return nil, err
		}
		places = append(places, place{d, lock})
	}
	slices.SortStableFunc(places, func(a, b place) int { return strings.Compare(a.directory, b.directory) })
	places = slices.CompactFunc(places, func(a, b place) bool { return a.directory == b.directory })
	if len(places) > MaxLocks {
		return nil, fmt.Errorf("%w: %d locks, at most %d at once", ErrInvalidOption, len(places), MaxLocks)
	}
	order := make([]string, len(places))
	for i, p := range places {
		order[i] = p.lock
	}
	return order, nil
}

func (a *Grants) begin(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, g := range a.order {
		ctx = context.WithValue(ctx, heldKey{}, &held{grant: g.hold, outer: heldIn(ctx)}) //nolint:fatcontext // as above
	}
	inner, cancel := context.WithCancelCause(ctx)
	for _, g := range a.order {
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
	// Whoever drives a queue is the only one who does anything for it at etcd:
	// for now that is this goroutine, for all of them.
	ok := c.spawnLocked(func() {
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
	if !ok {
		return
	}
	for _, g := range a.order {
		g.entry.q.driving = true
		g.endLocked(errReleased)
		g.leaveLocked()
	}
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
		g.entry.q.left(g.entry, nil, true)
	}
	return nil
}
