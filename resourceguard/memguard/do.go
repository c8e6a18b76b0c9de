package memguard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// Cell is a guarded value while a function of [Guard.Do] works on it. Changes
// become visible when the function has returned without an error.
type Cell struct {
	value  []byte
	exists bool
}

// Get returns the value, and false if there is none. The bytes are the caller's.
func (c *Cell) Get() ([]byte, bool) { return slices.Clone(c.value), c.exists }

// Put sets the value.
func (c *Cell) Put(value []byte) { c.value, c.exists = slices.Clone(value), true }

// Delete removes the value.
func (c *Cell) Delete() { c.value, c.exists = nil, false }

// Do runs fn on the value of w.Resource under w.Token, in one atomic step: no
// other call on the store comes between the check of the token, what fn reads
// and what it writes. What fn returns is the Value of the result, and is saved
// under w.Operation if there is one.
//
// If the operation was applied before, fn does not run and the saved result
// comes back, provided that the token is not stale. A repetition by a newer owner
// holds older tokens off as [Guard.Advance] does.
//
// fn must not call the guard or its store, which would wait for itself. An error
// of fn comes back wrapped, and nothing is changed, the mark included.
//
// Besides the errors of [resourceguard.Rule.Admit], Do fails with
// [resourceguard.ErrInvalid] (see [resourceguard.Write.Check], or fn is nil),
// [resourceguard.ErrOperationReused] and [resourceguard.ErrOwnerMismatch].
func (g *Guard) Do(ctx context.Context, w resourceguard.Write, fn func(*Cell) (value []byte, err error)) (resourceguard.Result, error) {
	if err := w.Check(); err != nil {
		return resourceguard.Result{}, refuse(w.Resource, err)
	}
	if fn == nil {
		return resourceguard.Result{}, refuse(w.Resource, fmt.Errorf("%w: fn is nil; give the function that reads and writes the value", resourceguard.ErrInvalid))
	}
	var result resourceguard.Result
	err := g.step(ctx, w.Resource, func(rule resourceguard.Rule, r *record) (err error) {
		result, err = r.do(rule, w, fn, g.opts.KeepOperations)
		return err
	})
	if err != nil {
		return resourceguard.Result{}, err
	}
	return result, nil
}

func (r *record) do(rule resourceguard.Rule, w resourceguard.Write, fn func(*Cell) ([]byte, error), keep time.Duration) (resourceguard.Result, error) {
	saved, found, reused := r.replay(w.Operation)
	// The token comes first, whatever is known about the operation: an ID must
	// not open the door to an old token. Advance and not yet Admit, since an equal
	// token may ask for its result again under either policy.
	if _, _, err := rule.Advance(r.stored, w.Token); err != nil {
		if found {
			err = sayApplied(err, saved)
		}
		return resourceguard.Result{}, err
	}
	if err := r.checkOwner(w); err != nil {
		return resourceguard.Result{}, err
	}
	if reused != nil {
		return resourceguard.Result{}, reused
	}
	if found {
		return saved, r.advance(rule, w)
	}
	decision, err := rule.Admit(r.stored, w.Token)
	if err != nil {
		return resourceguard.Result{}, err
	}
	cell := Cell{value: r.value, exists: r.exists}
	value, err := fn(&cell)
	if err != nil {
		return resourceguard.Result{}, err
	}

	// From here on nothing can fail.
	r.value, r.exists = cell.value, cell.exists
	if decision == resourceguard.Raise {
		r.stored, r.owner = resourceguard.MarkOf(w.Token), w.Owner
	} else if r.owner == "" {
		r.owner = w.Owner
	}
	result := resourceguard.Result{Value: slices.Clone(value), Mark: w.Token}
	now := time.Now()
	r.prune(now, keep)
	if w.Operation.ID != "" {
		r.save(w.Operation, result, now)
	}
	return result, nil
}

func (r *record) save(o resourceguard.Operation, result resourceguard.Result, now time.Time) {
	if r.operations == nil {
		r.operations = make(map[string]operation)
	}
	result.Value = slices.Clone(result.Value)
	r.operations[o.ID] = operation{digest: slices.Clone(o.Digest), result: result, at: now}
	r.order = append(r.order, o.ID)
}

// Put sets the value of w.Resource. It fails as [Guard.Do] does.
func (g *Guard) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	return g.Do(ctx, w, func(c *Cell) ([]byte, error) {
		c.Put(value)
		return nil, nil
	})
}

// Delete removes the value of w.Resource, and is content if there is none. The
// mark stays: it costs a few dozen bytes for as long as the store lives, and
// without it an old owner could write the value again. It fails as [Guard.Do]
// does.
func (g *Guard) Delete(ctx context.Context, w resourceguard.Write) (resourceguard.Result, error) {
	return g.Do(ctx, w, func(c *Cell) ([]byte, error) {
		c.Delete()
		return nil, nil
	})
}

// Get reads the value of w.Resource under w.Token, and false if there is none.
// It is [Guard.Advance] and a read in one step: a stale token is refused, and no
// older one can change any more what was returned. w.Operation is not looked at.
func (g *Guard) Get(ctx context.Context, w resourceguard.Write) ([]byte, bool, error) {
	if err := w.Check(); err != nil {
		return nil, false, refuse(w.Resource, err)
	}
	var cell Cell
	err := g.step(ctx, w.Resource, func(rule resourceguard.Rule, r *record) error {
		cell = Cell{value: r.value, exists: r.exists}
		return r.advance(rule, w)
	})
	if err != nil {
		return nil, false, err
	}
	value, exists := cell.Get()
	return value, exists, nil
}
