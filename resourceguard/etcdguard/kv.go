package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// KV returns a KV each of whose operations takes place only if the grant, or each
// of the grants, lasts at that moment; else it changes nothing, reads nothing and
// fails with a [*resourceguard.StaleError]. It may stand wherever a clientv3.KV
// does, the field of a client included, and its answers look as if there were no
// guard. The package comment says what differs.
//
// It does no I/O and costs microseconds: make one for each grant. A grant
// that has ended is not noticed here, but by the first operation.
//
// KV fails with [resourceguard.ErrNoToken] if there is nothing to fence by, and
// with [resourceguard.ErrInvalid] if the fence could be true without a grant, or
// if its keys are not where Options.Prefix and Options.Directory say.
func (g *Guard) KV(f Fenced) (clientv3.KV, error) {
	fences, err := g.opts.fences(f)
	if err != nil {
		return nil, fmt.Errorf("etcdguard: %w", err)
	}
	return g.fencedBy(fences), nil
}

func (g *Guard) fencedBy(fences []fence) *fencedKV {
	kv := &fencedKV{
		guard: g, fences: fences,
		protected: []keyRange{under(g.opts.Prefix)},
	}
	for i := range fences {
		kv.protected = append(kv.protected, under(fences[i].directory))
		// Step F1: the write's own transaction compares, and not a read before it.
		kv.compares = append(kv.compares, fences[i].compare())
		kv.owners = append(kv.owners, firstIn(fences[i].directory))
		kv.floor = max(kv.floor, fences[i].token.Revision())
	}
	return kv
}

// fencedKV is what [Guard.KV] returns. Nothing in it changes.
type fencedKV struct {
	guard    *Guard
	fences   []fence
	compares []clientv3.Cmp
	owners   []clientv3.Op // as many as the compares, so that they use up none of etcd's limits
	floor    int64         // the lowest revision that may be read at

	protected []keyRange // where nothing may be written
}

var _ clientv3.KV = (*fencedKV)(nil)

func (kv *fencedKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := kv.Do(ctx, clientv3.OpPut(key, val, opts...))
	return resp.Put(), err
}

func (kv *fencedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := kv.Do(ctx, clientv3.OpGet(key, opts...))
	return resp.Get(), err
}

func (kv *fencedKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	resp, err := kv.Do(ctx, clientv3.OpDelete(key, opts...))
	return resp.Del(), err
}

func (kv *fencedKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if op.IsTxn() {
		compares, then, otherwise := op.Txn()
		resp, err := kv.transact(ctx, compares, then, otherwise)
		if err != nil {
			return clientv3.OpResponse{}, err
		}
		return resp.OpResponse(), nil
	}
	resp, err := kv.commit(ctx, []clientv3.Op{op})
	if err != nil {
		return clientv3.OpResponse{}, err
	}
	return single(op, resp), nil
}

// single is the answer to the only operation of a transaction. Inside of one it has no
// header but the revision; that of the transaction says the same and is complete.
func single(op clientv3.Op, resp *clientv3.TxnResponse) clientv3.OpResponse {
	switch r := resp.Responses[0]; {
	case op.IsPut():
		put := r.GetResponsePut()
		put.Header = resp.Header
		return (*clientv3.PutResponse)(put).OpResponse()
	case op.IsDelete():
		del := r.GetResponseDeleteRange()
		del.Header = resp.Header
		return (*clientv3.DeleteResponse)(del).OpResponse()
	default:
		get := r.GetResponseRange()
		get.Header = resp.Header
		return (*clientv3.GetResponse)(get).OpResponse()
	}
}

// Compact fails: a compaction cannot be part of a transaction.
func (kv *fencedKV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, &unsupportedError{"Compact cannot be fenced: use the client's own KV"}
}

// GetStream fails: a stream cannot be part of a transaction.
func (kv *fencedKV) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return nil, &unsupportedError{"GetStream cannot be fenced: use Get"}
}

// commit carries operations out under the fence.
func (kv *fencedKV) commit(ctx context.Context, ops []clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	g, replayed := kv.guard, false
	reads, err := kv.check(ops)
	defer func() { g.count(onlyReads(ops), replayed, err) }()
	if err != nil {
		return nil, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	if g.opts.Mode == HighWater {
		a, err := kv.highWater(ctx, ops, reads)
		if err != nil {
			return nil, err
		}
		replayed = a.saved != nil
		return a.resp, nil
	}
	return kv.held(ctx, ops, resourceOf(ops))
}

// held is commit where the lock key decides.
func (kv *fencedKV) held(ctx context.Context, ops []clientv3.Op, resource string) (*clientv3.TxnResponse, error) {
	reads := onlyReads(ops)
	if _, ok := resourceguard.OperationFromContext(ctx); ok && !reads {
		return nil, fmt.Errorf("etcdguard: mode Held keeps no results of operations: %w", notApplied(errors.ErrUnsupported))
	}
	t := transaction{compares: kv.compares, then: ops, otherwise: kv.owners, reads: reads}
	resp, err := kv.guard.send(ctx, t, what{key: resourceOf(ops), reads: reads})
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return nil, kv.stale(ctx, resp, resource)
	}
	return resp, nil
}

// highWater is commit where a mark decides.
func (kv *fencedKV) highWater(ctx context.Context, ops []clientv3.Op, reads bool) (answer, error) {
	claims, err := kv.guard.claims(ops, kv.fences)
	if err != nil {
		return answer{}, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	c := call{claims: claims, ops: ops, reads: reads}
	if op, ok := resourceguard.OperationFromContext(ctx); ok && !reads {
		c.operation = op
	}
	return kv.guard.operate(ctx, c)
}

// operate checks what is asked for of the operation, and tidies up after it.
func (g *Guard) operate(ctx context.Context, c call) (answer, error) {
	err := c.operation.Check()
	if c.saves() && len(c.claims) > 1 {
		err = fmt.Errorf("%w: operation %q writes to resources %q and %q, and an operation is of one resource",
			resourceguard.ErrInvalid, c.operation.ID, c.claims[0].resource, c.claims[1].resource)
	}
	if err != nil {
		return answer{}, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	a, err := g.highWater(ctx, c)
	if err == nil && c.saves() && a.saved == nil {
		g.pruneSometimes(ctx)
	}
	return a, err
}

// stale says which of the grants has ended, and who owns its lock.
func (kv *fencedKV) stale(ctx context.Context, resp *clientv3.TxnResponse, resource string) error {
	ended := 0
	for i := range kv.fences {
		if !kv.fences[i].holds(resp.Responses[i].GetResponseRange()) {
			ended = i
			break
		}
	}
	presented := kv.fences[ended].token
	return &endedError{&resourceguard.StaleError{
		Resource:  resource,
		Presented: presented,
		Accepted:  ownerIn(resp.Responses[ended].GetResponseRange(), presented.Lock(), kv.guard.epochOr(ctx, presented.Epoch())),
	}, kv.fences[ended].directory}
}

// maxEpochWait bounds what an error message may wait for.
const maxEpochWait = time.Second

// epochOr reads the epoch for an error message. Reading it with each operation would
// cost all of them, and ask for a permission that only this needs; and refused is
// refused, whatever becomes of this read.
func (g *Guard) epochOr(ctx context.Context, presented uint16) uint16 {
	ctx, cancel := context.WithTimeout(ctx, maxEpochWait)
	defer cancel()
	resp, err := g.once.Get(ctx, g.opts.epoch())
	if err != nil {
		return presented
	}
	epoch, err := epochIn((*pb.RangeResponse)(resp))
	if err != nil {
		return presented
	}
	return epoch
}
