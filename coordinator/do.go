package coordinator

import (
	"context"
	"errors"
	"fmt"
)

// Do acquires the lock, runs fn while holding it, and releases it. The context
// that fn gets ends when ctx ends or the grant is lost, and carries the token.
// The lock is renewed until fn has returned, also after its context has ended,
// and released only then, also if fn panics: others do not start while fn is
// still at work, unless the lease is lost.
//
// Do returns fn's error as it is. If the grant was lost meanwhile, the
// *[LostError] is joined to it, also if fn returned nil: not everything that fn
// did need have been accepted. An error in releasing is not returned; the work
// was done. It is logged.
func (c *Coordinator) Do(ctx context.Context, lock string, fn func(context.Context, *Grant) error, opts ...AcquireOption) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("acquire %q: %w", lock, ErrClosed)
	}
	c.running.working++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running.doneLocked()
	}()

	g, err := c.Acquire(ctx, lock, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if err := g.releaseQuietly(ctx); err != nil {
			c.log.Warn("lock not released yet", "token", g.token.String(), "error", err)
		}
	}()
	bound, cancel := g.Bind(ctx)
	defer cancel()
	err = fn(bound, g)
	if lost := g.Err(); errors.Is(lost, ErrLost) && !errors.Is(err, lost) {
		return errors.Join(err, lost)
	}
	return err
}
