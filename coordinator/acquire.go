package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

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
// that names the holder. It does not wait for the lock, only for etcd's answers:
// for ten seconds at most, and [Options.CleanupTimeout]. An etcd that has not
// answered by then is an [ErrNoAnswer], not a lock that somebody holds. A lock that is just changing hands between goroutines of this process
// counts as held.
func (c *Coordinator) TryAcquire(ctx context.Context, lock string, opts ...AcquireOption) (*Grant, error) {
	return c.acquire(ctx, lock, true, opts)
}

func (c *Coordinator) acquire(ctx context.Context, lock string, try bool, opts []AcquireOption) (*Grant, error) {
	directory, err := c.directory(lock)
	if err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	o, err := optionsOf(opts, try)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	if err := live(ctx); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", lock, err)
	}
	if c.holds(ctx, directory) {
		return nil, fmt.Errorf("acquire %q: %w", lock, ErrAlreadyHeld)
	}

	a := c.begins(ctx, lock, directory, try, o)
	return a.ends(c.obtain(a.ctx, a.waiter(), a.directory, o.wait))
}

// acquiring is an acquire that has begun, and that ends once.
type acquiring struct {
	c         *Coordinator
	ctx       context.Context // as the hook wants it
	lock      string
	directory string
	try       bool
	options   *acquireOptions
	start     instant
}

func (c *Coordinator) begins(ctx context.Context, lock, directory string, try bool, o *acquireOptions) *acquiring {
	a := &acquiring{c: c, lock: lock, directory: directory, try: try, options: o, start: c.now()}
	a.ctx = c.opts.Hooks.acquireStart(ctx, AcquireStart{Lock: lock, Reason: o.reason, Try: try})
	return a
}

func (a *acquiring) waiter() *waiter {
	o := a.options
	return &waiter{
		// Values are asked for now: a context of the caller's own may do anything then.
		ctx: a.ctx, outer: heldIn(a.ctx), since: time.Now(),
		lock: a.lock, reason: o.reason, value: o.value, maxHold: o.maxHold, try: a.try, result: make(chan result, 1),
	}
}

// ends runs the barriers under the new grant, if there is one. Nobody is left to
// release it if one of them fails, or if one of them or a hook panics.
func (a *acquiring) ends(g *Grant, err error) (*Grant, error) {
	c := a.c
	ours := g // until the caller has it
	defer func() {
		if ours != nil {
			_ = ours.releaseQuietly(a.ctx)
		}
	}()
	end := AcquireEnd{Lock: a.lock, Waited: c.now().since(a.start), Err: err}
	if err == nil {
		end.Token = g.token
		c.metrics.waited.Observe(end.Waited.Seconds())
		if err = g.raise(a.ctx, a.options.barriers); err != nil {
			ours = nil
			err = errors.Join(err, g.releaseQuietly(a.ctx))
			end.Token, end.Err = revisionfence.Token{}, err
		}
	}
	c.opts.Hooks.acquireEnd(a.ctx, end)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", a.lock, err)
	}
	ours = nil
	return g, nil
}

// obtain waits for the grant.
func (c *Coordinator) obtain(ctx context.Context, w *waiter, directory string, atMost time.Duration) (*Grant, error) {
	q, err := c.join(w, directory)
	if err != nil {
		return nil, err
	}
	if w.try {
		atMost = c.openTimeout + c.callTimeout
	}
	return q.wait(ctx, w, atMost)
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
		q = c.newQueueLocked(w.lock, directory)
	} else if w.try {
		if err := q.refusalLocked(w); err != nil {
			return nil, err
		}
	}
	q.joinLocked(w)
	return q, nil
}

func (c *Coordinator) newQueueLocked(lock, directory string) *queue {
	q := &queue{c: c, lock: lock, directory: directory, pause: newPause(), again: newPause()}
	c.queues[directory] = q
	return q
}

// refusalLocked is why a try fails without being asked for: the lock is known not
// to be free, or could not be asked for a moment ago. While somebody else's
// question is without an answer, or it is about to be known whether that one has
// the lock, nothing is known.
func (q *queue) refusalLocked(w *waiter) error {
	e := q.entry
	switch {
	case q.takenLocked():
		return &BusyError{Lock: w.lock, Holder: q.holderLocked()}
	case e != nil || q.asking || q.waiters.Len() > 0:
		return q.trouble
	}
	return nil
}

// takenLocked reports whether this process has a place in the queue at etcd, if not
// the lock, and knows who holds that.
func (q *queue) takenLocked() bool {
	e := q.entry
	return e != nil && e.create != 0 && e.lost == "" && !q.holderLocked().IsZero()
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

// errNilContext is an error and no panic, like all other misuse of an option.
var errNilContext = fmt.Errorf("%w: the context is nil; use context.Background()", ErrInvalidOption)

// live fails if a call with this context need not begin.
func live(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errNilContext
	case ctx.Err() != nil:
		return endOf(ctx)
	}
	return nil
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
		return ErrNoAnswer
	}
	return &BusyError{Lock: w.lock, Holder: h}
}

// raise runs the barriers under the new grant.
func (g *Grant) raise(ctx context.Context, barriers []func(context.Context, revisionfence.Token) error) error {
	if len(barriers) == 0 {
		return nil
	}
	bound, cancel := g.Bind(ctx)
	defer cancel() // before the lock is given up, if one of them fails
	for _, barrier := range barriers {
		if err := barrier(bound, g.token); err != nil {
			return fmt.Errorf("raise for %s: %w", g.token, err)
		}
	}
	if err := g.Err(); err != nil { // barriers can take longer than the lease
		return fmt.Errorf("raise for %s: %w", g.token, err)
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
