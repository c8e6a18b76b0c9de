package etcdguard

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Guard fences operations on one etcd. It may be used by any number of goroutines,
// and one is enough for a program. What it keeps in memory only saves requests:
// several guards, in several processes, are as safe as one.
type Guard struct {
	opts    Options
	once    clientv3.KV
	metrics *metrics
	memory  knownMarks
	pruning pruning

	// without takes compares out, for tests that show what each is for.
	without func(path string, compares []clientv3.Cmp) []clientv3.Cmp
}

func (g *Guard) cut(path string, compares []clientv3.Cmp) []clientv3.Cmp {
	if g.without == nil {
		return compares
	}
	return g.without(path, compares)
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
	if client == nil {
		return nil, fmt.Errorf("etcdguard: %w: no etcd client given", resourceguard.ErrInvalid)
	}
	if err := etcdonce.Check(client); err != nil {
		return nil, fmt.Errorf("etcdguard: %w: %w", resourceguard.ErrInvalid, err)
	}
	m, err := newMetrics(o.Registerer, o.Mode)
	if err != nil {
		return nil, fmt.Errorf("etcdguard: %w", err)
	}
	return &Guard{opts: o, once: etcdonce.New(client), metrics: m}, nil
}

// Advance is the barrier of a new owner: call it after the grant and before the first
// read. Once it has returned, no older token is accepted for the resource.
//
// The resource is what the options make of a key. Without LockOf and Resource that is
// the lock's name, t.Lock(), in mode HighWater, and makes no difference in mode Held.
// With LockOf it is a key in mode Held. With Resource it is a name which that returns.
//
// In mode Held it stores nothing: it reports whether t is the token of the lock's
// present owner. Where it is, every older grant has ended and its operations are
// refused already. It costs one linearizable read and no proposal.
//
// In mode HighWater it raises the mark, which only the present owner of the lock
// can: one linearizable read, and a transaction if the mark is not t already.
//
// It fails with [resourceguard.ErrNoToken], with [resourceguard.ErrWrongLock]
// (see Options.LockOf), with [resourceguard.ErrImplausible] if etcd cannot have
// issued t yet, with [ErrFormat], and with a [*resourceguard.StaleError] if
// anybody else or nobody owns the lock, or if the mark is newer. HighWater also
// fails with [resourceguard.ErrCorruptMark] and [ErrNoEpoch].
func (g *Guard) Advance(ctx context.Context, resource string, t revisionfence.Token) error {
	if t.IsZero() {
		return fmt.Errorf("advance %q: %w", resource, resourceguard.ErrNoToken)
	}
	f := fence{directory: g.opts.directory(t.Lock()), token: t}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	if g.opts.Mode == HighWater {
		return g.advanceMark(ctx, resource, f)
	}
	if resource == "" {
		return fmt.Errorf("advance %q: %w", resource, notApplied(errNoResource))
	}
	if err := g.bound(resource, []fence{f}); err != nil {
		return fmt.Errorf("advance %q: %w", resource, notApplied(err))
	}
	tx := transaction{then: []clientv3.Op{clientv3.OpGet(g.opts.epoch()), firstIn(f.directory)}, reads: true}
	resp, err := g.send(ctx, tx, what{resource: resource, reads: true})
	if err != nil {
		return fmt.Errorf("advance: %w", err)
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
		return &endedError{&resourceguard.StaleError{Resource: resource, Presented: t, Accepted: owner}, f.directory}
	}
	return nil
}

func (g *Guard) advanceMark(ctx context.Context, resource string, f fence) error {
	c, err := g.claim(resource, []fence{f})
	if err != nil {
		return fmt.Errorf("advance %q: %w", resource, notApplied(err))
	}
	if _, err = g.highWater(ctx, call{claims: []claim{c}, advance: true, reads: true}); err != nil {
		return fmt.Errorf("advance: %w", err)
	}
	return nil
}
