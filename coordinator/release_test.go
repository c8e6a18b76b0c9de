package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// The release was applied, and nobody was told. Meanwhile the lock is acquired
// again on the same session: what repeats the release must not take that away
// (etcd-io/etcd#22082).
func TestRepeatedReleaseSparesTheNextGrant(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	txns := count(w)
	first := acquire(t, c, "orders")
	lost := w.DropReply("Txn", 1, of(releases))
	release(t, first)
	if lost.Hits() != 1 || txns.of(releases) != 2 {
		t.Errorf("%d replies lost, %d releases sent", lost.Hits(), txns.of(releases))
	}
	second := acquire(t, c, "orders")
	rises(t, first, second)
	if first.Lease() != second.Lease() || first.Key() == second.Key() {
		t.Errorf("keys %s and %s, want two of one session", first.Key(), second.Key())
	}
	release(t, first)
	if arrives(t, txns.last(t, releases)) {
		t.Error("a late copy of the release found something to delete")
	}
	stands(t, client, second)
	if err := second.Err(); err != nil {
		t.Errorf("the next grant has ended: %v", err)
	}
	release(t, second)
}

func TestLateReleaseOfAnExpiredGrantChangesNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, client, steady)
	b := newCoordinator(t, etcd.Client(), steady)
	txns := count(w)
	old := acquire(t, a, "orders")
	etcd.Expire(t, old)
	present := acquire(t, b, "orders")
	rises(t, old, present)

	// A has not noticed yet, and asks etcd.
	err := old.Release(within(t, patience))
	var lost *coordinator.LostError
	if !errors.Is(err, coordinator.ErrNotHeld) || !errors.As(err, &lost) || lost.Token != old.Token() {
		t.Errorf("late release: %v", err)
	}
	if txns.of(releases) != 1 {
		t.Errorf("%d releases sent", txns.of(releases))
	}
	stands(t, client, present)
	if err := old.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("the same again: %v", err)
	}
	release(t, present)
}

func TestReleaseOfALostGrantAsksNobody(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, client, hasty)
	b := newCoordinator(t, etcd.Client(), steady)
	txns := count(w)
	old := acquire(t, a, "orders")
	etcd.Expire(t, old)
	present := acquire(t, b, "orders")
	reason := ended(t, old)
	err := old.Release(within(t, patience))
	if !errors.Is(err, coordinator.ErrNotHeld) || !errors.Is(err, reason) {
		t.Errorf("%v, want ErrNotHeld and %v", err, reason)
	}
	if txns.of(releases) != 0 {
		t.Error("a release was sent")
	}
	stands(t, client, present)
	release(t, present)
}

func TestGrantThatWasLostStaysLost(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), hasty)
	old := acquire(t, c, "orders")
	etcd.Expire(t, old)
	reason := ended(t, old)
	var lost *coordinator.LostError
	if !errors.As(reason, &lost) || lost.Reason != coordinator.LostRevoked || lost.Token != old.Token() {
		t.Errorf("reason: %v", reason)
	}
	token := old.Token()
	for range 3 {
		next := acquire(t, c, "orders")
		rises(t, old, next)
		if err := old.Err(); !errors.Is(err, reason) {
			t.Fatalf("the lost grant says %v, and said %v", err, reason)
		}
		if old.TrustedFor() != 0 || old.Token() != token {
			t.Fatalf("the lost grant is trusted for %v with token %s", old.TrustedFor(), old.Token())
		}
		release(t, next)
	}
}

func TestReleasedGrantStaysReleased(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, c, "orders")
	release(t, g)
	next := acquire(t, c, "orders")
	if err := g.Err(); !errors.Is(err, coordinator.ErrNotHeld) || errors.Is(err, coordinator.ErrLost) {
		t.Errorf("released, and says: %v", err)
	}
	if g.TrustedFor() != 0 {
		t.Errorf("released, and trusted for %v", g.TrustedFor())
	}
	release(t, next)
}

// An acquire took over a second; nobody knows how many copies of it a proxy
// made meanwhile. The release moves the session key so that they all die.
func TestLateCopyOfASlowAcquireDiesWithTheRelease(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	txns := count(w)
	g := slowly(t, c, w)
	slow := txns.last(t, enters)
	release(t, g)
	if arrives(t, slow) {
		t.Error("the acquire came back after the release: a lock that nobody holds")
	}
	queued(t, client, "orders", 0)
	release(t, acquire(t, c, "orders"))
	if n := txns.of(settles); n != 0 {
		t.Errorf("%d settles", n)
	}
}

// slowly acquires a lock by a request that takes more than a second.
func slowly(t *testing.T, c *coordinator.Coordinator, w *wire.Wire) *coordinator.Grant {
	t.Helper()
	reply := w.HoldReply("Txn", of(enters))
	a := ask(t, c, "orders")
	held(t, reply)
	time.AfterFunc(1100*time.Millisecond, reply.Release)
	return a.granted(t)
}

// The put of the session key in that release must not bring a session back.
func TestSlowReleaseDoesNotReviveADeletedSession(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := slowly(t, c, w)
	request := w.Hold("Txn", of(releases))
	done := make(chan error, 1)
	go func() { done <- g.Release(within(t, patience)) }()
	held(t, request)
	session := sessionsPrefix + fmt.Sprintf("%x", g.Lease())
	deleted, err := etcd.Client().Delete(t.Context(), session)
	if err != nil || deleted.Deleted != 1 {
		t.Fatalf("delete the session key: %v, %v", deleted, err)
	}
	request.Release()
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	neverBack(t, client, session, deleted.Header.Revision)
	if keys := queue(t, client, "orders"); len(keys) != 0 {
		t.Errorf("the lock key is still there: %v", keys)
	}
}

// A fast acquire has no such protection. What its late copy leaves is found
// with the next proof.
func TestGhostOfAFastAcquireIsRemoved(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	txns := count(w)
	kept := acquire(t, c, "kept")
	g := acquire(t, c, "orders")
	first := txns.last(t, enters)
	release(t, g)
	if !arrives(t, first) {
		t.Fatal("the late copy did not apply: this test is about nothing")
	}
	ghosted := time.Now()
	other := newCoordinator(t, etcd.Client(), steady)
	next := acquire(t, other, "orders")
	// A quarter of the TTL, and time for a machine that has other things to do.
	if took := time.Since(ghosted); took > 3*time.Second {
		t.Errorf("the ghost held the lock for %v", took)
	}
	release(t, next)
	if err := kept.Err(); err != nil {
		t.Errorf("another lock of the session: %v", err)
	}
	release(t, kept)
}

// Only what is known to be nobody's is removed, and only what has our form.
func TestAuditSparesWhatIsNotAGhost(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	txns := count(w)
	g := acquire(t, c, "held")
	lease := clientv3.WithLease(g.Lease())
	var foreign []string
	for _, key := range []string{
		directory("orders") + "somebody-else-1",
		directory("orders") + fmt.Sprintf("%x", g.Lease()), // as concurrency.Mutex has it
		directory("orders") + fmt.Sprintf("%x-01", g.Lease()),
		directory("orders") + fmt.Sprintf("below/%x-1", g.Lease()),
		coordinator.DefaultPrefix + fmt.Sprintf("marks/%x-1", g.Lease()),
		"elsewhere/" + fmt.Sprintf("%x-1", g.Lease()),
	} {
		if _, err := client.Put(t.Context(), key, "", lease); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, key)
	}
	// An acquire that is under way for longer than an audit takes: its key is
	// there, and no answer has come.
	reply := w.HoldReply("Txn", of(enters))
	a := ask(t, c, "under way")
	held(t, reply)
	audits := w.Calls("LeaseTimeToLive")
	eventually(t, "an audit", func() bool {
		return w.Calls("LeaseTimeToLive") > audits && w.Open("LeaseTimeToLive") == 0
	})
	reply.Release()
	under := a.granted(t)
	for _, key := range foreign {
		if resp, err := client.Get(t.Context(), key); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("%s was removed", key)
		}
	}
	if n := txns.of(removes); n != 0 {
		t.Errorf("%d keys were removed", n)
	}
	stands(t, client, under)
	stands(t, client, g)
	release(t, under)
	release(t, g)
}

// The list of a lease's keys comes from one member, which may be behind.
func TestAuditConfirmsWhatItsListLacks(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	lists := make(chan struct{}, 100)
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if reply, ok := call.Reply.(*pb.LeaseTimeToLiveResponse); ok {
			reply.Keys = nil
			lists <- struct{}{}
		}
		return err
	})
	for range 3 { // two audits are over when the third begins
		select {
		case <-lists:
		case <-time.After(patience):
			t.Fatal("no audit")
		}
	}
	if err := g.Err(); err != nil {
		t.Errorf("lost by a list that was behind: %v", err)
	}
	stands(t, client, g)
	release(t, g)
}

// Between the list of an audit and what it does about it, a lock can be
// released and acquired anew in the process.
func TestReleaseDuringAnAuditDisturbsNobody(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	first := acquire(t, c, "orders")
	list := w.Hold("LeaseTimeToLive")
	held(t, list)
	release(t, first)
	second := acquire(t, c, "orders")
	// The confirmation of what the list lacks is the last that the audit does.
	confirm := w.HoldReply("Range", wire.When(func(call *wire.Call) bool {
		return string(call.Request.(*pb.RangeRequest).Key) == first.Key()
	}))
	list.Release()
	select {
	case <-confirm.Arrived():
		confirm.Release()
	case <-time.After(500 * time.Millisecond): // it may know better than to ask
	}
	audits := w.Calls("LeaseTimeToLive")
	eventually(t, "a further audit", func() bool { return w.Calls("LeaseTimeToLive") > audits })

	stands(t, client, second)
	if err := second.Err(); err != nil {
		t.Fatal(err)
	}
	// The process still knows that it holds the lock: whoever else wants it
	// stands behind in the process and not behind an own key at etcd.
	txns := count(w)
	behind := ask(t, c, "orders")
	behind.waits(t)
	release(t, second)
	third := behind.granted(t)
	if txns.of(handsOn) != 1 || txns.of(enters) != 0 {
		t.Errorf("%d hand-ons and %d acquires: the process had forgotten that it held the lock", txns.of(handsOn), txns.of(enters))
	}
	release(t, third)
}

// Somebody who tries after a release was done must not be told that the lock is
// held.
func TestTryAfterARelease(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	for i := range 200 {
		g, err := c.TryAcquire(within(t, patience), "orders")
		if err != nil {
			t.Fatalf("the lock is free since release %d, and trying says: %v", i, err)
		}
		release(t, g)
	}
}

// The same after the lock was found held.
func TestTryAfterABusyTry(t *testing.T) {
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	for i := range 100 {
		g := acquire(t, a, "orders")
		var busy *coordinator.BusyError
		if _, err := b.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Fatalf("try on a held lock: %v", err)
		}
		release(t, g)
		g, err := b.TryAcquire(within(t, patience), "orders")
		if err != nil {
			t.Fatalf("the lock is free since release %d, and trying says: %v", i, err)
		}
		release(t, g)
	}
}

// Somebody else was faster between the look and the acquire.
func TestTryThatComesSecondLeavesNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	request := w.Hold("Txn", of(enters))
	tried := make(chan error, 1)
	go func() {
		g, err := b.TryAcquire(t.Context(), "orders")
		tried <- errOf(g, err)
	}()
	held(t, request)
	g := acquire(t, a, "orders")
	request.Release()
	select {
	case err := <-tried:
		var busy *coordinator.BusyError
		if !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Errorf("%v, want that %s holds", err, g.Token())
		}
	case <-time.After(patience):
		t.Fatal("a try waits for the lock")
	}
	if keys := queue(t, client, "orders"); len(keys) != 1 || keys[0].CreateRevision != g.Token().Revision() {
		t.Errorf("the queue: %v", keys)
	}
	release(t, g)
}

func TestReleaseWithAnEndedContextReleases(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Release(ctx); err != nil {
		t.Errorf("release: %v", err)
	}
	queued(t, client, "orders", 0)
}

// Release says that it does not know, goes on, and tells the outcome to whoever
// asks again.
func TestReleaseGoesOnWithoutItsCaller(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := steady
	opts.CleanupTimeout = 20 * time.Millisecond
	c := newCoordinator(t, client, opts)
	g := acquire(t, c, "orders")
	request := w.Hold("Txn", of(releases))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Release(ctx); !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was canceled, and is unsettled", err)
	}
	if err := g.Err(); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("the grant goes on during its release: %v", err)
	}
	again := make(chan error, 1)
	go func() { again <- g.Release(within(t, patience)) }()
	request.Release()
	if err := <-again; err != nil {
		t.Errorf("the outcome: %v", err)
	}
	queued(t, client, "orders", 0)
}

func TestReleaseByManyAtOnceIsOne(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	txns := count(w)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if err := g.Release(within(t, patience)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := txns.of(releases); n != 1 {
		t.Errorf("%d releases sent", n)
	}
}

// An operator deletes the lock key of a holder whose lease lives on.
func TestDeletedLockKeyEndsItsGrantOnly(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, hasty)
	other := acquire(t, c, "other")
	g := acquire(t, c, "orders")
	deleted := time.Now()
	if _, err := client.Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
		t.Errorf("reason: %v", err)
	}
	if took := time.Since(deleted); took > 3*time.Second {
		t.Errorf("noticed after %v", took)
	}
	if keys := queue(t, client, "orders"); len(keys) != 0 {
		t.Errorf("the key is back: %v", keys)
	}
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
	next := acquire(t, c, "orders")
	rises(t, g, next)
	if err := other.Err(); err != nil || next.Lease() != other.Lease() {
		t.Errorf("another grant of the session: %v", err)
	}
	release(t, next)
	release(t, other)
}

// A lock key that an operator deletes while its release is under way.
func TestReleaseOfADeletedKeyIsToldSo(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	if _, err := etcd.Client().Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) || !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
		t.Errorf("release: %v", err)
	}
}

// Whatever happens, nothing is deleted but single lock keys that this process
// made, each compared by its create revision or by being its session's.
func TestOnlyOwnKeysAreDeleted(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	var mu sync.Mutex
	own := make(map[string]bool)
	check := func(txn *pb.TxnRequest) {
		for _, op := range txn.Success {
			if put := op.GetRequestPut(); put != nil {
				own[string(put.Key)] = true
			}
		}
		for _, op := range append(txn.Success, txn.Failure...) {
			if inner := op.GetRequestTxn(); inner != nil {
				for _, op := range inner.Success {
					if del := op.GetRequestDeleteRange(); del != nil && (len(del.RangeEnd) > 0 || !own[string(del.Key)]) {
						t.Errorf("deletes %q to %q", del.Key, del.RangeEnd)
					}
				}
			}
			if del := op.GetRequestDeleteRange(); del != nil && (len(del.RangeEnd) > 0 || !own[string(del.Key)] || len(txn.Compare) == 0) {
				t.Errorf("deletes %q to %q", del.Key, del.RangeEnd)
			}
		}
	}
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		mu.Lock()
		switch r := call.Request.(type) {
		case *pb.TxnRequest:
			check(r)
		case *pb.DeleteRangeRequest:
			t.Errorf("deletes %q to %q without a compare", r.Key, r.RangeEnd)
		}
		mu.Unlock()
		return call.Send(ctx)
	})
	stray := directory("orders") + "not ours"
	a, b := newCoordinator(t, client, hasty), newCoordinator(t, client, hasty)
	for _, kind := range []string{enters, handsOn, releases} {
		w.DropReply("Txn", 3, of(kind))
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c := []*coordinator.Coordinator{a, b}[i%2]
			if i%5 == 4 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if g, err := c.Acquire(ctx, "orders"); err == nil {
					_ = g.Release(ctx) // with a context that may have ended
				}
				return
			}
			g, err := c.Acquire(within(t, patience), "orders")
			if err == nil {
				err = g.Release(within(t, patience))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := client.Put(t.Context(), stray, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := a.TryAcquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrBusy) || !strings.Contains(err.Error(), stray) {
		t.Errorf("try behind a key that is not ours: %v", err)
	}
	awaitQueue(t, client, "orders", "the stray", func(kvs []*mvccpb.KeyValue) bool { return len(kvs) == 1 && string(kvs[0].Key) == stray })
	mu.Lock()
	defer mu.Unlock()
	if _, err := etcd.Client().Delete(t.Context(), stray); err != nil {
		t.Fatal(err)
	}
}
