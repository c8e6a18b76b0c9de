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
// it fails with [ErrInvalidOption].
func (c *Coordinator) TryAcquireAny(ctx context.Context, locks iter.Seq[string], opts ...AcquireOption) (*Grant, error) {
	busy := &BusyError{}
	batch := make([]string, 0, anyBatch)
	try := func() (*Grant, error) {
		g, err := c.tryBatch(ctx, batch, busy, opts)
		batch = batch[:0]
		return g, err
	}
	if c.Health().Closed {
		return nil, fmt.Errorf("acquire any: %w", ErrClosed)
	}
	asked := false
	for lock := range locks {
		asked = true
		directory, err := c.directory(lock)
		if err != nil {
			return nil, fmt.Errorf("acquire any: %w", err)
		}
		if h, used := c.usedHere(directory); used {
			*busy = BusyError{Lock: lock, Holder: h}
			continue
		}
		if batch = append(batch, lock); len(batch) == anyBatch {
			if g, err := try(); g != nil || err != nil {
				return g, err
			}
		}
	}
	if !asked {
		return nil, fmt.Errorf("acquire any: %w: no lock given", ErrInvalidOption)
	}
	if len(batch) > 0 {
		if g, err := try(); g != nil || err != nil {
			return g, err
		}
	}
	return nil, fmt.Errorf("acquire any: %w", busy)
}

// usedHere reports whether this process holds or wants a lock.
func (c *Coordinator) usedHere(directory string) (Holder, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[directory]
	if q == nil {
		return Holder{}, false
	}
	return q.holderLocked(), true
}

// tryBatch tries those of the locks that one read shows to be free. It returns
// neither a grant nor an error if all turn out to be held.
func (c *Coordinator) tryBatch(ctx context.Context, locks []string, busy *BusyError, opts []AcquireOption) (*Grant, error) {
	ops := []clientv3.Op{clientv3.OpGet(c.keys.epoch())}
	for _, lock := range locks {
		directory, err := c.directory(lock)
		if err != nil {
			return nil, fmt.Errorf("acquire any: %w", err)
		}
		ops = append(ops, headOf(directory))
	}
	read, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	resp, err := c.kv.Txn(read).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("acquire any: %w", err)
	}
	epoch, err := epochOf(resp.Responses[0].GetResponseRange().Kvs)
	if err != nil {
		return nil, fmt.Errorf("acquire any: %w", err)
	}
	for i, lock := range locks {
		if queue := resp.Responses[i+1].GetResponseRange().Kvs; len(queue) > 0 {
			*busy = BusyError{Lock: lock, Holder: holderOf(lock, epoch, queue[0])}
			continue
		}
		g, err := c.acquire(ctx, lock, true, opts)
		var taken *BusyError
		if err == nil || !errors.As(err, &taken) {
			return g, err
		}
		*busy = *taken
	}
	return nil, nil
}
