package coordinator

import "context"

// Waiting counts the goroutines that wait for a lock.
func Waiting(c *Coordinator) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, q := range c.queues {
		n += q.waiters.Len()
	}
	return n
}

// Beginning counts the watches that have not begun.
func Beginning(c *Coordinator) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watches.working
}

// Relied returns the lock key of the grant that a barrier's context belongs to, and
// whether that may be relied on.
func Relied(ctx context.Context) (key string, held func() bool) {
	h := heldIn(ctx).grant
	return h.entry.key, func() bool { return h.err() == nil }
}
