package guardtest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// change is the effect of a write.
type change struct {
	value  []byte
	delete bool
}

func (ch change) on(c *modelCell) { c.value, c.exists = ch.value, !ch.delete }

func (m *model) write(ctx context.Context, w resourceguard.Write, during func(), effect change) (resourceguard.Result, error) {
	none := resourceguard.Result{}
	if err := w.Operation.Check(); err != nil {
		return none, m.refuse(w.Resource, err)
	}
	if err := m.begin(ctx); err != nil {
		return none, err
	}
	defer m.store.mu.Unlock()
	c := m.cell(w.Resource)

	id := m.operationID(w.Operation.ID)
	saved, found := c.operations[id]
	if m.is("operations share one name space") {
		for _, other := range m.store.cells {
			if s, ok := other.operations[w.Operation.ID]; ok {
				saved, found = s, true
			}
		}
	}
	if m.is("operations are filed under resource/ID") {
		for resource, other := range m.store.cells {
			for id, s := range other.operations {
				if resource+"/"+id == w.Resource+"/"+w.Operation.ID {
					saved, found = s, true
				}
			}
		}
	}
	found = found && w.Operation.ID != "" && !m.is("operations are not looked up")
	found = found && !(effect.delete && m.is("deletions have no operations"))
	same := bytes.Equal(saved.digest, w.Operation.Digest) || m.is("digests are ignored")
	saved.result.Replayed = true
	if found && same && m.is("a known operation opens the door") {
		return saved.result, nil
	}
	old, _, _ := c.stored.Mark()
	mark, decision, err := m.rule(w.Resource).Advance(c.stored, w.Token)
	if found && same && err != nil && m.is("a known operation asks for the age only") && w.Token.Int64() >= old.Int64() {
		return saved.result, nil
	}
	if found && err == nil {
		if old == w.Token && !m.is("the owner is ignored", "a replay does not look at the owner") {
			if err := resourceguard.CheckOwner(c.owner, w.Owner); err != nil {
				return none, m.refuse(w.Resource, err)
			}
		}
		if !same {
			return none, m.refuse(w.Resource, resourceguard.ErrOperationReused)
		}
		if decision == resourceguard.Raise && !m.is("a replay holds nobody off") {
			m.setMark(w.Resource, c, mark, "")
		}
		return saved.result, nil
	}

	if m.is("the ceiling is looked at too late") && !w.Token.IsZero() && w.Token.Lock() == m.store.locks[w.Resource] {
		if old, ok, _ := c.stored.Mark(); !ok || old.Int64() < w.Token.Int64() {
			m.setMark(w.Resource, c, w.Token, w.Owner)
		}
	}
	decision, err = m.admit(c, w)
	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
		if found && same && !m.is("a stale repetition says nothing") {
			stale.Applied = &saved.result
		}
		switch {
		case m.is("a refused token becomes the mark"):
			m.setMark(w.Resource, c, w.Token, w.Owner)
		case m.is("stale is swallowed"):
			return none, nil
		case m.is("stale is applied"):
			effect.on(c)
		case m.is("stale is a time-out"):
			return none, context.DeadlineExceeded
		case m.is("stale does not say who won"):
			stale.Accepted = revisionfence.Token{}
		}
	}
	if err != nil {
		return none, m.refuse(w.Resource, err)
	}
	if old, ok, _ := c.stored.Mark(); ok && old == w.Token && !m.is("the owner is ignored") {
		if err := resourceguard.CheckOwner(c.owner, w.Owner); err != nil {
			return none, m.refuse(w.Resource, err)
		}
	}
	if m.apart(w, effect) {
		m.store.mu.Unlock()
		during()
		m.store.mu.Lock()
		if err := m.lookAgain(c, w); err != nil {
			return none, m.refuse(w.Resource, err)
		}
	} else {
		during()
	}
	effect.on(c)
	c.noticed = w.Token
	switch before, ok, _ := c.stored.Mark(); {
	case m.is("deleting is not the one write") && effect.delete && m.config.Policy == resourceguard.RejectEqual:
		m.setMark(w.Resource, c, mark, w.Owner)
	case m.is("a barrier overtakes a write", "a read overtakes a write") && ok && before.Int64() > w.Token.Int64():
	case decision == resourceguard.Raise:
		m.setMark(w.Resource, c, w.Token, w.Owner)
	case c.owner == "":
		c.owner = w.Owner
	}
	if m.is("the mark is deleted with the value") && !c.exists {
		c.stored = resourceguard.NoMark()
	}
	result := resourceguard.Result{Mark: w.Token, Value: []byte("result of " + w.Operation.ID)}
	if w.Operation.ID != "" {
		c.operations[id] = modelOperation{digest: w.Operation.Digest, result: result}
	}
	return result, nil
}

// apart says whether the check of a write and its effect are two steps.
func (m *model) apart(w resourceguard.Write, effect change) bool {
	switch {
	case m.is("the check is outside of the write"):
		return true
	case m.is("the check of a deletion is outside of it"):
		return effect.delete
	case m.is("the one write is counted afterwards"):
		return m.config.Policy == resourceguard.RejectEqual
	case m.is("a barrier overtakes a write", "a read overtakes a write"):
		return m.config.Policy == resourceguard.AcceptEqual && w.Operation.ID == ""
	}
	return false
}

// lookAgain is what a guard in two steps compares in the second.
func (m *model) lookAgain(c *modelCell, w resourceguard.Write) error {
	newest, _, _ := c.stored.Mark()
	switch {
	case m.is("the one write is counted afterwards"):
	case m.is("a barrier overtakes a write", "a read overtakes a write"):
		newest = c.noticed
	default:
		return nil
	}
	if newest.Int64() > w.Token.Int64() {
		return &resourceguard.StaleError{Presented: w.Token, Accepted: newest}
	}
	return nil
}

// operationID is under which an operation is filed.
func (m *model) operationID(id string) string {
	switch {
	case m.is("operation IDs are folded"):
		return strings.TrimSpace(strings.ToLower(id))
	case m.is("operation IDs are cut"):
		return id[:min(len(id), resourceguard.MaxOperationID-1)]
	}
	return id
}
