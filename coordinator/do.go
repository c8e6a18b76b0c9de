package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Do acquires the lock, runs fn while holding it, and releases it. The context
// that fn gets ends when ctx ends or the grant is lost, and carries the token.
// The lock is renewed until fn has returned, also after its context has ended,
// and released only then, also if fn panics: others do not start while fn is
// still at work, unless the lease is lost.
//
// Do returns fn's error as it is. If the grant was lost meanwhile, the
// *[LostError] is joined to it, also if fn returned nil: not everything that fn
// did need have been accepted. A guard can know of a loss before this process
// does; so if fn returns that its token was refused as stale, etcd is asked first.
// An error in releasing is not returned; the work was done. It is logged.
func (c *Coordinator) Do(ctx context.Context, lock string, fn func(context.Context, *Grant) error, opts ...AcquireOption) error {
	if fn == nil {
		return fmt.Errorf("do under lock %q: %w: the function to run is nil", lock, ErrInvalidOption)
	}
	return c.do(ctx, lock, func(ctx context.Context, g *Grant) error {
		err := fn(ctx, g)
		g.lookIfStale(err)
		return err
	}, opts)
}

// do is Do without the look.
func (c *Coordinator) do(ctx context.Context, lock string, fn func(context.Context, *Grant) error, opts []AcquireOption) error {
	if ctx == nil {
		return fmt.Errorf("acquire %q: %w", lock, errNilContext)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("acquire %q: %w", lock, ErrClosed)
	}
	c.running.working++
	c.mu.Unlock()
	// Before anything of the caller's runs that may panic: Close waits for it.
	r := &run{c: c}
	defer func() {
		r.over.Store(true)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running.doneLocked()
	}()
	r.outer = runIn(ctx)
	ctx = context.WithValue(ctx, runKey{}, r)

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

// refusal is what a guard's error says that refused a token as stale.
type refusal interface {
	error
	StaleToken() revisionfence.Token
}

// lookIfStale asks etcd whether the grant still stands, if err says that a guard
// has refused its token. Without an answer nothing has changed.
func (g *Grant) lookIfStale(err error) {
	stale, ok := errors.AsType[refusal](err)
	if !ok || stale.StaleToken() != g.token || g.Err() != nil {
		return
	}
	s := g.entry.s
	ctx, cancel := context.WithTimeout(s.ctx, s.c.callTimeout)
	defer cancel()
	if err := s.loseMissing(ctx, g.entry); err != nil {
		s.c.log.Debug("not known whether the grant of a token that was refused is lost", "token", g.token.String(), "error", err)
	}
}

// run is a chain of the calls of Do that a context works under.
type run struct {
	c     *Coordinator
	over  atomic.Bool
	outer *run
}

type runKey struct{}

func runIn(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// runs reports whether ctx works under a Do of this coordinator that goes on.
func (c *Coordinator) runs(ctx context.Context) bool {
	for r := runIn(ctx); r != nil; r = r.outer {
		if r.c == c && !r.over.Load() {
			return true
		}
	}
	return false
}
