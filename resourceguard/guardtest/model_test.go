package guardtest_test

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"runtime"
	"strings"
	"sync"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// fault is one defect of a model guard. The empty fault is none.
type fault string

// model is a second guard in memory, with nothing of memguard in it but the rule,
// so that each of its steps can be spoilt.
type model struct {
	fault  fault
	config guardtest.Config
	store  *modelStore
	own    map[string]resourceguard.Stored // for marks kept in the wrong place
}

type modelStore struct {
	mu      sync.Mutex
	cells   map[string]*modelCell
	locks   map[string]string
	reasons map[string][]string

	// The authority: the present grant of each lock, if it has not ended.
	revision  int64
	present   map[string]revisionfence.Token
	authority bool
}

type modelCell struct {
	value      []byte
	exists     bool
	stored     resourceguard.Stored
	owner      string
	noticed    revisionfence.Token // the newest that a write in two steps looks at again
	operations map[string]modelOperation
}

type modelOperation struct {
	digest []byte
	result resourceguard.Result
}

func (m *model) is(faults ...fault) bool {
	for _, f := range faults {
		if m.fault == f {
			return true
		}
	}
	return false
}

// cell finds a resource; the store is locked.
func (m *model) cell(resource string) *modelCell {
	if m.is("names are folded") {
		resource = strings.TrimSpace(strings.ToLower(resource))
	}
	c, ok := m.store.cells[resource]
	if !ok {
		c = &modelCell{stored: resourceguard.NoMark(), operations: make(map[string]modelOperation)}
		m.store.cells[resource] = c
	}
	if m.is("marks are kept in the process") {
		if s, ok := m.own[resource]; ok {
			c.stored = s
		} else {
			c.stored = resourceguard.NoMark()
		}
	}
	if m.is("a barrier holds in its own process only", "floors are kept in the process") {
		// What this process knows reaches the others with its next call.
		if s, ok := m.own[resource]; ok {
			c.stored, c.owner = s, ""
			delete(m.own, resource)
		}
	}
	return c
}

func (m *model) setMark(resource string, c *modelCell, t revisionfence.Token, owner string) {
	c.stored, c.owner = resourceguard.MarkOf(t), owner
	if m.is("marks are kept in the process") {
		m.own[resource] = c.stored
	}
}

func (m *model) rule(resource string) resourceguard.Rule {
	r := resourceguard.Rule{Lock: m.store.locks[resource], Policy: m.config.Policy, Ceiling: m.config.Ceiling}
	if m.is("the ceiling is ignored") {
		r.Ceiling = revisionfence.Token{}
	}
	if m.is("equal is accepted against the policy") {
		r.Policy = resourceguard.AcceptEqual
	}
	return r
}

// admit is Rule.Admit with defects.
func (m *model) admit(c *modelCell, w resourceguard.Write) (resourceguard.Decision, error) {
	rule := m.rule(w.Resource)
	if m.store.authority {
		return m.askAuthority(w)
	}
	mark, ok, err := c.stored.Mark()
	stale := &resourceguard.StaleError{Presented: w.Token, Accepted: mark}
	switch {
	case m.is("an unreadable mark counts as none") && err != nil:
		c.stored = resourceguard.NoMark()
	case m.is("tokens are compared for equality") && ok && mark != w.Token:
		return 0, stale
	case m.is("equal is refused") && ok && mark == w.Token:
		return 0, stale
	case m.is("another lock is accepted"):
		rule.Lock = w.Token.Lock()
		if ok && mark.Lock() != rule.Lock {
			return resourceguard.Raise, nil
		}
	case m.is("the first token binds the resource") && !ok && err == nil:
		rule.Lock = w.Token.Lock()
	case m.is("no token is accepted") && w.Token.IsZero():
		return resourceguard.Same, nil
	case m.is("tokens are compared as text") && ok:
		return ordered(strings.Compare(w.Token.String(), mark.String()), stale)
	case m.is("the epoch is ignored") && ok:
		return ordered(cmp.Compare(w.Token.Revision(), mark.Revision()), stale)
	case m.is("marks are rounded to doubles") && ok:
		return ordered(cmp.Compare(float64(w.Token.Int64()), float64(mark.Int64())), stale)
	case m.is("an ended grant is refused now and then") && m.store.present[w.Token.Lock()] != w.Token && ok && mark == w.Token:
		return 0, stale
	}
	return rule.Admit(c.stored, w.Token)
}

func ordered(order int, stale error) (resourceguard.Decision, error) {
	if order < 0 {
		return 0, stale
	}
	return resourceguard.Raise, nil
}

func (m *model) askAuthority(w resourceguard.Write) (resourceguard.Decision, error) {
	if w.Token.IsZero() {
		return 0, resourceguard.ErrNoToken
	}
	present := m.store.present[w.Token.Lock()]
	if present == w.Token || m.is("the authority is asked for newer owners only") && present.IsZero() {
		return resourceguard.Same, nil
	}
	return 0, &resourceguard.StaleError{Presented: w.Token, Accepted: present}
}

func (m *model) begin(ctx context.Context) error {
	if ctx.Err() != nil && !m.is("the context is not looked at") {
		return ctx.Err()
	}
	m.store.mu.Lock()
	return nil
}

func (m *model) refuse(resource string, err error) error {
	if err == nil || m.is("the outcome is not said") {
		return resourceguard.WithOutcome(resourceguard.ForResource(resource, err), resourceguard.Unknown)
	}
	return resourceguard.ForResource(resource, err)
}

func (m *model) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	// The scheduler may come in between, as it does in every backend that is not
	// in the same process.
	return m.write(ctx, w, runtime.Gosched, change{value: value})
}

func (m *model) Delete(ctx context.Context, w resourceguard.Write) (resourceguard.Result, error) {
	return m.write(ctx, w, runtime.Gosched, change{delete: true})
}

func (m *model) PutLosingAnswer(ctx context.Context, w resourceguard.Write, value []byte, apply bool) error {
	lost := errors.New("the connection was lost")
	if apply {
		if _, err := m.Put(ctx, w, value); err != nil {
			return err
		}
	}
	if m.is("a lost answer counts as not applied") {
		return resourceguard.WithOutcome(lost, resourceguard.NotApplied)
	}
	return resourceguard.WithOutcome(lost, resourceguard.Unknown)
}

func (m *model) Get(ctx context.Context, w resourceguard.Write) ([]byte, bool, error) {
	if err := m.advance(ctx, w.Resource, w.Token, m.is("a barrier overtakes a write")); err != nil {
		switch {
		case m.is("reads are not checked"):
		case m.is("a read needs no token") && errors.Is(err, resourceguard.ErrNoToken):
		case m.is("a read takes a token of any lock") && errors.Is(err, resourceguard.ErrWrongLock):
		case m.is("a read has no ceiling") && errors.Is(err, resourceguard.ErrImplausible):
		case m.is("a read does without a mark") && errors.Is(err, resourceguard.ErrCorruptMark):
		default:
			return nil, false, err
		}
	}
	if err := m.begin(ctx); err != nil {
		return nil, false, err
	}
	defer m.store.mu.Unlock()
	c := m.cell(w.Resource)
	return c.value, c.exists, nil
}

func (m *model) Advance(ctx context.Context, resource string, t revisionfence.Token) error {
	return m.advance(ctx, resource, t, !m.is("a barrier overtakes a write"))
}

// advance is a barrier, which a write in two steps may notice.
func (m *model) advance(ctx context.Context, resource string, t revisionfence.Token, noticed bool) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.store.mu.Unlock()
	c := m.cell(resource)
	mark, decision, err := m.rule(resource).Advance(c.stored, t)
	if m.is("a barrier lowers the mark") && errors.Is(err, resourceguard.ErrStale) {
		mark, decision, err = t, resourceguard.Raise, nil
	}
	if m.is("a barrier spends the write") && err == nil {
		mark = t
	}
	if m.is("a barrier is two steps") {
		m.store.mu.Unlock()
		runtime.Gosched()
		m.store.mu.Lock()
	}
	switch {
	case err != nil || decision != resourceguard.Raise || m.is("a barrier does nothing"):
	case m.is("a barrier holds in its own process only"):
		m.own[resource] = resourceguard.MarkOf(mark)
	default:
		m.setMark(resource, c, mark, "")
		if noticed {
			c.noticed = mark
		}
	}
	return m.refuse(resource, err)
}

func (m *model) Mark(ctx context.Context, resource string) (revisionfence.Mark, bool, error) {
	if err := m.begin(ctx); err != nil {
		return revisionfence.Mark{}, false, err
	}
	defer m.store.mu.Unlock()
	t, ok, err := m.cell(resource).stored.Mark()
	return revisionfence.Mark{Resource: resource, Token: t}, ok, err
}

func (m *model) Marks(ctx context.Context) iter.Seq2[revisionfence.Mark, error] {
	return func(yield func(revisionfence.Mark, error) bool) {
		if err := m.begin(ctx); err != nil {
			if !m.is("a list that was cut off looks complete") {
				yield(revisionfence.Mark{}, err)
			}
			return
		}
		defer m.store.mu.Unlock()
		for resource, c := range m.store.cells {
			t, ok, err := c.stored.Mark()
			if !ok && err == nil || err != nil && m.is("an unreadable mark is not listed") {
				continue
			}
			if !yield(revisionfence.Mark{Resource: resource, Token: t}, err) {
				return
			}
		}
	}
}

func (m *model) SetFloor(ctx context.Context, f revisionfence.Mark, reason string) error {
	if err := resourceguard.CheckReason(reason); err != nil && !m.is("a floor needs no reason") {
		return m.refuse(f.Resource, err)
	}
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.store.mu.Unlock()
	c, rule := m.cell(f.Resource), m.rule(f.Resource)
	c.noticed = revisionfence.Token{}
	if m.is("a poisoned mark stays") {
		rule.Ceiling = revisionfence.Token{}
	}
	decision, err := rule.Floor(c.stored, f.Token)
	if m.is("a floor lowers the mark") && errors.Is(err, resourceguard.ErrStale) {
		decision, err = resourceguard.Raise, nil
	}
	if err != nil {
		return m.refuse(f.Resource, err)
	}
	switch {
	case decision != resourceguard.Raise || m.is("a floor does nothing"):
	case m.is("floors are kept in the process"):
		m.own[f.Resource] = resourceguard.MarkOf(f.Token)
	default:
		m.setMark(f.Resource, c, f.Token, "")
	}
	if !m.is("a floor leaves no trace") {
		m.store.reasons[f.Resource] = append(m.store.reasons[f.Resource], reason)
	}
	return nil
}
