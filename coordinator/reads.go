package coordinator

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// read asks several things of etcd at one revision. A transaction is sent once,
// since it may write (see etcdonce); one that only reads is sent again, until it
// is answered, the time of one request is over, or trying again cannot help: a
// member that restarts must not fail whoever only looks.
func (c *Coordinator) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	bound, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	var last error
	for pause := newPause(); ; pause.wait(bound) {
		if bound.Err() != nil && last != nil {
			return nil, answered(ctx, last) // what etcd said, not that the time is over
		}
		resp, err := c.kv.Txn(bound).Then(ops...).Commit()
		switch {
		case err == nil:
			return resp, nil
		case bound.Err() != nil && last != nil: // it says no more than that
			return nil, answered(ctx, last)
		case bound.Err() != nil, c.base.Err() != nil, settledRead(err):
			return nil, answered(ctx, err)
		}
		last = err
	}
}

// settledRead reports whether a read that failed so will fail so again: it is
// refused, or its revision is compacted or not there.
func settledRead(err error) bool {
	code := codeOf(err)
	return incurable(err) || code == codes.OutOfRange || code == codes.NotFound
}
