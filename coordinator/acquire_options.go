package coordinator

import (
	"bytes"
	"context"
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

// Raise runs the barriers after the grant and before Acquire returns it: each
// calls the Advance of a guard for a resource that this lock covers.
//
//	coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
//		return guard.Advance(ctx, t.Lock(), t) // the name that the guard has for the resource
//	})
//
// Once it has returned, no older holder can change the resource, so what is read
// from then on stays true. Without it, the state that a new holder reads can still be
// overwritten by a write of the old one that is under way.
//
// If a barrier fails, the lock is released and its error returned.
func Raise(barriers ...func(context.Context, revisionfence.Token) error) AcquireOption {
	return func(o *acquireOptions) {
		o.barriers = append(o.barriers, barriers...)
		for i, barrier := range barriers {
			if barrier == nil {
				o.err = fmt.Errorf("%w: Raise: barrier %d is nil", ErrInvalidOption, i)
			}
		}
	}
}

// optionsOf is what the options of an acquire say. It is asked for before
// anything is asked of etcd.
func optionsOf(opts []AcquireOption, try bool) (*acquireOptions, error) {
	var o acquireOptions
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: AcquireOption %d is nil", ErrInvalidOption, i)
		}
		if opt(&o); o.err != nil {
			return nil, o.err
		}
	}
	if try && o.wait > 0 {
		return nil, fmt.Errorf("%w: WaitAtMost: a try does not wait", ErrInvalidOption)
	}
	return &o, nil
}
