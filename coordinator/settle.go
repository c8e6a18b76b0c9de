package coordinator

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errSessionOver is how a step learns that its session ended.
var errSessionOver = errors.New("the session is over")

// settleBatch is how many keys one settle takes; etcd allows 128 operations in
// a transaction.
const settleBatch = 100

// unsettled is a lock key of which nobody knows whether it exists, or will.
type unsettled struct {
	key string
	// adopt asks to keep the key if it exists. A key for which a delete was
	// ever sent cannot be adopted: the delete may still be on its way.
	adopt bool

	done   chan struct{}
	create int64 // of the key, if it exists and was kept; 0: it is gone for good
	err    error
}

// settler finds out what became of acquires that got no clear answer. There is
// one at a time for each session: a single put answers for every acquire that
// was sent before it, and many of them would only fail each other's acquires.
type settler struct {
	s *session
	// Guarded by Coordinator.mu.
	pending []*unsettled
	running bool
}

// settle waits until it is certain whether the lock key exists, and that no
// copy of the acquire that is still on its way can create it. It fails only
// with errSessionOver.
func (s *session) settle(key string, adopt bool) (create int64, err error) {
	u := &unsettled{key: key, adopt: adopt, done: make(chan struct{})}
	s.settleAll([]*unsettled{u})
	return u.create, u.err
}

// settleAll is settle for several keys.
func (s *session) settleAll(keys []*unsettled) {
	c := s.c
	c.mu.Lock()
	s.settling.pending = append(s.settling.pending, keys...)
	if !s.settling.running {
		s.settling.running = true
		c.spawnLocked(s.settling.run)
	}
	c.mu.Unlock()
	for _, u := range keys {
		<-u.done // run ends with the session at the latest
	}
}

func (t *settler) run() {
	c := t.s.c
	for {
		c.mu.Lock()
		batch := t.pending[:min(len(t.pending), settleBatch)]
		t.pending = t.pending[len(batch):]
		if len(batch) == 0 {
			t.running, t.pending = false, nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()

		err := errSessionOver
		for pause := newPause(); t.s.trusted(); pause.wait(t.s.ctx) {
			if err = t.once(batch); err == nil || errors.Is(err, errSessionOver) {
				break
			}
			err = errSessionOver // unless a further attempt succeeds
		}
		for _, u := range batch {
			u.err = err
			close(u.done)
		}
	}
}

// once is one attempt. It may be repeated, and may apply twice: the put only
// moves the mod revision once more.
//
// Step S1: the put moves the session key's mod revision, which every acquire
// compares, so that no copy of an earlier one can apply any more.
// Step S2: only while the session key is the one that the session began with. A
// session key that was found missing is never put again: it would bring a
// session back that a recovery ended, and its tokens with it.
func (t *settler) once(batch []*unsettled) error {
	s := t.s
	then := []clientv3.Op{clientv3.OpPut(s.key, s.value, clientv3.WithLease(s.lease))}
	for _, u := range batch {
		if u.adopt {
			then = append(then, clientv3.OpGet(u.key))
		} else {
			then = append(then, clientv3.OpDelete(u.key))
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.c.callTimeout)
	defer cancel()
	s.c.metrics.settles.Inc()
	resp, err := s.c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(s.key), "=", s.create)).
		Then(then...).
		Else(clientv3.OpGet(s.key, clientv3.WithKeysOnly())).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		s.leaseGone()
		return errSessionOver
	case err != nil:
		s.c.log.Debug("settling got no answer", "lease", leaseHex(s.lease), "keys", len(batch), "error", err)
		return fmt.Errorf("settle: %w", err)
	case !resp.Succeeded:
		s.keyGone()
		return errSessionOver
	}
	s.raiseFence(resp.Header.Revision)
	for i, u := range batch {
		if u.adopt {
			u.create = createRevision(resp.Responses[i+1].GetResponseRange().Kvs)
		}
	}
	return nil
}

// createRevision is that of the only key of an answer, 0 if there is none.
func createRevision(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].CreateRevision
}
