package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// MaxValue is how many bytes a holder can publish with its lock. Everybody who
// looks at the lock reads them.
const MaxValue = 64 << 10

func checkValue(value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("%w: Value of %d bytes: at most %d are allowed", ErrInvalidOption, len(value), MaxValue)
	}
	return nil
}

// SetValue replaces what the grant publishes with its lock; see [Value]. It does
// not change the token. If the grant has ended it fails with what [Grant.Err]
// says, a *[LostError] or [ErrNotHeld]; and with [ErrUnsettled] if etcd has not
// told whether the value was set. In that case, set it again: the earlier
// attempt cannot overwrite the later one.
func (g *Grant) SetValue(ctx context.Context, value []byte) error {
	if err := checkValue(value); err != nil {
		return fmt.Errorf("set value of %s: %w", g.token, err)
	}
	g.valueMu.Lock()
	defer g.valueMu.Unlock()
	if err := g.Err(); err != nil {
		return fmt.Errorf("set value of %s: %w", g.token, err)
	}
	record := g.entry.record
	record.Value = bytes.Clone(value)
	for {
		done, err := g.setValue(ctx, encode(record))
		if err != nil {
			return err
		}
		if done {
			c := g.entry.q.c
			c.mu.Lock()
			defer c.mu.Unlock()
			g.entry.record = record
			return nil
		}
	}
}

// setValue is one attempt. Comparing the mod revision orders attempts whose
// outcome is unknown: once a later one has been applied, an earlier cannot be.
func (g *Grant) setValue(ctx context.Context, value string) (done bool, err error) {
	c := g.entry.q.c
	bound, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	resp, err := c.kv.Txn(bound).
		If(append(g.Fence(), clientv3.Compare(clientv3.ModRevision(g.entry.key), "=", g.mod))...).
		Then(clientv3.OpPut(g.entry.key, value, clientv3.WithLease(g.entry.s.lease))).
		Else(clientv3.OpGet(g.entry.key, clientv3.WithKeysOnly())).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		g.entry.s.leaseGone()
		return false, fmt.Errorf("set value of %s: %w", g.token, g.Err())
	case err != nil && etcdonce.Definite(err):
		return false, fmt.Errorf("set value of %s: %w", g.token, answered(ctx, err))
	case err != nil:
		return false, fmt.Errorf("set value of %s: %w: %w", g.token, ErrUnsettled, answered(ctx, err))
	case resp.Succeeded:
		g.mod = resp.Header.Revision
		return true, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if createRevision(kvs) != g.token.Revision() {
		if err := g.entry.s.loseMissing(ctx, g.entry); err != nil {
			return false, fmt.Errorf("set value of %s: %w", g.token, err)
		}
		return false, fmt.Errorf("set value of %s: %w", g.token, g.Err())
	}
	g.mod = kvs[0].ModRevision // an earlier attempt, or an operator, wrote it
	return false, nil
}
