package embedded

import (
	"context"
	"fmt"
)

// Stop shuts members down, by index; member 0 when none is named. Data, port
// and clients stay.
func (c *Cluster) Stop(t TB, members ...int) {
	t.Helper()
	c.each(t, members, (*Member).Stop)
}

// Kill ends members at once, by index; member 0 when none is named. See
// [Member.Kill] for what that means inside this process.
func (c *Cluster) Kill(t TB, members ...int) {
	t.Helper()
	c.each(t, members, (*Member).Kill)
}

// Restart starts members again on their old data and port, by index; member 0
// when none is named. A running one is stopped first.
func (c *Cluster) Restart(t TB, members ...int) {
	t.Helper()
	// Each in turn would wait for ever when no majority is up before.
	c.each(t, members, (*Member).restart)
	c.each(t, members, (*Member).answers)
}

// Pause stops members with their sockets open, by index; member 0 when none is
// named. It needs Options.Process.
func (c *Cluster) Pause(t TB, members ...int) {
	t.Helper()
	c.each(t, members, func(m *Member, _ context.Context) error { return m.Pause() })
}

// Resume continues paused members, by index; member 0 when none is named.
func (c *Cluster) Resume(t TB, members ...int) {
	t.Helper()
	c.each(t, members, func(m *Member, _ context.Context) error { return m.Resume() })
}

func (c *Cluster) each(t TB, members []int, do func(*Member, context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if len(members) == 0 {
		members = []int{0}
	}
	for _, i := range members {
		if !c.has(t, i) {
			return
		}
		if err := do(c.members[i], ctx); err != nil {
			t.Fatalf("%v", err)
			return
		}
	}
}

// has fails the test when there is no member with this index.
func (c *Cluster) has(t TB, i int) bool {
	t.Helper()
	if err := c.exists(i); err != nil {
		t.Fatalf("%v", err)
		return false
	}
	return true
}

func (c *Cluster) exists(i int) error {
	if i < 0 || i >= len(c.members) {
		return fmt.Errorf("embedded: there is no member %d, there are %d, counted from 0", i, len(c.members))
	}
	return nil
}
