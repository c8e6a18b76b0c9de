package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Guard fences operations on one etcd. It holds no state, may be used by any
// number of goroutines, and one is enough for a program.
type Guard struct {
	opts Options
	once clientv3.KV
}

var _ resourceguard.Guard = (*Guard)(nil)

// New returns a guard for the etcd of client, whose locks and data must be in the
// same cluster. Nil options are fine. It does no I/O and never closes the client.
//
// The guard uses the connection of the client, past client.KV. So a client whose
// KV has been replaced, by a namespace or by a KV of this package, is refused:
// make the guard first, and put a namespace around what [Guard.KV] returns.
//
// Its errors are [resourceguard.ErrInvalid].
func New(client *clientv3.Client, opts *Options) (*Guard, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("etcdguard: %w", err)
	}
	if err := etcdonce.Check(client); err != nil {
		return nil, fmt.Errorf("etcdguard: %w: %w", resourceguard.ErrInvalid, err)
	}
	return &Guard{opts: o, once: etcdonce.New(client)}, nil
}

// Advance reports whether t is the token of the lock's present owner. Where it
// is, every older grant has ended and its operations are refused already, so that
// nothing has to be stored: what is read from here on is not changed by an old
// owner. It costs one linearizable read and no proposal.
//
// It fails with [resourceguard.ErrNoToken], with [resourceguard.ErrWrongLock]
// (see Options.LockOf), with [resourceguard.ErrImplausible] if etcd cannot have
// issued t yet, with [ErrFormat], and with a [*resourceguard.StaleError] if
// anybody else or nobody owns the lock.
func (g *Guard) Advance(ctx context.Context, resource string, t revisionfence.Token) error {
	if t.IsZero() {
		return fmt.Errorf("advance %q: %w", resource, resourceguard.ErrNoToken)
	}
	f := fence{directory: g.opts.directory(t.Lock()), token: t}
	if err := g.bound(resource, []fence{f}); err != nil {
		return fmt.Errorf("advance %q: %w", resource, notApplied(err))
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	resp, err := g.send(ctx, transaction{then: []clientv3.Op{clientv3.OpGet(g.opts.epoch()), firstIn(f.directory)}, reads: true})
	if err != nil {
		return fmt.Errorf("advance %q: %w", resource, err)
	}
	epoch, err := epochIn(resp.Responses[0].GetResponseRange())
	if err != nil {
		return fmt.Errorf("advance %q: %w", resource, notApplied(err))
	}
	if t.Epoch() > epoch || t.Epoch() == epoch && t.Revision() > resp.Header.Revision {
		return fmt.Errorf("advance %q: %w: token %s, etcd is at revision %d of epoch %d",
			resource, resourceguard.ErrImplausible, t, resp.Header.Revision, epoch)
	}
	if owner := ownerIn(resp.Responses[1].GetResponseRange(), t.Lock(), epoch); owner != t {
		return &resourceguard.StaleError{Resource: resource, Presented: t, Accepted: owner}
	}
	return nil
}

var errNoMarks = fmt.Errorf("etcdguard: mode Held keeps no marks: %w", errors.ErrUnsupported)

// Mark is not supported in mode Held: the error is [errors.ErrUnsupported].
func (g *Guard) Mark(context.Context, string) (revisionfence.Mark, bool, error) {
	return revisionfence.Mark{}, false, notApplied(errNoMarks)
}

// Marks is not supported in mode Held: it yields [errors.ErrUnsupported].
func (g *Guard) Marks(context.Context) iter.Seq2[revisionfence.Mark, error] {
	return func(yield func(revisionfence.Mark, error) bool) {
		yield(revisionfence.Mark{}, notApplied(errNoMarks))
	}
}

// SetFloor is not supported in mode Held: the error is [errors.ErrUnsupported].
func (g *Guard) SetFloor(context.Context, revisionfence.Mark, string) error {
	return notApplied(errNoMarks)
}
