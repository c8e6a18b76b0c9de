package etcdguard

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Txn returns a transaction under the fence.
func (kv *fencedKV) Txn(ctx context.Context) clientv3.Txn {
	return &fencedTxn{kv: kv, ctx: ctx}
}

// fencedTxn collects a transaction as clientv3's own does, the panics of a wrong
// order included.
type fencedTxn struct {
	kv  *fencedKV
	ctx context.Context

	mu                         sync.Mutex
	hasIf, hasThen, hasElse    bool
	compares                   []clientv3.Cmp
	thenOperations, operations []clientv3.Op
}

func (t *fencedTxn) If(compares ...clientv3.Cmp) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.hasIf:
		panic("etcdguard: If called twice")
	case t.hasThen:
		panic("etcdguard: If called after Then")
	case t.hasElse:
		panic("etcdguard: If called after Else")
	}
	t.hasIf = true
	for i := range compares {
		// The caller may change its own until Commit.
		t.compares = append(t.compares, compares[i].Clone())
	}
	return t
}

func (t *fencedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.hasThen:
		panic("etcdguard: Then called twice")
	case t.hasElse:
		panic("etcdguard: Then called after Else")
	}
	t.hasThen = true
	t.thenOperations = append(t.thenOperations, ops...)
	return t
}

func (t *fencedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasElse {
		panic("etcdguard: Else called twice")
	}
	t.hasElse = true
	t.operations = append(t.operations, ops...)
	return t
}

func (t *fencedTxn) Commit() (*clientv3.TxnResponse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kv.transact(t.ctx, t.compares, t.thenOperations, t.operations)
}

// transact carries a program's transaction out under the fence.
func (kv *fencedKV) transact(ctx context.Context, compares []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if len(compares) == 0 && len(otherwise) == 0 {
		// Flat: the program's operations are those of the transaction. Where
		// there are none, the reads of the other branch keep etcd from answering
		// without asking its peers, as it does with an empty transaction.
		return kv.commit(ctx, then)
	}
	// The compares of a nested transaction are evaluated at the same moment as
	// those of the outer one. Beside the fence's own, a false one could not be
	// told from a fence that does not hold.
	resp, err := kv.commit(ctx, []clientv3.Op{clientv3.OpTxn(compares, then, otherwise)})
	if err != nil {
		return nil, err
	}
	inner := (*clientv3.TxnResponse)(resp.Responses[0].GetResponseTxn())
	inner.Header = resp.Header
	return inner, nil
}
