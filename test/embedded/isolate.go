package embedded

import (
	"context"
	"fmt"
)

// Isolate cuts members off from all other members, by index: whatever they send
// each other is lost, both ways, while clients reach them all as before. Such a
// leader believes in itself for an election and can have nothing agreed on. It
// lasts until Rejoin, or until the member is restarted. It is not possible with
// Options.Binary.
func (c *Cluster) Isolate(t TB, members ...int) {
	t.Helper()
	c.each(t, members, (*Member).Isolate)
}

// Rejoin ends an Isolate. The members catch up in their own time.
func (c *Cluster) Rejoin(t TB, members ...int) {
	t.Helper()
	c.each(t, members, (*Member).Rejoin)
}

// Isolate is [Cluster.Isolate] for one member. With Options.Binary the error is
// [ErrUnsupported].
func (m *Member) Isolate(ctx context.Context) error { return m.separate(ctx, true) }

// Rejoin is [Cluster.Rejoin] for one member.
func (m *Member) Rejoin(ctx context.Context) error { return m.separate(ctx, false) }

// separate has both sides drop what they send and what they receive, or not any
// more. A member that does not run has nothing to drop.
func (m *Member) separate(ctx context.Context, cut bool) error {
	m.mu.Lock()
	mine := m.running
	if mine != nil {
		m.isolated, m.id = cut, mine.id()
	}
	m.mu.Unlock()
	if mine == nil {
		return nil
	}
	for _, other := range m.cluster.members {
		if other == m {
			continue
		}
		other.mu.Lock()
		// Who is isolated itself stays cut off from this one too.
		theirs, keep := other.running, !cut && other.isolated
		other.mu.Unlock()
		if theirs == nil || keep {
			continue
		}
		err := mine.cut(ctx, theirs.id(), cut)
		if err == nil {
			err = theirs.cut(ctx, mine.id(), cut)
		}
		if err != nil {
			return fmt.Errorf("embedded: members %d and %d: %w", m.index, other.index, err)
		}
	}
	return nil
}

// letBack ends an isolation before the member starts anew: it becomes ready only
// among the others. It knows nothing of it itself any more.
func (m *Member) letBack(ctx context.Context) error {
	m.mu.Lock()
	was, id := m.isolated, m.id
	m.isolated = false
	m.mu.Unlock()
	if !was {
		return nil
	}
	for _, other := range m.cluster.members {
		other.mu.Lock()
		theirs, keep := other.running, other.isolated
		other.mu.Unlock()
		if other == m || theirs == nil || keep {
			continue
		}
		if err := theirs.cut(ctx, id, false); err != nil {
			return err
		}
	}
	return nil
}

// keepOut has a member that has just started know who is isolated.
func (m *Member) keepOut(ctx context.Context) error {
	for _, other := range m.cluster.members {
		other.mu.Lock()
		isolated := other.isolated
		other.mu.Unlock()
		if other != m && isolated {
			if err := other.separate(ctx, true); err != nil {
				return err
			}
		}
	}
	return nil
}
