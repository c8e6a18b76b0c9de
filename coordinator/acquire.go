package coordinator

import (
	"bytes"
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
	value    []byte
	maxHold  time.Duration
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

// Value publishes some bytes with the lock, for observers: where the leader can
// be reached, say. At most [MaxValue]. [Grant.SetValue] changes it.
func Value(value []byte) AcquireOption {
	return func(o *acquireOptions) {
		o.value = bytes.Clone(value)
		if err := checkValue(value); err != nil {
			o.err = err
		}
	}
}

// MaxHold bounds how long the grant is held: past that it is lost with
// [LostHeldTooLong] and the lock passes on, so that a holder that hangs does not
// keep it for as long as its process lives. It must be above 0. Without it there
// is no bound.
func MaxHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) {
		if o.maxHold = d; d <= 0 {
			o.err = fmt.Errorf("%w: MaxHold %v: must be above 0", ErrInvalidOption, d)
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
	directory, err := c.directory(lock)
	if err != nil {
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
	if c.holds(ctx, directory) {
		return nil, fmt.Errorf("acquire %q: %w", lock, ErrAlreadyHeld)
	}

	start := c.now()
	ctx = c.opts.Hooks.acquireStart(ctx, AcquireStart{Lock: lock, Reason: o.reason, Try: try})
	g, err := c.obtain(ctx, lock, directory, try, &o)
	end := AcquireEnd{Lock: lock, Waited: c.now().since(start), Err: err}
	if err == nil {
		end.Token = g.token
		c.metrics.waited.Observe(end.Waited.Seconds())
		if err = g.raise(ctx, o.barriers); err != nil {
			end.Token, end.Err = revisionfence.Token{}, err
		}
	}
	c.opts.Hooks.acquireEnd(ctx, end)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	return g, nil
}

// obtain waits for the grant.
func (c *Coordinator) obtain(ctx context.Context, lock, directory string, try bool, o *acquireOptions) (*Grant, error) {
	w := &waiter{ctx: ctx, lock: lock, reason: o.reason, value: o.value, maxHold: o.maxHold, try: try, result: make(chan result, 1)}
	q, err := c.join(w, directory)
	if err != nil {
		return nil, err
	}
	return q.wait(ctx, w, o.wait)
}

// join puts a waiter into the queue of its lock.
func (c *Coordinator) join(w *waiter, directory string) (*queue, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	q := c.queues[directory]
	if q == nil {
		if err := c.claimLocked(directory); err != nil {
			return nil, err
		}
		q = &queue{c: c, lock: w.lock, directory: directory, pause: newPause()}
		c.queues[directory] = q
	} else if w.try && (q.entry != nil || q.asking || q.waiters.Len() > 0) {
		if q.trouble != nil {
			return nil, q.trouble // nobody is known to hold it
		}
		return nil, &BusyError{Lock: w.lock, Holder: q.holderLocked()}
	}
	q.joinLocked(w)
	return q, nil
}

// holderLocked is whoever is known to hold the lock, this process first.
func (q *queue) holderLocked() Holder {
	if e := q.entry; e != nil && e.grant != nil {
		return e.holder()
	}
	return q.holder
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
		why = q.waitedForLocked(w)
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

// waitedForLocked is what a waiter has waited for: the holder of the lock, or
// etcd, if that has not said anything of the lock yet.
func (q *queue) waitedForLocked(w *waiter) error {
	h := q.holderLocked()
	if h.IsZero() && (q.entry == nil || q.entry.create == 0) {
		return errNoAnswer
	}
	return &BusyError{Lock: w.lock, Holder: h}
}

var errNoAnswer = errors.New("etcd has not answered")

// raise runs the barriers under the new grant. Nobody is left to release it if
// one of them fails, or panics.
func (g *Grant) raise(ctx context.Context, barriers []func(context.Context, revisionfence.Token) error) (err error) {
	if len(barriers) == 0 {
		return nil
	}
	bound, cancel := g.Bind(ctx)
	defer cancel()
	raised := false
	defer func() {
		if !raised {
			err = errors.Join(err, g.releaseQuietly(ctx))
		}
	}()
	for _, barrier := range barriers {
		if err := barrier(bound, g.token); err != nil {
			return fmt.Errorf("raise for %s: %w", g.token, err)
		}
	}
	if err := g.Err(); err != nil { // barriers can take longer than the lease
		return fmt.Errorf("raise for %s: %w", g.token, err)
	}
	raised = true
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
