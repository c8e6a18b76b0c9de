package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// anyBatch is how many locks one read looks at.
const anyBatch = 64

// TryAcquireAny returns a grant of the first of the locks that is free, or a
// *[BusyError] for the last of them if none is. It does not wait for a lock. It
// reads many queues with one request and skips those that this process uses
// itself, so that many goroutines can share many jobs; workers that start at
// different places of the list get in each other's way less. With no lock at all
// it fails with [ErrInvalidOption]. What is more than a lock that is held ends the
// search: the end of ctx, an [ErrUnsettled], or the error of a barrier, whatever
// that is.
func (c *Coordinator) TryAcquireAny(ctx context.Context, locks iter.Seq[string], opts ...AcquireOption) (*Grant, error) {
	a := anyOf{c: c, opts: opts, batch: make([]string, 0, anyBatch)}
	if c.Health().Closed {
		return nil, fmt.Errorf("acquire any: %w", ErrClosed)
	}
	if _, err := optionsOf(opts, true); err != nil {
		return nil, fmt.Errorf("acquire any: %w", err)
	}
	if locks == nil {
		return nil, fmt.Errorf("acquire any: %w: the sequence of locks is nil", ErrInvalidOption)
	}
	asked := false
	for lock := range locks {
		asked = true
		// Not every lock is asked for at etcd, and the sequence may be endless.
		if err := live(ctx); err != nil {
			return nil, fmt.Errorf("acquire any: %w", err)
		}
		directory, err := c.directory(lock)
		if err != nil {
			return nil, fmt.Errorf("acquire any: %w", err)
		}
		if a.skip(lock, directory) {
			continue
		}
		if a.batch = append(a.batch, lock); len(a.batch) == anyBatch {
			if g, err := a.tryBatch(ctx); g != nil || err != nil {
				return g, err
			}
		}
	}
	if !asked {
		return nil, fmt.Errorf("acquire any: %w: no lock given", ErrInvalidOption)
	}
	if len(a.batch) > 0 {
		if g, err := a.tryBatch(ctx); g != nil || err != nil {
			return g, err
		}
	}
	for _, lock := range a.asked {
		if g, err := a.try(ctx, lock); g != nil || err != nil {
			return g, err
		}
	}
	return nil, fmt.Errorf("acquire any: %w", &a.busy)
}

// anyOf looks for a free lock.
type anyOf struct {
	c     *Coordinator
	opts  []AcquireOption
	batch []string  // to be looked at
	asked []string  // somebody else of this process asks for them just now
	busy  BusyError // of the last that was not free
}

// skip reports whether this process holds or wants a lock. If nothing is known of
// it yet, it is waited for only if no other is free.
func (a *anyOf) skip(lock, directory string) bool {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	q := a.c.queues[directory]
	switch {
	case q == nil:
		return false
	case q.takenLocked():
		a.busy = BusyError{Lock: lock, Holder: q.holderLocked()}
	default:
		a.asked = append(a.asked, lock)
	}
	return true
}

// try returns neither a grant nor an error if the lock is not free, and nothing
// else is to be told: an error that is a *BusyError among others says that ctx has
// ended, that a key may be left, or what a barrier met with.
func (a *anyOf) try(ctx context.Context, lock string) (*Grant, error) {
	g, err := a.c.acquire(ctx, lock, true, a.opts)
	if taken, only := errors.Unwrap(err).(*BusyError); only { //nolint:errorlint // see above
		a.busy = *taken
		return nil, nil
	}
	return g, err
}

// tryBatch tries those of the locks that one read shows to be free. It returns
// neither a grant nor an error if all turn out to be held.
func (a *anyOf) tryBatch(ctx context.Context) (*Grant, error) {
	c, locks := a.c, a.batch
	a.batch = a.batch[:0]
	ops := []clientv3.Op{clientv3.OpGet(c.keys.epoch())}
	directories := make([]string, len(locks))
	for i, lock := range locks {
		var err error
		if directories[i], err = c.directory(lock); err != nil {
			return nil, fmt.Errorf("acquire any: %w", err)
		}
		ops = append(ops, headOf(directories[i]))
	}
	resp, err := c.read(ctx, ops...)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("acquire any: %w: %w", endOf(ctx), err)
	case err != nil:
		return nil, fmt.Errorf("acquire any: %w", err)
	}
	epoch, err := epochOf(resp.Responses[0].GetResponseRange().Kvs)
	if err != nil {
		return nil, fmt.Errorf("acquire any: %w", err)
	}
	for i, lock := range locks {
		if queue := resp.Responses[i+1].GetResponseRange().Kvs; len(queue) > 0 {
			a.busy = BusyError{Lock: lock, Holder: holderOf(lock, epoch, queue[0])}
			continue
		}
		if a.skip(lock, directories[i]) { // since the read was sent
			continue
		}
		if g, err := a.try(ctx, lock); g != nil || err != nil {
			return g, err
		}
	}
	return nil, nil
}
