package coordinator

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// handOn gives the lock up and takes a new place for the next waiter, in one
// transaction. The new key stands at the end of the queue, so that processes
// take turns however many goroutines each of them has, and its create revision
// is a new, larger token.
//
// Step H1: the old key is compared by its create revision, which is true of at
// most one copy of the request. Step H2: the session key must be the session's
// own: no new key for a session that was ended. Step H3: the new key must not
// exist yet.
func (q *queue) handOn(old *entry, w *waiter) {
	c, s := q.c, old.s
	if !s.trusted() {
		return // the next step sees that the entry is lost
	}
	c.mu.Lock()
	next := q.newEntryLocked(s, w)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, c.callTimeout)
	defer cancel()
	resp, err := c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(old.key), "=", old.create),
			clientv3.Compare(clientv3.CreateRevision(s.key), "=", s.create),
			clientv3.Compare(clientv3.CreateRevision(next.key), "=", 0)).
		Then(clientv3.OpDelete(old.key), next.put(), q.head()).
		Else(clientv3.OpGet(s.key, clientv3.WithKeysOnly()), clientv3.OpGet(next.key, clientv3.WithKeysOnly())).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		next.forget()
		s.leaseGone()
	case err != nil && etcdonce.Definite(err):
		// Nothing was applied. What puts nothing may still pass.
		next.forget()
		q.depart(old)
	case err != nil:
		q.settleHandOn(old, next)
	case resp.Succeeded:
		c.metrics.handOns.Inc()
		head := resp.Responses[2].GetResponseRange()
		next.far = head.Count > nearFront+1
		at := next.placed(resp.Header.Revision, head.Kvs)
		q.left(old, next)
		if at.owner {
			q.deliver(next)
		} else {
			q.saw(holderOf(q.lock, s.epoch, at.first))
		}
	case createRevision(resp.Responses[0].GetResponseRange().Kvs) != s.create:
		next.forget()
		s.keyGone()
	case createRevision(resp.Responses[1].GetResponseRange().Kvs) != 0:
		next.placed(createRevision(resp.Responses[1].GetResponseRange().Kvs), nil)
		q.left(old, next)
	default:
		next.forget()
		q.tookAway(old)
	}
}

// settleHandOn finds out what became of a hand-on that got no clear answer. It
// needs no put of the session key. Step H4: the old key is deleted, and once it is
// gone no copy of the hand-on can apply. Step H5: if one did, the new key is there,
// and is kept for the next waiter.
func (q *queue) settleHandOn(old, next *entry) {
	s := old.s
	old.asked = true
	for pause := newPause(); ; old.pauseWhileThere(pause) {
		if s.over() != nil {
			next.forget()
			return
		}
		create, err := old.settleHandOn(next)
		if err != nil {
			if s.over() == nil {
				old.troubled(err, false)
			}
			continue
		}
		if create == 0 {
			next.forget()
			q.left(old, nil)
			return
		}
		next.placed(create, nil)
		q.left(old, next)
		return
	}
}

// settleHandOn is one attempt. It returns the create revision of the new key, 0 if
// there is none and will be none. Once the old key is known to be gone there is
// nothing to delete, and a read is enough, which may be permitted where the
// transaction is not.
func (e *entry) settleHandOn(next *entry) (create int64, err error) {
	c := e.q.c
	ctx, cancel := context.WithTimeout(e.s.ctx, c.callTimeout)
	defer cancel()
	if e.isLost() {
		resp, err := c.kv.Get(ctx, next.key, clientv3.WithKeysOnly())
		if err != nil {
			return 0, err
		}
		return createRevision(resp.Kvs), nil
	}
	resp, err := c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.create)).
		Then(clientv3.OpDelete(e.key)).
		Else(clientv3.OpGet(next.key, clientv3.WithKeysOnly())).
		Commit()
	if err != nil || resp.Succeeded {
		return 0, err
	}
	return createRevision(resp.Responses[0].GetResponseRange().Kvs), nil
}
