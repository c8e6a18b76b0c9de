package coordinator

import (
	"context"
	"errors"
	"fmt"
)

// Lead holds the lock for as long as there is work: it waits for it, runs fn as
// [Coordinator.Do] does, and returns fn's result once fn has returned while
// holding; returning is resigning. If the grant was lost instead, Lead waits for
// fn to return, whose context has ended, and contends again, with a new token,
// after a pause that grows with each loss in a row. What fn knew before is void
// then: it must read its state anew, after the barriers given with [Raise].
//
// A guard may refuse a write as stale before this process knows of its loss. If fn
// returns that error, Lead asks etcd, and contends again if the grant is lost. An
// error of fn while its grant stands ends Lead.
//
// If ctx ends while Lead waits, or after a loss, Lead returns ctx's cause; if it
// ends while fn runs, fn is told by its own context, and its result is Lead's. An
// error that trying again does not cure is returned at once: of options,
// permissions, [ErrRestored], [ErrClosed], and [ErrBusy] when the time given with
// [WaitAtMost] is over.
func (c *Coordinator) Lead(ctx context.Context, lock string, fn func(context.Context, *Grant) error, opts ...AcquireOption) error {
	if fn == nil {
		return fmt.Errorf("lead %q: %w: the function to run is nil", lock, ErrInvalidOption)
	}
	if ctx == nil {
		return fmt.Errorf("lead %q: %w", lock, errNilContext)
	}
	for pause := newPause(); ; {
		var lost error
		var began instant
		ran := false
		err := c.do(ctx, lock, func(ctx context.Context, g *Grant) error {
			ran, began = true, c.now()
			// Not a defer: a panic is not an end of the tenure to go on from.
			err := fn(ctx, g)
			g.lookIfStale(err)
			lost = g.Err()
			return err
		}, opts)
		switch {
		case ran && !errors.Is(lost, ErrLost), errors.Is(lost, ErrClosed):
			return err
		case ctx.Err() != nil && !ran && errors.Is(err, context.Cause(ctx)):
			return err // it names the holder too
		case ctx.Err() != nil:
			return fmt.Errorf("lead %q: %w", lock, endOf(ctx))
		case ran:
			if c.now().since(began) > c.opts.TTL {
				pause.policy.Reset() // a tenure that lasted is not one of a row
			}
		case errors.Is(err, ErrInvalidName), errors.Is(err, ErrInvalidOption), errors.Is(err, ErrAlreadyHeld), errors.Is(err, ErrBusy), incurable(err):
			return err
		}
		c.log.Warn("contending again", "lock", lock, "error", err)
		if pause.wait(ctx); ctx.Err() != nil {
			return fmt.Errorf("lead %q: %w", lock, endOf(ctx))
		}
	}
}
