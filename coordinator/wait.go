package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// nearFront is up to how many keys ahead a waiter watches the whole queue.
// There, every event reaches every waiter; further back it watches only its
// predecessor, so that a release does not wake a crowd.
const nearFront = 8

// await waits until the entry owns the lock, until nobody wants it any more, or
// until its key or session is gone.
func (q *queue) await(e *entry) {
	ctx, done := q.waiting()
	defer done()
	// Not done itself: it would run late, and take away the stop of a later wait.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.s.ctx, cancel)()

	attempt := q.awaitNear
	if e.far { // a watch of the whole queue would only be given up again
		attempt, e.far = q.awaitFar, false
	}
	for pause := newPause(); ctx.Err() == nil; {
		owner, err := attempt(ctx, e, pause)
		switch {
		case owner:
			q.deliver(e)
			return
		case e.isLost():
			return
		case errors.Is(err, errFar):
			attempt = q.awaitFar
		case errors.Is(err, errNear):
			attempt = q.awaitNear
		case ctx.Err() == nil:
			q.c.log.Debug("watching a queue anew", "directory", q.directory, "error", err)
			pause.wait(ctx)
		}
	}
}

var (
	errFar  = errors.New("far from the front of the queue")
	errNear = errors.New("near the front of the queue")
)

func (e *entry) isLost() bool {
	select {
	case <-e.gone:
		return true
	default:
		return false
	}
}

// awaitNear watches the whole queue until the entry is at its front. It returns
// when the entry owns the lock or is lost, with errFar, or with what went wrong
// with the watch.
func (q *queue) awaitNear(ctx context.Context, e *entry, pause pause) (owner bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// The watch comes first and the look second, so that nothing can happen
	// between the two.
	queue, created, owner, err := q.begun(ctx, e, q.c.watch(ctx, q.directory, q.directory, clientv3.WithPrefix()))
	if owner || err != nil {
		return owner, err
	}
	for {
		sent := q.c.now()
		v, err := q.readPlace(ctx, e, false)
		switch {
		case err != nil || v.owner || e.isLost():
			return v.owner, err
		case v.far:
			return false, errFar
		}
		line := newLine(e.key, e.create, v.revision, v.front)
		steady := true // all that was heard since came from the member that opened the watch
		for decide := false; !decide; {
			select {
			case resp, ok := <-queue:
				if err := watchErr(resp, ok); err != nil {
					return false, err
				}
				pause.policy.Reset() // the watch works
				steady = steady && sameMember(created, resp.Header)
				decide = line.apply(resp.Events)
			case <-e.s.tick():
				// Step T1: a watch can be silent though things happen: an event was
				// lost, or a restored server waits for a revision of its future.
				decide, steady = true, false
			case <-e.gone:
				return false, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		// Step N1: events alone make an owner only while nothing can have come
		// between. The client resumes a broken watch without telling, and a
		// server that was restored accepts it; so the events must come from the
		// member and the term that opened the watch, and a linearizable answer,
		// asked for less than a second ago, must have shown the own key. That
		// holds where a lock passes quickly. Otherwise one read decides.
		if steady && !line.ownGone && q.c.now().since(sent) < time.Second {
			return true, nil
		}
	}
}

func sameMember(a, b *pb.ResponseHeader) bool {
	return a.GetClusterId() == b.GetClusterId() && a.GetMemberId() == b.GetMemberId() && a.GetRaftTerm() == b.GetRaftTerm()
}

// awaitFar watches the own key and the one before it, until that one goes.
func (q *queue) awaitFar(ctx context.Context, e *entry, pause pause) (owner bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own, _, owner, err := q.begun(ctx, e, q.c.watch(ctx, q.directory, e.key))
	if owner || err != nil {
		return owner, err
	}
	for {
		v, err := q.readPlace(ctx, e, true)
		switch {
		case err != nil || v.owner || e.isLost():
			return v.owner, err
		case !v.far:
			return false, errNear
		}
		if owner, err := q.awaitOne(ctx, e, v.before, own); owner || err != nil {
			return owner, err
		}
		pause.policy.Reset()
	}
}

// awaitOne waits until the key before the own one is deleted, or something else
// makes it necessary to look again.
func (q *queue) awaitOne(ctx context.Context, e *entry, before string, own clientv3.WatchChan) (owner bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, _, owner, err := q.begun(ctx, e, q.c.watch(ctx, q.directory, before))
	if owner || err != nil {
		return owner, err
	}
	// It may have gone before the watch began.
	if still, err := q.stillBehind(ctx, e, before); err != nil || !still {
		return false, err
	}
	for {
		select {
		case resp, ok := <-watch:
			return false, watchErr(resp, ok)
		case resp, ok := <-own:
			return false, watchErr(resp, ok)
		case <-e.s.tick():
			// As near the front, for the case that the watch is silent; but not
			// with a read of the whole queue, or many waiters would be many
			// times as many reads.
			if still, err := q.stillBehind(ctx, e, before); err != nil || !still {
				return false, err
			}
		case <-e.gone:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// stillBehind reports whether the own key and the one before it are there.
func (q *queue) stillBehind(ctx context.Context, e *entry, before string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, q.c.callTimeout)
	defer cancel()
	resp, err := q.c.kv.Txn(ctx).Then(
		clientv3.OpGet(e.key, clientv3.WithKeysOnly()),
		clientv3.OpGet(before, clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return false, fmt.Errorf("read the place in %s: %w", q.directory, err)
	}
	ahead := createRevision(resp.Responses[1].GetResponseRange().Kvs)
	return createRevision(resp.Responses[0].GetResponseRange().Kvs) == e.create && ahead != 0 && ahead < e.create, nil
}

// view is what one linearizable look at the queue showed.
type view struct {
	owner    bool
	far      bool // more than nearFront keys stand ahead
	revision int64
	front    []*mvccpb.KeyValue // the first keys, at most nearFront+2; or those just ahead
	before   string             // the key just ahead, if that was asked for
}

// readPlace is the one read that decides whether the entry owns the lock.
//
// Step D1: the own key is there, with the create revision that is the token.
// Step D2: it is the first. Step D3: the session key is the session's own, so
// that a key which a restore brought back grants nothing.
func (q *queue) readPlace(ctx context.Context, e *entry, before bool) (view, error) {
	s := e.s
	ops := []clientv3.Op{
		clientv3.OpGet(s.key, clientv3.WithKeysOnly()),
		clientv3.OpGet(e.key, clientv3.WithKeysOnly()),
		clientv3.OpGet(q.directory, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(e.create),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(nearFront+2)),
	}
	if before {
		// Those just ahead in place of those in front. For each range the server
		// reads the whole queue, so it is not asked for both.
		ops[2] = clientv3.OpGet(q.directory, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(e.create-1),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(nearFront+1), clientv3.WithKeysOnly())
	}
	ctx, cancel := context.WithTimeout(ctx, q.c.callTimeout)
	defer cancel()
	resp, err := q.c.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return view{}, fmt.Errorf("read the queue %s: %w", q.directory, err)
	}
	answer := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	switch {
	case createRevision(answer(0)) != s.create:
		s.keyGone()
		return view{}, nil
	case createRevision(answer(1)) != e.create:
		return view{}, s.loseMissing(ctx, e)
	}
	v := view{revision: resp.Header.Revision, front: answer(2)}
	if before {
		if v.owner = len(v.front) == 0; !v.owner {
			v.before = string(v.front[0].Key)
		}
		v.far = len(v.front) > nearFront
		return v, nil
	}
	v.owner = string(v.front[0].Key) == e.key
	v.far = len(v.front) > nearFront+1
	if !v.owner {
		q.saw(holderOf(q.lock, s.epoch, v.front[0]))
	}
	return v, nil
}
