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
