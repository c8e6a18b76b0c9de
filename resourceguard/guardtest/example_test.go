package guardtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// shelf is the backend: what a database would be.
type shelf struct {
	mu    sync.Mutex // one step of the backend: a transaction, in a database
	locks map[string]string
	slots map[string]slot
	last  int64 // revision that was granted
}

type slot struct {
	value  []byte
	exists bool
	mark   string // as Token.String wrote it; "" if there is none
	owner  string
}

func (s slot) stored() resourceguard.Stored {
	if s.mark == "" {
		return resourceguard.NoMark()
	}
	return resourceguard.ParseMark(s.mark)
}

// shelfGuard is a guard that keeps marks and owners.
type shelfGuard struct {
	shelf  *shelf
	config guardtest.Config // what an Options of yours would have
}

// step runs fn on what is stored, and stores what fn made of it if it returns nil.
func (g shelfGuard) step(ctx context.Context, resource string, fn func(resourceguard.Rule, *slot) error) error {
	g.shelf.mu.Lock()
	defer g.shelf.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return resourceguard.WithOutcome(err, resourceguard.NotApplied)
	}
	lock, ok := g.shelf.locks[resource] // by configuration, and never by the token
	if !ok {
		return fmt.Errorf("%w: there is no resource %q", resourceguard.ErrInvalid, resource)
	}
	s := g.shelf.slots[resource]
	rule := resourceguard.Rule{Lock: lock, Policy: g.config.Policy, Ceiling: g.config.Ceiling}
	if err := fn(rule, &s); err != nil {
		return resourceguard.ForResource(resource, err)
	}
	g.shelf.slots[resource] = s
	return nil
}

func (g shelfGuard) write(ctx context.Context, w resourceguard.Write, effect func(*slot)) (resourceguard.Result, error) {
	err := w.Check()
	if err == nil && !w.Operation.IsZero() {
		err = errors.ErrUnsupported // no results are kept
	}
	if err != nil {
		return resourceguard.Result{}, resourceguard.ForResource(w.Resource, err)
	}
	err = g.step(ctx, w.Resource, func(rule resourceguard.Rule, s *slot) error {
		decision, err := rule.Admit(s.stored(), w.Token)
		if err == nil && decision == resourceguard.Same {
			err = resourceguard.CheckOwner(s.owner, w.Owner)
		}
		if err != nil {
			return err
		}
		if decision == resourceguard.Raise {
			s.mark, s.owner = w.Token.String(), w.Owner
		} else if s.owner == "" { // after an Advance
			s.owner = w.Owner
		}
		effect(s)
		return nil
	})
	if err != nil {
		return resourceguard.Result{}, err
	}
	return resourceguard.Result{Mark: w.Token}, nil
}

func (g shelfGuard) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	return g.PutSlowly(ctx, w, value, func() {})
}

// PutSlowly lets the kit try what comes between check and effect: here nothing can.
func (g shelfGuard) PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error) {
	return g.write(ctx, w, func(s *slot) {
		during()
		s.value, s.exists = bytes.Clone(value), true
	})
}

func (g shelfGuard) Advance(ctx context.Context, resource string, t revisionfence.Token) error {
	return g.step(ctx, resource, func(rule resourceguard.Rule, s *slot) error {
		mark, decision, err := rule.Advance(s.stored(), t)
		if decision == resourceguard.Raise {
			s.mark, s.owner = mark.String(), ""
		}
		return err
	})
}

func (g shelfGuard) Mark(ctx context.Context, resource string) (revisionfence.Mark, bool, error) {
	m, exists := revisionfence.Mark{Resource: resource}, false
	err := g.step(ctx, resource, func(_ resourceguard.Rule, s *slot) (err error) {
		m.Token, exists, err = s.stored().Mark()
		return err
	})
	return m, exists, err
}

func (g shelfGuard) Marks(ctx context.Context) iter.Seq2[revisionfence.Mark, error] {
	return func(yield func(revisionfence.Mark, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(revisionfence.Mark{}, resourceguard.WithOutcome(err, resourceguard.NotApplied))
			return
		}
		g.shelf.mu.Lock()
		var resources []string
		for resource, s := range g.shelf.slots {
			if s.mark != "" {
				resources = append(resources, resource)
			}
		}
		g.shelf.mu.Unlock()
		for _, resource := range resources {
			if m, _, err := g.Mark(ctx, resource); !yield(m, err) {
				return
			}
		}
	}
}

// What a guard does not have is declared in Harness.Lacks, and not called.

func (g shelfGuard) SetFloor(context.Context, revisionfence.Mark, string) error {
	return errors.ErrUnsupported
}

func (g shelfGuard) Get(context.Context, resourceguard.Write) ([]byte, bool, error) {
	return nil, false, errors.ErrUnsupported
}

func (g shelfGuard) Delete(context.Context, resourceguard.Write) (resourceguard.Result, error) {
	return resourceguard.Result{}, errors.ErrUnsupported
}

func newShelfHarness(*testing.T) guardtest.Harness {
	shelf := &shelf{locks: make(map[string]string), slots: make(map[string]slot), last: 2}
	return guardtest.Harness{
		Open: func(_ guardtest.TB, c guardtest.Config) guardtest.Subject { return shelfGuard{shelf, c} },
		Resource: func(_ guardtest.TB, name, lock string) string {
			shelf.mu.Lock()
			defer shelf.mu.Unlock()
			shelf.locks[name] = lock
			return name
		},
		Read: func(_ guardtest.TB, resource string) ([]byte, bool) {
			shelf.mu.Lock()
			defer shelf.mu.Unlock()
			s := shelf.slots[resource]
			return s.value, s.exists
		},
		Grant: func(tb guardtest.TB, lock string) guardtest.Grant {
			shelf.mu.Lock()
			defer shelf.mu.Unlock()
			shelf.last++
			token, err := revisionfence.New(lock, 0, shelf.last)
			if err != nil {
				tb.Fatalf("New: %v", err)
			}
			return guardtest.Grant{Token: token, Owner: fmt.Sprintf("%s/%d", lock, shelf.last)}
		},
		CorruptMark: func(_ guardtest.TB, resource string) {
			shelf.mu.Lock()
			defer shelf.mu.Unlock()
			s := shelf.slots[resource]
			s.mark = "no token"
			shelf.slots[resource] = s
		},
		Lacks: map[guardtest.Capability]string{
			guardtest.Floors:      "nobody has needed it",
			guardtest.Operations:  "it keeps no results",
			guardtest.FencedReads: "readers read the shelf",
			guardtest.Deletes:     "nothing leaves the shelf",
		},
	}
}

// A guard with its harness, to copy and change. In your own test file, the function
// is called TestConformance.
func ExampleRun() {
	testConformance := func(t *testing.T) {
		guardtest.Run(t, newShelfHarness)
	}
	_ = testConformance
}
