package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// AcquireOption adjusts one acquire.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	wait     time.Duration
	reason   string
	barriers []func(context.Context, revisionfence.Token) error
	err      error
}

// WaitAtMost bounds the waiting for the lock, beside the context. When it is
// over, Acquire fails with a *[BusyError]. It must be above 0; to not wait at
// all, use [Coordinator.TryAcquire].
func WaitAtMost(d time.Duration) AcquireOption {
	return func(o *acquireOptions) {
		if o.wait = d; d <= 0 {
			o.err = fmt.Errorf("%w: WaitAtMost %v: must be above 0 (TryAcquire does not wait)", ErrInvalidOption, d)
		}
	}
}

// Reason tells people who ask for the holder what the lock is needed for: at
// most 1024 bytes of UTF-8 without control characters.
func Reason(text string) AcquireOption {
	return func(o *acquireOptions) {
		o.reason = text
		if err := checkText("Reason", text, maxReason); err != nil {
			o.err = err
		}
	}
}

// Raise runs the barriers after the grant and before Acquire returns it: each is
// the Advance of a guard for a resource that this lock covers. Once it has
// returned, no older holder can change the resource, so what is read from then
// on stays true. Without it, the state that a new holder reads can still be
// overwritten by a write of the old one that is under way.
//
// If a barrier fails, the lock is released and its error returned.
func Raise(barriers ...func(context.Context, revisionfence.Token) error) AcquireOption {
	return func(o *acquireOptions) { o.barriers = append(o.barriers, barriers...) }
}

// Acquire waits for the lock and returns the grant. Waiters of one process are
// served in the order in which they came, and processes take turns.
//
// Cancelling ctx ends the waiting and nothing else: a grant that was returned
// does not end with it. When ctx ends, the error is ctx's own and also a
// *[BusyError] that names the holder, if the lock was held. It is also an
// [ErrUnsettled] if what the call left at etcd could not be removed within
// [Options.CleanupTimeout]; that goes on in the background then, and no grant
// comes of it.
//
// While etcd cannot be reached, Acquire goes on trying until ctx ends.
func (c *Coordinator) Acquire(ctx context.Context, lock string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, lock, false, opts)
}

// TryAcquire returns the grant if the lock is free, and otherwise a *[BusyError]
// that names the holder. It does not wait for the lock, only for etcd's answers.
// A lock that is just changing hands between goroutines of this process counts
// as held.
func (c *Coordinator) TryAcquire(ctx context.Context, lock string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, lock, true, opts)
}

func (c *Coordinator) acquire(ctx context.Context, lock string, try bool, opts []AcquireOption) (*Grant, error) {
	var o acquireOptions
	for _, opt := range opts {
		opt(&o)
	}
	if err := revisionfence.CheckName(lock); err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	if o.err == nil && try && o.wait > 0 {
		o.err = fmt.Errorf("%w: WaitAtMost: TryAcquire does not wait", ErrInvalidOption)
	}
	if o.err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, o.err)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, endOf(ctx))
	}
	directory := c.keys.directory(lock)
	if c.holds(ctx, directory) {
		return nil, fmt.Errorf("acquire %q: %w", lock, ErrAlreadyHeld)
	}

	w := &waiter{ctx: ctx, reason: o.reason, try: try, result: make(chan result, 1)}
	q, err := c.join(w, lock, directory)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	g, err := q.wait(ctx, w, o.wait)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	if err := g.raise(ctx, o.barriers); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	return g, nil
}

// join puts a waiter into the queue of its lock.
func (c *Coordinator) join(w *waiter, lock, directory string) (*queue, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	q := c.queues[directory]
	if q == nil {
		q = &queue{c: c, lock: lock, directory: directory, pause: newPause()}
		c.queues[directory] = q
	} else if w.try && (q.entry != nil || q.asking || q.waiters.Len() > 0) {
		return nil, q.busyLocked()
	}
	q.joinLocked(w)
	return q, nil
}

// busyLocked names whoever holds the lock, this process first.
func (q *queue) busyLocked() *BusyError {
	h := q.holder
	if e := q.entry; e != nil && e.grant != nil {
		h = e.holder()
	}
	return &BusyError{Lock: q.lock, Holder: h}
}

// wait waits for the waiter's result.
func (q *queue) wait(ctx context.Context, w *waiter, atMost time.Duration) (*Grant, error) {
	var late <-chan time.Time
	if atMost > 0 {
		t := time.NewTimer(atMost)
		defer t.Stop()
		late = t.C
	}
	var cause error
	select {
	case r := <-w.result:
		return r.grant, r.err
	case <-late:
	case <-ctx.Done():
		cause = endOf(ctx)
	}

	q.c.mu.Lock()
	why := q.trouble
	if why == nil {
		why = q.busyLocked()
	}
	q.c.mu.Unlock()
	left, settled := q.withdraw(w)
	if !left {
		r := <-w.result
		return r.grant, r.err // answered at the same moment
	}
	if cause != nil {
		why = fmt.Errorf("%w: %w", cause, why)
	}
	grace := time.NewTimer(q.c.opts.CleanupTimeout)
	defer grace.Stop()
	select {
	case <-settled:
		return nil, why
	case <-grace.C:
		return nil, fmt.Errorf("%w: %w", why, ErrUnsettled)
	}
}

// endOf is why a context ended: its own error, and its cause where that says more.
func endOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}

// raise runs the barriers under the new grant.
func (g *Grant) raise(ctx context.Context, barriers []func(context.Context, revisionfence.Token) error) error {
	if len(barriers) == 0 {
		return nil
	}
	bound, cancel := g.Bind(ctx)
	defer cancel()
	for _, barrier := range barriers {
		if err := barrier(bound, g.token); err != nil {
			return errors.Join(fmt.Errorf("raise for %s: %w", g.token, err), g.releaseQuietly(ctx))
		}
	}
	return nil
}

// releaseQuietly releases a grant whose holder cannot do so itself, also when
// its context has ended. Only an outcome that is not known is worth telling.
func (g *Grant) releaseQuietly(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.entry.q.c.opts.CleanupTimeout)
	defer cancel()
	if err := g.Release(ctx); errors.Is(err, ErrUnsettled) {
		return err
	}
	return nil
}
