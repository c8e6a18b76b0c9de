package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// together is one attempt to take several locks with one transaction. It is
// worth it because locks are free mostly. It takes all of them at once, or leaves
// nothing behind: a key that stood in one of the queues while another lock is
// waited for could close a circle with somebody who holds that one.
//
// Meanwhile it is the driver of all the queues, so that whoever else of this
// process comes lines up.
type together struct {
	c       *Coordinator
	s       *session
	waiters []*waiter // one for each lock; in none of the queues
	entries []*entry
	done    chan struct{}

	// Guarded by Coordinator.mu.

	over   bool
	left   bool     // nobody wants the locks any more
	grants []*Grant // of all the locks, or nil: to be taken one after another
}

// tryTogether makes the attempt. With neither grants nor an error it did not
// succeed, and left nothing behind.
func (c *Coordinator) tryTogether(ctx context.Context, all []*acquiring, atMost time.Duration) ([]*Grant, error) {
	if len(all) < 2 {
		return nil, nil
	}
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if atMost > 0 {
		defer time.AfterFunc(atMost, func() { cancel(errWaited) }).Stop()
	}
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	for _, a := range all {
		if a.ctx != outer { // a hook's, which bounds the waiting
			defer context.AfterFunc(a.ctx, func() { cancel(endOf(a.ctx)) })()
		}
	}
	s, err := c.session(ctx)
	if err != nil {
		return nil, nil // to be told by whoever tries again
	}
	t := &together{c: c, s: s, done: make(chan struct{})}
	for _, a := range all {
		t.waiters = append(t.waiters, a.waiter())
	}
	if !t.start(all) {
		return nil, nil
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		if unwanted := t.leave(); unwanted != nil {
			return nil, t.await(ctx, unwanted)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.grants, nil
}

// errWaited is the cause of the end of an attempt that took too long.
var errWaited = errors.New("the time to wait is over")

// start begins the attempt, unless this process holds or wants one of the locks.
func (t *together) start(all []*acquiring) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	free := !c.closed && t.s.ctx.Err() == nil
	for i, a := range all {
		if free = free && c.queues[a.directory] == nil && c.claimLocked(a.directory) == nil; !free {
			break
		}
		q := c.newQueueLocked(a.lock, a.directory)
		q.driving = true
		q.entry = q.newEntryLocked(t.s, t.waiters[i])
		t.entries = append(t.entries, q.entry)
	}
	if free && c.spawnLocked(t.run) {
		return true
	}
	for _, e := range t.entries {
		delete(t.s.entries, e.key)
		e.q.entry = nil
		c.vanishLocked(e.q)
	}
	return false
}

func (t *together) run() { t.finish(t.enter()) }

// finish makes the grants, or leaves the queues to their drivers.
//
// Step G1: not unless the trust window is open now, as with a single lock.
func (t *together) finish(create int64, err error) {
	c := t.c
	if err != nil {
		c.log.Debug("locks not taken together", "locks", len(t.entries), "error", err)
	}
	open := t.s.trusted()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range t.entries {
		if err == nil {
			e.create = create
			continue
		}
		delete(t.s.entries, e.key)
		e.q.entry = nil
	}
	if err == nil && open && !t.left && !c.closed {
		t.deliverLocked()
	}
	for i, e := range t.entries {
		q := e.q
		q.driving = false
		if t.grants == nil {
			// Nothing is there, or keys that the queues have, for whoever came
			// meanwhile, or to delete them.
			q.startLocked()
			continue
		}
		for _, done := range q.settled { // of those who came meanwhile and left
			close(done)
		}
		q.settled = nil
		e.grant = t.grants[i].hold
		q.busyLocked(q.triesLocked(), e.holder())
	}
	t.over = true
	close(t.done)
}

// deliverLocked makes the grants, unless one of the keys is gone already.
func (t *together) deliverLocked() {
	tokens := make([]revisionfence.Token, len(t.entries))
	for i, e := range t.entries {
		var err error
		if tokens[i], err = revisionfence.New(t.waiters[i].lock, t.s.epoch, e.create); err != nil || e.lost != "" {
			return
		}
	}
	for i, e := range t.entries {
		t.grants = append(t.grants, newGrant(e, tokens[i], t.waiters[i]))
	}
}

// enter is the transaction. It returns the create revision of all the keys.
//
// Steps A1 and A2 are as in [entry.enter], with "nobody is in the queue" for "the
// key does not exist": all queues must be empty, or nothing is put.
func (t *together) enter() (create int64, err error) {
	s := t.s
	var empty []clientv3.Cmp
	var puts []clientv3.Op
	for _, e := range t.entries {
		empty = append(empty, clientv3.Compare(clientv3.CreateRevision(e.q.directory).WithPrefix(), "=", 0))
		puts = append(puts, e.put())
	}
	for {
		fence, sent := s.fence(), s.c.now()
		ctx, cancel := context.WithTimeout(s.ctx, s.c.callTimeout)
		resp, err := s.c.kv.Txn(ctx).
			If(append(empty[:len(empty):len(empty)], clientv3.Compare(clientv3.ModRevision(s.key), "=", fence))...).
			Then(puts...).
			Else(clientv3.OpGet(s.key, clientv3.WithKeysOnly()), clientv3.OpGet(t.entries[0].key, clientv3.WithKeysOnly())).
			Commit()
		cancel()
		if lingers(err, s.c.now().since(sent)) {
			for _, e := range t.entries {
				e.slow = true
			}
		}
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.leaseGone()
			return 0, errSessionOver
		case err != nil && etcdonce.Definite(err):
			return 0, err
		case err != nil:
			return 0, t.undo(err)
		case resp.Succeeded:
			return resp.Header.Revision, nil
		}
		session := resp.Responses[0].GetResponseRange().Kvs
		switch {
		case createRevision(session) != s.create:
			s.keyGone()
			return 0, errSessionOver
		case len(resp.Responses[1].GetResponseRange().Kvs) > 0: // an earlier copy was applied
			return 0, t.undo(errTaken)
		case session[0].ModRevision == fence:
			return 0, errTaken
		}
		s.raiseFence(session[0].ModRevision) // a settle came between
	}
}

// undo makes sure that none of the keys exists, or will. It returns why.
func (t *together) undo(why error) error {
	var keys []*unsettled
	for _, e := range t.entries {
		over := errors.Is(why, rpctypes.ErrNoSpace) && !e.slow
		keys = append(keys, &unsettled{key: e.key, over: over, done: make(chan struct{})})
	}
	t.s.settleAll(keys)
	return why
}

// leave gives the attempt up, unless it is over. The channels that it returns are
// closed once nothing of it is left at etcd.
func (t *together) leave() (unwanted []chan struct{}) {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.over {
		return nil
	}
	t.left = true
	for _, e := range t.entries {
		done := make(chan struct{})
		e.q.settled = append(e.q.settled, done)
		unwanted = append(unwanted, done)
	}
	return unwanted
}

// await waits for what leave returned, and says why the attempt was given up.
func (t *together) await(ctx context.Context, unwanted []chan struct{}) error {
	if t.c.closing.Err() != nil {
		return ErrClosed // Close sees to what may be left
	}
	why := fmt.Errorf("%w: %w", endOf(ctx), ErrNoAnswer)
	if errors.Is(context.Cause(ctx), errWaited) {
		why = ErrNoAnswer
	}
	grace := time.NewTimer(t.c.opts.CleanupTimeout)
	defer grace.Stop()
	for _, done := range unwanted {
		select {
		case <-done:
		case <-grace.C:
			return fmt.Errorf("%w: %w", why, ErrUnsettled)
		}
	}
	return why
}
