package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// entry is one lock key of this process in etcd. A process has at most one in
// the queue of a lock, however many goroutines want it.
type entry struct {
	q   *queue
	s   *session
	key string

	// Guarded by Coordinator.mu.

	record lockRecord // the key's value, as it is or will soon be
	create int64      // the key's create revision; 0 until it is known
	grant  *hold      // once a handle carries the token
	lost   LostReason
	detail string        // of the loss, for people
	gone   chan struct{} // closed with lost

	// trouble is why the key could not be deleted, last time.
	trouble error

	// asked: an attempt of ours, of which no answer came, may have deleted the key.
	asked bool
	// far says that the key was far from the front when it was put.
	far bool
	// slow says that the acquire took so long, or was answered so unclearly,
	// that a copy of it may still be under way when the lock is released.
	slow bool
}

// slowAcquire is the time after which an acquire counts as slow.
const slowAcquire = time.Second

// lingers reports whether a copy of a write may be under way that was answered with
// err. That there is no space is told of a request that is over; only a proxy that
// sent it twice can have another, and that takes a while.
func lingers(err error, took time.Duration) bool {
	return err != nil && !errors.Is(err, rpctypes.ErrNoSpace) || took > slowAcquire
}

var (
	// errKeyGone is how a step learns that its lock key does not exist, and
	// will not.
	errKeyGone = errors.New("the lock key is gone")
	// errTaken is how a try learns that the lock is not free.
	errTaken = errors.New("the lock is taken")
)

// newEntryLocked registers a lock key before anything of it is sent, so that an
// audit never takes it for a stray.
func (q *queue) newEntryLocked(s *session, w *waiter) *entry {
	s.serial++
	e := &entry{
		q: q, s: s,
		key:    lockKey(q.directory, s.lease, s.serial),
		record: w.record(q.c),
		gone:   make(chan struct{}),
	}
	s.entries[e.key] = e
	if q.c.keys.anywhere {
		s.used[directoryHash(q.directory)] = struct{}{}
	}
	return e
}

// forget ends the registration: the key is known to be gone.
func (e *entry) forget() {
	e.q.c.mu.Lock()
	defer e.q.c.mu.Unlock()
	delete(e.s.entries, e.key)
}

func (e *entry) put() clientv3.Op {
	return clientv3.OpPut(e.key, encode(e.record), clientv3.WithLease(e.s.lease))
}

// head reads the front of the queue: its first key owns the lock, and a second
// one tells that somebody waits. The server sorts the whole queue whatever the
// limit.
func (q *queue) head() clientv3.Op { return headOf(q.directory) }

func headOf(directory string) clientv3.Op {
	return clientv3.OpGet(directory, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(2))
}

// place is where an entry stands in its queue.
type place struct {
	owner bool
	// first is the key that owns the lock.
	first *mvccpb.KeyValue
}

// enter puts the lock key at the end of the queue and says where it stands. It
// fails with errKeyGone, errSessionOver, or an error of etcd that leaves
// nothing behind.
//
// Step A1: the key must not exist, so a second copy of the request changes
// nothing. Step A2: the session key must be as this process knows it. That
// keeps out copies from before a settle, and every session that a recovery
// ended.
func (e *entry) enter() (place, error) {
	return e.insert(clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0))
}

// enterIfFree is enter for a lock that nobody holds or waits for; otherwise it
// leaves nothing behind and fails with errTaken.
func (e *entry) enterIfFree() (place, error) {
	return e.insert(clientv3.Compare(clientv3.CreateRevision(e.q.directory).WithPrefix(), "=", 0))
}

func (e *entry) insert(free clientv3.Cmp) (place, error) {
	s := e.s
	for {
		fence := s.fence()
		sent := s.c.now()
		ctx, cancel := context.WithTimeout(s.ctx, s.c.callTimeout)
		resp, err := s.c.kv.Txn(ctx).
			If(free, clientv3.Compare(clientv3.ModRevision(s.key), "=", fence)).
			Then(e.put(), e.q.head()).
			Else(clientv3.OpGet(s.key), clientv3.OpGet(e.key), e.q.head()).
			Commit()
		cancel()
		if lingers(err, s.c.now().since(sent)) {
			e.slow = true
		}
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.leaseGone()
			return place{}, errSessionOver
		case err != nil && etcdonce.Definite(err) && s.over() != nil:
			// It was the session's end that kept it from being sent, not etcd.
			return place{}, errSessionOver
		case err != nil && etcdonce.Definite(err):
			return place{}, err
		case err != nil:
			return e.settle(err)
		case resp.Succeeded:
			head := resp.Responses[1].GetResponseRange()
			// Counted is the whole queue, of which the own key is the last.
			e.far = head.Count > nearFront+1
			return e.placed(resp.Header.Revision, head.Kvs), nil
		}

		session := resp.Responses[0].GetResponseRange().Kvs
		own := resp.Responses[1].GetResponseRange().Kvs
		queue := resp.Responses[2].GetResponseRange().Kvs
		switch {
		case createRevision(session) != s.create:
			s.keyGone()
			return place{}, errSessionOver
		case len(own) > 0: // an earlier copy was applied
			return e.placed(own[0].CreateRevision, queue), nil
		case session[0].ModRevision != fence: // a settle came between
			s.raiseFence(session[0].ModRevision)
		case len(queue) > 0:
			return place{first: queue[0]}, errTaken
		default:
			return place{}, fmt.Errorf("lock %q: %w: an answer of etcd contradicts itself", e.q.lock, ErrFormat)
		}
	}
}

// settle finds out what became of an enter that got no clear answer, but this
// error. The key is kept if somebody still wants it.
func (e *entry) settle(why error) (place, error) {
	create, err := e.s.settle(e.key, e.q.wanted(), !e.slow)
	switch {
	case err != nil:
		return place{}, err
	case create == 0 && errors.Is(why, rpctypes.ErrNoSpace):
		return place{}, why // the next attempt would come to the same
	case create == 0:
		return place{}, errKeyGone
	}
	return e.placed(create, nil), nil
}

// placed records the create revision, which is the token.
func (e *entry) placed(create int64, queue []*mvccpb.KeyValue) place {
	c := e.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e.create = create
	if len(queue) == 0 {
		return place{}
	}
	return place{owner: string(queue[0].Key) == e.key, first: queue[0]}
}

// leave deletes the lock key if it is still the one with this create revision:
// a key of another grant is never touched. It reports whether the key was
// there. With an error nothing is known, and it may be called again.
func (e *entry) leave(ctx context.Context) (bool, error) {
	if !e.slow {
		return e.delete(ctx)
	}
	s := e.s
	own := clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.create)
	then := []clientv3.Op{clientv3.OpDelete(e.key)}

	// Step R1: once the key is gone, a copy of its acquire that is still under
	// way could create it again: a lock held by nobody. Moving the session key's
	// mod revision in the same transaction stops that. Step R2: only while the
	// session key is the session's own, or the put would revive a session.
	resp, err := s.c.kv.Txn(ctx).
		If(own, clientv3.Compare(clientv3.CreateRevision(s.key), "=", s.create)).
		Then(append(then, clientv3.OpPut(s.key, s.value, clientv3.WithLease(s.lease)))...).
		Else(clientv3.OpTxn([]clientv3.Cmp{own}, then, []clientv3.Op{clientv3.OpGet(e.key, clientv3.WithKeysOnly())})).
		Commit()
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		// The lock need not stay taken because there is no room for a put. What the
		// put was for is made up for as soon as there is.
		e.asked = true
		s.settling.owe()
		return e.delete(ctx)
	case err != nil:
		return false, err
	case resp.Succeeded:
		s.raiseFence(resp.Header.Revision)
		return true, nil
	}
	return resp.Responses[0].GetResponseTxn().Succeeded, nil
}

// delete is leave for a key of whose acquire no copy is under way.
func (e *entry) delete(ctx context.Context) (bool, error) {
	resp, err := e.s.c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.create)).
		Then(clientv3.OpDelete(e.key)).
		Else(clientv3.OpGet(e.key, clientv3.WithKeysOnly())).
		Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// loseLocked marks the lock key as gone. If a grant stood on it, that is lost,
// and returned for the log.
func (c *Coordinator) loseLocked(e *entry, reason LostReason) (lost []*LostError) {
	if e.lost != "" || e.s.entries[e.key] != e {
		// What is missing was let go by ourselves, while somebody looked for it.
		return nil
	}
	e.lost = reason
	close(e.gone)
	delete(e.s.entries, e.key)
	if e.grant != nil {
		lost = e.grant.loseLocked(reason)
	}
	if e.q.entry == e {
		e.q.startLocked()
	}
	return lost
}

func (c *Coordinator) lose(e *entry, reason LostReason, detail string) {
	c.mu.Lock()
	e.detail = detail
	lost := c.loseLocked(e, reason)
	c.mu.Unlock()
	c.reportLost(lost)
}

// reportLost is called without the lock: a log handler or a hook may take its
// time, or ask the coordinator something.
func (c *Coordinator) reportLost(lost []*LostError) {
	for _, e := range lost {
		c.log.Warn("grant lost", "token", e.Token.String(), "reason", string(e.Reason), "detail", e.Detail)
		c.metrics.lost.WithLabelValues(string(e.Reason)).Inc()
		if e.Reason == LostForgotten {
			c.metrics.leaked.Inc()
		}
		c.opts.Hooks.lost(e)
	}
}

// record is what a lock key says that is put for this waiter.
func (w *waiter) record(c *Coordinator) lockRecord {
	return lockRecord{Format: format, Identity: c.opts.Identity, Reason: w.reason, Since: w.since, Value: w.value}
}

func (r lockRecord) equal(other lockRecord) bool {
	return r.Reason == other.Reason && r.Since.Equal(other.Since) && bytes.Equal(r.Value, other.Value)
}

// holder describes this entry as the holder of its lock.
func (e *entry) holder() Holder {
	h := Holder{Key: e.key, Lease: e.s.lease, Identity: e.record.Identity, Reason: e.record.Reason, Since: e.record.Since, Value: bytes.Clone(e.record.Value)}
	if e.grant != nil {
		h.Token = e.grant.token
	}
	return h
}
