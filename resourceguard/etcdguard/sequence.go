package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// ErrOutOfSequence is a write that was not applied because its key is no longer as
// the program saw it last: an earlier write whose outcome was unknown has landed, or
// somebody else wrote. Get the key again, and then decide.
var ErrOutOfSequence = errors.New("key has changed since it was last seen")

// Sequenced returns a KV that applies its writes to each key in the order of its
// calls, or not at all. It goes around a KV of [Guard.KV], in either mode, for a
// program that does not use operation IDs: a context that carries one is refused.
//
// A fence alone does not order the writes of one grant. A write whose outcome was
// unknown may still be under way, and land on top of a later one. Here every Put and
// Delete also compares the key's mod revision with the one that was last seen, by a
// Get or a write of this KV: so whichever of two writes lands first, the other does
// not. It fails with [ErrOutOfSequence], which changed nothing; get the key again.
// The first write to a key that was not read reads it before, under the fence.
//
// A key that does not exist has no revision to tell one absence from another. So once
// the outcome of a Put that was to create a key is unknown, a Delete of that key is
// refused with [errors.ErrUnsupported]: put an empty value, or acquire the lock again.
//
// A mod revision is kept for each key that was written or was the only key of a Get,
// for as long as the KV lives. Of two calls on one key at once one may be refused.
// Transactions, and deleting a range, are refused with [errors.ErrUnsupported]: in a
// transaction, compare the mod revisions there.
func Sequenced(kv clientv3.KV) clientv3.KV {
	return &sequencedKV{KV: kv, seen: make(map[string]int64), creating: make(map[string]bool)}
}

type sequencedKV struct {
	clientv3.KV

	mu       sync.Mutex
	seen     map[string]int64 // mod revision by key, 0 for a key that does not exist
	creating map[string]bool  // keys that a Put of unknown outcome may still create
}

func (s *sequencedKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := s.Do(ctx, clientv3.OpPut(key, val, opts...))
	return resp.Put(), err
}

func (s *sequencedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := s.Do(ctx, clientv3.OpGet(key, opts...))
	return resp.Get(), err
}

func (s *sequencedKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	resp, err := s.Do(ctx, clientv3.OpDelete(key, opts...))
	return resp.Del(), err
}

// Txn returns a transaction whose Commit fails.
func (s *sequencedKV) Txn(context.Context) clientv3.Txn { return refusedTxn{} }

func (s *sequencedKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	key := string(op.KeyBytes())
	switch _, operation := resourceguard.OperationFromContext(ctx); {
	case op.IsGet():
		return s.read(ctx, op)
	case op.IsTxn():
		return clientv3.OpResponse{}, errNoSequencedTxn
	case len(op.RangeBytes()) > 0:
		return clientv3.OpResponse{}, &unsupportedError{"deleting a range cannot be sequenced"}
	case operation:
		return clientv3.OpResponse{}, &unsupportedError{"an operation ID and Sequenced exclude each other: the operation would be on record as applied when it was out of sequence"}
	case op.IsDelete() && s.maybeCreated(key):
		return clientv3.OpResponse{}, &unsupportedError{fmt.Sprintf("deleting %q cannot be sequenced: an earlier Put of unknown outcome may still create it", key)}
	}
	mod, err := s.lastSeen(ctx, key)
	if err != nil {
		return clientv3.OpResponse{}, err
	}
	resp, err := s.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", mod)).
		Then(op).Else(clientv3.OpGet(key, clientv3.WithKeysOnly())).Commit()
	switch {
	case err != nil:
		if mod == 0 && op.IsPut() && resourceguard.OutcomeOf(err) == resourceguard.Unknown {
			s.mu.Lock()
			s.creating[key] = true
			s.mu.Unlock()
		}
		return clientv3.OpResponse{}, err
	case !resp.Succeeded:
		return clientv3.OpResponse{}, notApplied(fmt.Errorf("etcdguard: key %q: %w, at mod revision %d", key, ErrOutOfSequence, mod))
	}
	if op.IsDelete() {
		s.see(key, 0)
	} else {
		s.see(key, resp.Header.Revision)
	}
	return single(op, resp), nil
}

func (s *sequencedKV) maybeCreated(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.creating[key]
}

// read remembers what it saw, unless that is of the past.
func (s *sequencedKV) read(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	resp, err := s.KV.Do(ctx, op)
	if err == nil && len(op.RangeBytes()) == 0 && op.Rev() == 0 && !op.IsCountOnly() && resp.Get() != nil {
		var mod int64
		if kvs := resp.Get().Kvs; len(kvs) > 0 {
			mod = kvs[0].ModRevision
		}
		s.see(string(op.KeyBytes()), mod)
	}
	return resp, err
}

func (s *sequencedKV) see(key string, mod int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[key] = mod
}

func (s *sequencedKV) lastSeen(ctx context.Context, key string) (int64, error) {
	s.mu.Lock()
	mod, ok := s.seen[key]
	s.mu.Unlock()
	if ok {
		return mod, nil
	}
	_, err := s.read(ctx, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key], err
}

var errNoSequencedTxn = &unsupportedError{"a transaction cannot be sequenced: compare mod revisions in it, on a KV that is not Sequenced"}

// refusedTxn takes everything and does nothing.
type refusedTxn struct{}

func (t refusedTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t refusedTxn) Then(...clientv3.Op) clientv3.Txn { return t }
func (t refusedTxn) Else(...clientv3.Op) clientv3.Txn { return t }

func (refusedTxn) Commit() (*clientv3.TxnResponse, error) { return nil, errNoSequencedTxn }
