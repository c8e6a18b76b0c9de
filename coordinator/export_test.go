package coordinator

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
