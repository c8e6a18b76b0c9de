package memguard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Store is the memory that a guard works on. Several guards on one Store are
// like several processes in front of one database. Make one with [NewStore].
type Store struct {
	// turn is a mutex that can be waited for with a context: whoever has put
	// something in may touch everything below.
	turn    chan struct{}
	records map[string]*record
}

// record is never removed, so that a mark outlives the value it guarded.
type record struct {
	value  []byte
	exists bool

	stored resourceguard.Stored
	owner  string // of the grant whose token is the mark; "" if not known

	operations map[string]operation
	order      []string // the keys of operations, oldest first
	floors     []Floor
}

type operation struct {
	digest []byte
	result resourceguard.Result
	at     time.Time
}

// Floor is the record of one successful [Guard.SetFloor].
type Floor struct {
	// Mark is what the mark became.
	Mark revisionfence.Mark
	// Before is the mark that it replaced; zero if there was none or if it was
	// unreadable.
	Before revisionfence.Token
	// Reason is the operator's.
	Reason string
	// At is when.
	At time.Time
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{turn: make(chan struct{}, 1), records: make(map[string]*record)}
}

// lock waits for the turn until ctx ends. A ctx that has ended never gets it,
// also when the turn is free.
func (s *Store) lock(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case s.turn <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return resourceguard.WithOutcome(fmt.Errorf("memguard: %w", err), resourceguard.NotApplied)
}

func (s *Store) unlock() { <-s.turn }

// at returns the record of a resource. That of a new one is not kept before
// something is stored: a refused write must leave nothing behind.
func (s *Store) at(resource string) *record {
	if r, ok := s.records[resource]; ok {
		return r
	}
	return &record{stored: resourceguard.NoMark()}
}

// Peek reads a value without a token and without a guard, as a backup or a
// person with access would. It returns false if there is none. What it returned
// may be out of date at once, and may still be changed by an old owner: use
// [Guard.Get] to decide anything.
func (s *Store) Peek(ctx context.Context, resource string) ([]byte, bool, error) {
	if err := s.lock(ctx); err != nil {
		return nil, false, err
	}
	defer s.unlock()
	r := s.at(resource)
	return slices.Clone(r.value), r.exists, nil
}

// Floors returns what was put on record by [Guard.SetFloor] for a resource,
// oldest first.
func (s *Store) Floors(ctx context.Context, resource string) ([]Floor, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.unlock()
	return slices.Clone(s.at(resource).floors), nil
}

// prune forgets results that are older than keep, oldest first. A result of the
// present mark's token stays: its owner may still be waiting for the answer.
func (r *record) prune(now time.Time, keep time.Duration) {
	mark, _, _ := r.stored.Mark()
	n := 0
	for _, id := range r.order {
		o := r.operations[id]
		if now.Sub(o.at) <= keep || o.result.Mark == mark {
			break
		}
		delete(r.operations, id)
		n++
	}
	r.order = slices.Delete(r.order, 0, n)
}
