package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	// adopt asks to keep the key if it exists. Step S3: a key for which a delete
	// was ever sent cannot be adopted, as the delete may still be on its way.
	adopt bool
	// over says that no copy of the acquire is under way: what etcd holds now is all
	// that came of it.
	over bool

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
	owed    bool // a put that etcd had no space for, see owe

	more chan struct{} // of capacity 1: something is pending
}

// settle waits until it is certain whether the lock key exists, and that no
// copy of the acquire that is still on its way can create it. (While etcd has no
// space for a put, a copy could not either; see owe.) It fails only with
// errSessionOver.
func (s *session) settle(key string, adopt, over bool) (create int64, err error) {
	u := &unsettled{key: key, adopt: adopt, over: over, done: make(chan struct{})}
	s.settleAll([]*unsettled{u})
	return u.create, u.err
}

// settleAll is settle for several keys.
func (s *session) settleAll(keys []*unsettled) {
	c := s.c
	c.mu.Lock()
	s.settling.pending = append(s.settling.pending, keys...)
	s.settling.startLocked()
	c.mu.Unlock()
	select {
	case s.settling.more <- struct{}{}:
	default:
	}
	for _, u := range keys {
		<-u.done // run ends with the session at the latest
	}
}

func (t *settler) startLocked() {
	if !t.running {
		t.running = true
		t.s.c.spawnLocked(t.run)
	}
}

// owe makes up for a put of the session key that had to be left out because etcd
// had no space for it, as soon as it has. Until then no copy of an acquire can
// apply either, and one that comes in between leaves a key that the next audit
// deletes.
func (t *settler) owe() {
	t.s.c.mu.Lock()
	defer t.s.c.mu.Unlock()
	t.owed = true
	t.startLocked()
}

// owes sets whether a put is owed, and returns whether one was.
func (t *settler) owes(owed bool) (before bool) {
	t.s.c.mu.Lock()
	defer t.s.c.mu.Unlock()
	before, t.owed = t.owed, owed
	return before
}

func (t *settler) run() {
	for pause := newPause(); ; {
		batch, ok := t.take()
		if !ok {
			return
		}
		err := t.settle(batch)
		for _, u := range batch {
			u.err = err
			close(u.done)
		}
		if len(batch) == 0 {
			pause.waitUnless(t.s.ctx, t.more)
		}
	}
}

// take returns the next batch, an empty one if there is only the put that is owed,
// or tells that there is nothing to do.
func (t *settler) take() (batch []*unsettled, ok bool) {
	t.s.c.mu.Lock()
	defer t.s.c.mu.Unlock()
	if len(t.pending) == 0 && (!t.owed || t.s.over() != nil) {
		t.running, t.pending = false, nil
		return nil, false
	}
	batch = t.pending[:min(len(t.pending), settleBatch)]
	t.pending = t.pending[len(batch):]
	return batch, true
}

// settle goes on until there is an answer, or the session is over. What is owed
// alone is tried once.
//
// Acquires that are over need no put. They are those that etcd had no space for: one
// that is full is not asked again and again for more, by everybody who wants a lock.
func (t *settler) settle(batch []*unsettled) error {
	put := len(batch) == 0 || slices.ContainsFunc(batch, func(u *unsettled) bool { return !u.over })
	for pause := newPause(); t.s.trusted(); pause.wait(t.s.ctx) {
		// What comes to be owed from now on, this put may be too early for.
		owed := put && t.owes(false)
		err := t.once(batch, put)
		full := errors.Is(err, rpctypes.ErrNoSpace)
		if full || owed && err != nil {
			t.owes(true)
		}
		if full && put && len(batch) > 0 {
			err = t.once(batch, false)
		}
		if err == nil || errors.Is(err, errSessionOver) || len(batch) == 0 {
			return err
		}
	}
	return errSessionOver
}

// once is one attempt. It may be repeated, and may apply twice: the put only
// moves the mod revision once more.
//
// Step S1: the put moves the session key's mod revision, which every acquire
// compares, so that no copy of an earlier one can apply any more. Where etcd has no
// space for it, it is left out and owed.
// Step S2: only while the session key is the one that the session began with. A
// session key that was found missing is never put again: it would bring a
// session back that a recovery ended, and its tokens with it.
func (t *settler) once(batch []*unsettled, put bool) error {
	s := t.s
	var then []clientv3.Op
	if put {
		then = append(then, clientv3.OpPut(s.key, s.value, clientv3.WithLease(s.lease)))
	}
	keys := len(then) // where they begin
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
	if put {
		s.raiseFence(resp.Header.Revision)
	}
	for i, u := range batch {
		if u.adopt {
			u.create = createRevision(resp.Responses[keys+i].GetResponseRange().Kvs)
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
