package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
	select {
	case g.writing <- struct{}{}:
		defer func() { <-g.writing }()
	case <-ctx.Done():
		return fmt.Errorf("set value of %s: %w", g.token, endOf(ctx))
	}
	record := g.entry.record
	record.Value = bytes.Clone(value)
	for {
		if err := g.Err(); err != nil {
			return fmt.Errorf("set value of %s: %w", g.token, err)
		}
		done, err := g.write(ctx, record)
		if err != nil {
			return fmt.Errorf("set value of %s: %w", g.token, err)
		}
		if done {
			return nil
		}
	}
}

// rewrite makes the lock key's value say for whom it is, after it has passed on
// within the process. It is for people, so nobody waits for it.
func (h *hold) rewrite() {
	for pause := newPause(); h.err() == nil; pause.wait(h.ctx) {
		select {
		case h.writing <- struct{}{}:
		case <-h.ctx.Done():
			return
		}
		done := !h.outdated // a SetValue was faster
		var err error
		if !done {
			done, err = h.write(h.ctx, h.entry.record)
		}
		<-h.writing
		if done || incurable(err) {
			return
		}
	}
}

// write is one attempt to write the lock key's value. Comparing the mod revision
// orders attempts whose outcome is unknown: once a later one has been applied, an
// earlier cannot be.
func (h *hold) write(ctx context.Context, record lockRecord) (done bool, err error) {
	c, e := h.entry.q.c, h.entry
	bound, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	sent := c.now()
	resp, err := c.kv.Txn(bound).
		If(h.fence(), clientv3.Compare(clientv3.ModRevision(e.key), "=", h.mod)).
		Then(clientv3.OpPut(e.key, encode(record), clientv3.WithLease(e.s.lease))).
		Else(clientv3.OpGet(e.key, clientv3.WithKeysOnly())).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		e.s.leaseGone()
		return false, h.err()
	case err != nil && etcdonce.Definite(err):
		return false, answered(ctx, err)
	case err != nil && !lingers(err, c.now().since(sent)):
		return h.settleWrite(ctx, record, err)
	case err != nil:
		return false, fmt.Errorf("%w: %w", ErrUnsettled, answered(ctx, err))
	case resp.Succeeded:
		h.wrote(record, resp.Header.Revision)
		return true, nil
	}
	return false, h.overtaken(ctx, resp.Responses[0].GetResponseRange().Kvs)
}

// settleWrite looks whether a full etcd has written the value, as it may have while
// it said that it is full. With that answer the attempt is over, unless a proxy made
// two of it, which takes a while.
func (h *hold) settleWrite(ctx context.Context, record lockRecord, full error) (done bool, err error) {
	e := h.entry
	resp, err := e.q.c.read(ctx, clientv3.OpGet(e.key))
	if err != nil {
		return false, fmt.Errorf("%w: %w; and then: %w", ErrUnsettled, full, err)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case createRevision(kvs) != h.token.Revision():
	case kvs[0].ModRevision == h.mod:
		return false, full
	case string(kvs[0].Value) == encode(record):
		h.wrote(record, kvs[0].ModRevision)
		return true, nil
	}
	return false, h.overtaken(ctx, kvs)
}

// overtaken deals with a lock key that is not as the writer knew it: an earlier
// attempt, or an operator, wrote it, or it is gone.
func (h *hold) overtaken(ctx context.Context, kvs []*mvccpb.KeyValue) error {
	if createRevision(kvs) == h.token.Revision() {
		h.mod = kvs[0].ModRevision
		return nil
	}
	if err := h.entry.s.loseMissing(ctx, h.entry); err != nil {
		return answered(ctx, err)
	}
	return h.err()
}

// wrote records what the lock key says now.
func (h *hold) wrote(record lockRecord, mod int64) {
	h.mod, h.outdated = mod, false
	c := h.entry.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	h.entry.record = record
}
