package etcdguard

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Do carries operations out in one transaction under w.Token, for a program that has
// the token of a grant and not the grant: it came with a request. A transaction with
// compares of its own is one operation: clientv3.OpTxn. The responses are in the
// order of the operations.
//
// In mode HighWater w.Resource is the resource whose mark decides, and with
// Options.Resource all keys must belong to it. w.Owner is the last segment of the
// lock key, or all of it; without one the owner is not checked. With w.Operation the
// operations are carried out once, if they write at all: a repetition returns the
// revision and the branch of the first answer in responses that are empty otherwise,
// and Result.Replayed. Result.Value is that revision, in decimal, and is there with
// an operation only.
//
// In mode Held w.Resource only names what errors are about, w.Owner is required, and
// w.Operation is refused with [errors.ErrUnsupported].
//
// It fails as the operations of [Guard.KV] do, and with [resourceguard.ErrInvalid] or
// [resourceguard.ErrNoToken] for what [resourceguard.Write.Check] refuses.
func (g *Guard) Do(ctx context.Context, w resourceguard.Write, ops ...clientv3.Op) (resourceguard.Result, *clientv3.TxnResponse, error) {
	result, resp, err := g.do(ctx, w, ops)
	g.count(onlyReads(ops), result.Replayed, err)
	if err != nil {
		return resourceguard.Result{}, nil, err
	}
	return result, resp, nil
}

func (g *Guard) do(ctx context.Context, w resourceguard.Write, ops []clientv3.Op) (resourceguard.Result, *clientv3.TxnResponse, error) {
	refused := func(err error) (resourceguard.Result, *clientv3.TxnResponse, error) {
		return resourceguard.Result{}, nil, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	if err := w.Check(); err != nil {
		return refused(resourceguard.ForResource(w.Resource, err))
	}
	if len(ops) == 0 {
		return refused(fmt.Errorf("%w: Do without operations: use Advance for a barrier", resourceguard.ErrInvalid))
	}
	f := fence{directory: g.opts.directory(w.Token.Lock()), token: w.Token}
	f.owner = ownerOf(w.Owner, f.directory)
	kv := g.fencedBy([]fence{f})
	reads, err := kv.check(ops)
	if err != nil {
		return refused(err)
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	if g.opts.Mode == Held {
		return g.doHeld(ctx, w, f, ops)
	}
	c := call{ops: ops, reads: reads, operation: w.Operation}
	if c.claims, err = g.claimed(w.Resource, ops, kv.fences); err != nil {
		return refused(err)
	}
	a, err := g.operate(ctx, c)
	if err != nil {
		return resourceguard.Result{}, nil, err
	}
	result := resourceguard.Result{Mark: w.Token}
	if a.saved != nil {
		result = a.saved.result()
	} else if c.saves() {
		result.Value = revisionValue(a.revision)
	}
	return result, a.resp, nil
}

// claimed is the one claim of a call that names its resource.
func (g *Guard) claimed(resource string, ops []clientv3.Op, fences []fence) ([]claim, error) {
	if g.opts.Resource != nil {
		for op := range leaves(ops) {
			name, err := g.resource(op)
			if err != nil {
				return nil, err
			}
			if name != resource {
				return nil, fmt.Errorf("%w: Write.Resource is %q, and key %q belongs to %q", resourceguard.ErrInvalid, resource, op.KeyBytes(), name)
			}
		}
	}
	c, err := g.claim(resource, fences)
	return []claim{c}, err
}

// doHeld needs the lock key, which in this mode is the whole fence.
func (g *Guard) doHeld(ctx context.Context, w resourceguard.Write, f fence, ops []clientv3.Op) (resourceguard.Result, *clientv3.TxnResponse, error) {
	if f.owner == "" {
		return resourceguard.Result{}, nil, fmt.Errorf("etcdguard: %w: Write.Owner is empty, and mode Held asks for the lock key", notApplied(resourceguard.ErrInvalid))
	}
	f.key = f.directory + f.owner
	if !w.Operation.IsZero() {
		ctx = resourceguard.WithOperation(ctx, w.Operation)
	}
	resp, err := g.fencedBy([]fence{f}).held(ctx, ops, w.Resource)
	if err != nil {
		return resourceguard.Result{}, nil, err
	}
	return resourceguard.Result{Mark: w.Token}, resp, nil
}

// bearer is a token alone.
type bearer struct{ token revisionfence.Token }

func (b bearer) Token() revisionfence.Token { return b.token }

func (bearer) Fence() []clientv3.Cmp { return nil }

// FromToken makes a token alone into something that [Guard.KV] takes in mode
// HighWater: the lock key is looked for when the mark has to be raised. Mode Held
// refuses it with [resourceguard.ErrNoToken], since without a lock key it has nothing
// to compare; and so does HighWater if it is nil or has no token.
//
// A grant itself is better: it brings the owner along.
func FromToken(t revisionfence.Source) Fenced {
	if isNil(t) {
		return bearer{}
	}
	return bearer{t.Token()}
}
