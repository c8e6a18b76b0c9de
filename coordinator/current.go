package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// readHead reads the front of a queue and the epoch, linearizably.
func (c *Coordinator) readHead(ctx context.Context, directory string) ([]*mvccpb.KeyValue, uint16, error) {
	resp, err := c.read(ctx, clientv3.OpGet(c.keys.epoch()), headOf(directory))
	if err != nil {
		return nil, 0, err
	}
	epoch, err := epochOf(resp.Responses[0].GetResponseRange().Kvs)
	return resp.Responses[1].GetResponseRange().Kvs, epoch, err
}

// IsCurrent reports whether the token is that of the grant that holds its lock
// now: its key is the first in the queue, and its epoch the present one. A
// waiter's key exists too, so that a key exists says nothing
// (etcd-io/etcd#12017). The answer is out of date when it is returned: it is for
// people and for reports. Before a write it protects nothing; a guard does.
func (c *Coordinator) IsCurrent(ctx context.Context, token revisionfence.Token) (bool, error) {
	if token.IsZero() {
		return false, fmt.Errorf("is current: %w", revisionfence.ErrNoToken)
	}
	directory, err := c.directory(token.Lock())
	if err != nil {
		return false, fmt.Errorf("is %s current: %w", token, err)
	}
	queue, epoch, err := c.readHead(ctx, directory)
	if err != nil {
		return false, fmt.Errorf("is %s current: %w", token, err)
	}
	if len(queue) == 0 {
		return false, nil
	}
	if err := checkFormat(queue[0]); err != nil {
		return false, fmt.Errorf("is %s current: %w", token, err)
	}
	return holderOf(token.Lock(), epoch, queue[0]).Token == token, nil
}

// Evict ends exactly the grant, or the place in the queue, that has this token,
// as an operator's act. Its holder is told [LostEvicted] with the reason, at its
// next proof at the latest ([LostKeyDeleted] if etcd had no space for the reason);
// its writes are refused from now on where a guard
// checks the lock key, and elsewhere once the next holder has raised the mark.
//
// It fails with a *[BusyError] that names the holder if another grant holds the
// lock, and with [ErrNotHeld] if nobody does. An error that is [ErrUnsettled]
// leaves it open: call Evict again.
func (c *Coordinator) Evict(ctx context.Context, token revisionfence.Token, reason string) error {
	if token.IsZero() {
		return fmt.Errorf("evict: %w", revisionfence.ErrNoToken)
	}
	if err := checkText("Reason", reason, maxReason); err != nil {
		return fmt.Errorf("evict %s: %w", token, err)
	}
	directory, err := c.directory(token.Lock())
	if err != nil {
		return fmt.Errorf("evict %s: %w", token, err)
	}
	if err := c.evict(ctx, directory, token, reason); err != nil {
		return fmt.Errorf("evict %s: %w", token, err)
	}
	return nil
}

func (c *Coordinator) evict(ctx context.Context, directory string, token revisionfence.Token, reason string) error {
	resp, err := c.read(ctx,
		clientv3.OpGet(c.keys.epoch()),
		clientv3.OpGet(directory, clientv3.WithPrefix(), clientv3.WithMinCreateRev(token.Revision()), clientv3.WithMaxCreateRev(token.Revision()), clientv3.WithLimit(1)),
		headOf(directory),
	)
	if err != nil {
		return err
	}
	epochKVs := resp.Responses[0].GetResponseRange().Kvs
	epoch, err := epochOf(epochKVs)
	if err != nil {
		return err
	}
	victim := resp.Responses[1].GetResponseRange().Kvs
	head := resp.Responses[2].GetResponseRange().Kvs
	for _, kv := range victim {
		if err := checkFormat(kv); err != nil {
			return err
		}
	}
	// A key that is not ours has no token: nobody can mean it, and none is deleted.
	if len(victim) == 0 || holderOf(token.Lock(), epoch, victim[0]).Token != token {
		if len(head) == 0 {
			return ErrNotHeld
		}
		return &BusyError{Lock: token.Lock(), Holder: holderOf(token.Lock(), epoch, head[0])}
	}
	key, lease := string(victim[0].Key), clientv3.LeaseID(victim[0].Lease)
	news := encode(evictionRecord{Format: format, By: c.opts.Identity, Reason: reason, At: time.Now()})
	told := c.keys.eviction(lease, key)
	then := []clientv3.Op{clientv3.OpDelete(key)}
	if lease != clientv3.NoLease {
		// The news lies on the victim's lease, and goes with it.
		then = append(then, clientv3.OpPut(told, news, clientv3.WithLease(lease)))
	}
	bound, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	commit := func(ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
		return c.kv.Txn(bound).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", token.Revision()),
				clientv3.Compare(clientv3.ModRevision(c.keys.epoch()), "=", modRevision(epochKVs))).
			Then(ops...).
			Else(clientv3.OpGet(told)).
			Commit()
	}
	done, err := commit(then...)
	full := errors.Is(err, rpctypes.ErrNoSpace)
	if full {
		// Without room for the news the grant can be ended all the same: its holder
		// is told that its key was deleted. The attempt may have been applied, and
		// then the news is there.
		done, err = commit(then[0])
	}
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // and so its keys
		return fmt.Errorf("%w: its lease ended meanwhile", ErrNotHeld)
	case err != nil && etcdonce.Definite(err) && !full: // or the first attempt may have done it
		return answered(ctx, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnsettled, answered(ctx, err))
	case done.Succeeded:
		return nil
	}
	// A proxy may send a request again, and pass the second answer on. The news of
	// the first, to the nanosecond that of this call, tells that it was done.
	if kvs := done.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || string(kvs[0].Value) != news {
		return fmt.Errorf("%w: it ended meanwhile", ErrNotHeld)
	}
	return nil
}

func modRevision(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].ModRevision
}
