package memguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// DefaultKeepOperations is how long the result of an operation is kept.
const DefaultKeepOperations = 24 * time.Hour

// Options configure a [Guard].
type Options struct {
	// LockOf names the lock that guards a resource. Required: a guard that took
	// the lock of the first token it sees would take it from an attacker or a
	// mistake just as well. It is called outside of the critical section and may
	// be called concurrently. An error of it refuses the call.
	LockOf func(resource string) (lock string, err error)
	// Policy is what happens to a token that equals the mark. Defaults to
	// AcceptEqual.
	Policy resourceguard.Policy
	// Ceiling returns the largest token that the authority can have issued by
	// now. It is asked for every call, before the critical section, and an error
	// of it refuses the call. Defaults to none: then one forged token can lock
	// every real one out.
	Ceiling func(ctx context.Context) (revisionfence.Token, error)
	// KeepOperations is how long the result of an operation is kept at least: as
	// long as callers retry. It is not negative. Defaults to 24h.
	KeepOperations time.Duration
	// Store is the memory to work on. Defaults to a new one.
	Store *Store
}

// Guard guards the values of a [Store]. It may be used by any number of
// goroutines.
type Guard struct {
	opts Options
}

var _ resourceguard.Guard = (*Guard)(nil)

// New returns a guard. It fails with [resourceguard.ErrInvalid] if an option is
// missing or out of range.
func New(opts *Options) (*Guard, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	switch {
	case o.LockOf == nil:
		return nil, fmt.Errorf("memguard: %w: Options.LockOf is required", resourceguard.ErrInvalid)
	case o.Policy != resourceguard.AcceptEqual && o.Policy != resourceguard.RejectEqual:
		return nil, fmt.Errorf("memguard: %w: Options.Policy is %v, want AcceptEqual or RejectEqual", resourceguard.ErrInvalid, o.Policy)
	case o.KeepOperations < 0:
		return nil, fmt.Errorf("memguard: %w: Options.KeepOperations is %v, want 0 or more", resourceguard.ErrInvalid, o.KeepOperations)
	}
	if o.KeepOperations == 0 {
		o.KeepOperations = DefaultKeepOperations
	}
	if o.Store == nil {
		o.Store = NewStore()
	}
	return &Guard{opts: o}, nil
}

// Store returns the memory that the guard works on.
func (g *Guard) Store() *Store { return g.opts.Store }

// rule is called before the critical section: both functions are the user's and
// may block.
func (g *Guard) rule(ctx context.Context, resource string) (resourceguard.Rule, error) {
	rule := resourceguard.Rule{Policy: g.opts.Policy}
	var err error
	if rule.Lock, err = g.opts.LockOf(resource); err != nil {
		return rule, refuse(resource, fmt.Errorf("which lock guards it: %w", err))
	}
	if g.opts.Ceiling != nil {
		if rule.Ceiling, err = g.opts.Ceiling(ctx); err != nil {
			return rule, refuse(resource, fmt.Errorf("ceiling: %w", err))
		}
	}
	return rule, nil
}

// refuse is the one place where errors get their outcome.
func refuse(resource string, err error) error {
	if err == nil {
		return nil
	}
	return resourceguard.WithOutcome(fmt.Errorf("memguard: %w", resourceguard.ForResource(resource, err)), resourceguard.NotApplied)
}

// step runs fn with the resource's rule and record inside the critical section.
// fn either returns an error and has changed nothing, or has changed the record,
// which is then kept.
func (g *Guard) step(ctx context.Context, resource string, fn func(resourceguard.Rule, *record) error) error {
	if resource == "" {
		return refuse(resource, fmt.Errorf("%w: the resource's name is empty", resourceguard.ErrInvalid))
	}
	rule, err := g.rule(ctx, resource)
	if err != nil {
		return err
	}
	s := g.opts.Store
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	r := s.at(resource)
	if err := fn(rule, r); err != nil {
		return refuse(resource, err)
	}
	s.records[resource] = r
	return nil
}

// Advance implements [resourceguard.Guard].
func (g *Guard) Advance(ctx context.Context, resource string, t revisionfence.Token) error {
	return g.step(ctx, resource, func(rule resourceguard.Rule, r *record) error {
		return r.advance(rule, resourceguard.Write{Resource: resource, Token: t})
	})
}

// advance raises the mark for something that is not a write. The owner of the
// new mark becomes known with its first write.
func (r *record) advance(rule resourceguard.Rule, w resourceguard.Write) error {
	mark, decision, err := rule.Advance(r.stored, w.Token)
	if err != nil {
		return err
	}
	if decision == resourceguard.Raise {
		r.stored, r.owner = resourceguard.MarkOf(mark), ""
	}
	return r.checkOwner(w)
}

// checkOwner compares owners where the presented token is the mark.
func (r *record) checkOwner(w resourceguard.Write) error {
	if mark, ok, err := r.stored.Mark(); err != nil || !ok || mark != w.Token {
		return err
	}
	return resourceguard.CheckOwner(r.owner, w.Owner)
}

// Mark implements [resourceguard.Guard].
func (g *Guard) Mark(ctx context.Context, resource string) (revisionfence.Mark, bool, error) {
	m := revisionfence.Mark{Resource: resource}
	if err := g.opts.Store.lock(ctx); err != nil {
		return m, false, err
	}
	defer g.opts.Store.unlock()
	var ok bool
	var err error
	m.Token, ok, err = g.opts.Store.at(resource).stored.Mark()
	return m, ok, refuse(resource, err)
}

// Marks implements [resourceguard.Guard]. It lists the resources by name, as
// they are at one moment.
func (g *Guard) Marks(ctx context.Context) iter.Seq2[revisionfence.Mark, error] {
	return func(yield func(revisionfence.Mark, error) bool) {
		stored := make(map[string]resourceguard.Stored)
		if err := g.opts.Store.lock(ctx); err != nil {
			yield(revisionfence.Mark{}, err)
			return
		}
		for resource, r := range g.opts.Store.records {
			stored[resource] = r.stored
		}
		g.opts.Store.unlock()
		// The caller's code runs without the turn: it may call the guard.
		for _, resource := range slices.Sorted(maps.Keys(stored)) {
			t, ok, err := stored[resource].Mark()
			if !ok && err == nil {
				continue
			}
			if !yield(revisionfence.Mark{Resource: resource, Token: t}, refuse(resource, err)) {
				return
			}
		}
	}
}

// SetFloor implements [resourceguard.Guard]. The record is in [Store.Floors].
func (g *Guard) SetFloor(ctx context.Context, m revisionfence.Mark, reason string) error {
	if err := resourceguard.CheckReason(reason); err != nil {
		return refuse(m.Resource, err)
	}
	return g.step(ctx, m.Resource, func(rule resourceguard.Rule, r *record) error {
		decision, err := rule.Floor(r.stored, m.Token)
		if err != nil {
			return err
		}
		before, _, _ := r.stored.Mark()
		if decision == resourceguard.Raise {
			r.stored, r.owner = resourceguard.MarkOf(m.Token), ""
		}
		r.floors = append(r.floors, Floor{Mark: m, Before: before, Reason: reason, At: time.Now()})
		return nil
	})
}

// replay looks for an operation that was applied before. What it finds it gives
// back only after the caller has checked the token.
func (r *record) replay(o resourceguard.Operation) (result resourceguard.Result, found bool, err error) {
	saved, found := r.operations[o.ID]
	if o.ID == "" || !found {
		return resourceguard.Result{}, false, nil
	}
	if !bytes.Equal(saved.digest, o.Digest) {
		return resourceguard.Result{}, false, fmt.Errorf("%w: ID %q", resourceguard.ErrOperationReused, o.ID)
	}
	result = saved.result
	result.Value = slices.Clone(result.Value)
	result.Replayed = true
	return result, true, nil
}

// sayApplied completes a refusal as stale.
func sayApplied(err error, saved resourceguard.Result) error {
	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
		stale.Applied = &saved
	}
	return err
}
