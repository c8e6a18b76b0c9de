package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// onEvents calls f for each answer of a watch that has events.
func onEvents(w *wire.Wire, f func(*pb.WatchResponse) error) *wire.MessageHook {
	return w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if resp, ok := m.Payload.(*pb.WatchResponse); ok && !m.Sent && len(resp.Events) > 0 {
			return f(resp)
		}
		return nil
	})
}

// concurrency.Mutex takes the same key again and again, and a DELETE does not
// say which life of the key it ended. A watch that reaches further back than the
// list, as one does that the client resumed, ends an earlier life.
func TestDeleteOfAnEarlierOwnerMakesNobodyOwner(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	session, err := concurrency.NewSession(etcd.Client())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, coordinator.DefaultPrefix+"locks/orders")
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := mutex.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone, err := client.Get(t.Context(), "any")
	if err != nil {
		t.Fatal(err)
	}
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}

	txns := count(w)
	passed := make(chan struct{}, 8)
	key := []byte(mutex.Key()) // read now: Unlock clears it, and an event can be in the hook then
	hook := onEvents(w, func(resp *pb.WatchResponse) error {
		resp.Events = []*mvccpb.Event{{
			Type: mvccpb.Event_DELETE,
			Kv:   &mvccpb.KeyValue{Key: key, ModRevision: gone.Header.Revision},
		}}
		passed <- struct{}{}
		return nil
	})
	a := ask(t, c, "orders")
	queued(t, client, "orders", 2)
	txns.looked(t)
	for range 2 { // the second proves that the first was dealt with
		if _, err := etcd.Client().Put(t.Context(), directory("orders")+"behind", ""); err != nil {
			t.Fatal(err)
		}
		<-passed
	}
	a.waits(t)
	hook.Remove()
	if n := txns.of(reads); n != 1 {
		t.Errorf("%d looks at the queue: an event of an earlier life counted", n)
	}
	if err := mutex.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := a.granted(t)
	stands(t, client, g)
	if _, err := etcd.Client().Delete(t.Context(), directory("orders")+"behind"); err != nil {
		t.Fatal(err)
	}
	release(t, g)
}

// The waiter's lease is gone, and then the holder leaves (etcd-io/etcd#9921,
// #11456). Whatever was left of the old place grants nothing.
func TestWaiterWhoseLeaseEndedIsNotGrantedItsOldPlace(t *testing.T) {
	etcd := cluster(t, nil)
	client := etcd.Client()
	a, b := newCoordinator(t, client, steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	waiter := ask(t, b, "orders")
	old := queued(t, client, "orders", 2)[1]
	// Both at once, so that the waiter learns of both together.
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(old.Lease)); err != nil {
		t.Fatal(err)
	}
	release(t, holder)
	g := waiter.granted(t)
	if int64(g.Lease()) == old.Lease || g.Key() == string(old.Key) {
		t.Errorf("granted %s, which is gone", g.Key())
	}
	rises(t, holder, g)
	stands(t, client, g)
	next := acquireBehind(t, client, a, g)
	release(t, next)
}

// acquireBehind releases a grant while somebody else waits, who is returned the
// lock.
func acquireBehind(t *testing.T, client *clientv3.Client, c *coordinator.Coordinator, g *coordinator.Grant) *coordinator.Grant {
	t.Helper()
	next := ask(t, c, g.Lock())
	queued(t, client, g.Lock(), 2)
	release(t, g)
	h := next.granted(t)
	rises(t, g, h)
	stands(t, client, h)
	return h
}

// A waiter learns that its place is gone while the holder stays
// (etcd-io/etcd#19597), and stands in line anew.
func TestWaiterWhoseKeyIsGoneQueuesAnew(t *testing.T) {
	for _, end := range []string{"lease revoked", "lock key deleted", "session key deleted"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			etcd := cluster(t, nil)
			client := etcd.Client()
			own, w := tapped(t, etcd)
			txns := count(w)
			a, b := newCoordinator(t, client, steady), newCoordinator(t, own, steady)
			holder := acquire(t, a, "orders")
			waiter := ask(t, b, "orders")
			txns.looked(t)
			old := queued(t, client, "orders", 2)[1]
			session := sessionsPrefix + fmt.Sprintf("%x", old.Lease)
			if end == "lock key deleted" {
				// Without an audit there is only the watch to learn it from.
				w.FailBefore("LeaseTimeToLive", 0)
			}
			var err error
			switch end {
			case "lease revoked":
				_, err = client.Revoke(t.Context(), clientv3.LeaseID(old.Lease))
			case "lock key deleted":
				_, err = client.Delete(t.Context(), string(old.Key))
			case "session key deleted":
				// No event tells: it is found with the next proof.
				_, err = client.Delete(t.Context(), session)
			}
			if err != nil {
				t.Fatal(err)
			}
			gone := time.Now()
			anew := awaitQueue(t, client, "orders", "a new place", func(kvs []*mvccpb.KeyValue) bool {
				return len(kvs) == 2 && string(kvs[1].Key) != string(old.Key)
			})[1]
			if took := time.Since(gone); took > 6*time.Second {
				t.Errorf("noticed after %v", took)
			}
			if same := anew.Lease == old.Lease; same != (end == "lock key deleted") {
				t.Errorf("the new place is on the old lease: %v", same)
			}
			waiter.waits(t)
			stands(t, client, holder)
			release(t, holder)
			g := waiter.granted(t)
			if g.Key() != string(anew.Key) {
				t.Errorf("granted %s, not the new place %s", g.Key(), anew.Key)
			}
			release(t, g)
		})
	}
}

// The session key was deleted by a recovery; what is left of the queue grants
// nothing, though key and lease are there and the way is free.
func TestWaiterOfADeletedSessionIsNotGranted(t *testing.T) {
	etcd := cluster(t, nil)
	client := etcd.Client()
	a, b := newCoordinator(t, client, steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	waiter := ask(t, b, "orders")
	old := queued(t, client, "orders", 2)[1]
	session := sessionsPrefix + fmt.Sprintf("%x", old.Lease)
	// Events alone make an owner for a second after a look at the session key.
	<-time.After(1200 * time.Millisecond)
	// One revision for both: the waiter cannot learn of one before the other.
	if _, err := client.Txn(t.Context()).Then(clientv3.OpDelete(session), clientv3.OpDelete(holder.Key())).Commit(); err != nil {
		t.Fatal(err)
	}
	g := waiter.granted(t)
	if int64(g.Lease()) == old.Lease {
		t.Errorf("granted %s of the session that was ended", g.Token())
	}
	release(t, g)
	if err := holder.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release of the deleted key: %v", err)
	}
}

// Who gave up has no place any more when the lock becomes free.
func TestWaiterThatGaveUpHasLeftTheQueue(t *testing.T) {
	for _, by := range []string{"its context", "WaitAtMost"} {
		t.Run(by, func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			a, b := newCoordinator(t, client, steady), newCoordinator(t, client, steady)
			c := newCoordinator(t, client, steady)
			holder := acquire(t, a, "orders")
			release(t, acquire(t, c, "other")) // the session of c is open
			txns := count(w)

			var waiter *asking
			if by == "WaitAtMost" {
				waiter = ask(t, b, "orders", coordinator.WaitAtMost(100*time.Millisecond))
			} else {
				waiter = ask(t, b, "orders")
				txns.looked(t)
				waiter.cancel()
			}
			if err := waiter.failed(t); !errors.Is(err, coordinator.ErrBusy) || errors.Is(err, coordinator.ErrUnsettled) {
				t.Fatalf("%v, want that it is busy", err)
			}
			if keys := queue(t, client, "orders"); len(keys) != 1 {
				t.Fatalf("%d keys in the queue after giving up", len(keys))
			}
			release(t, holder)
			g, err := c.TryAcquire(within(t, patience), "orders")
			if err != nil {
				t.Fatal(err)
			}
			release(t, g)
		})
	}
}

func TestCloseEndsWaiting(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	a := newCoordinator(t, client, steady)
	b, err := coordinator.New(client, &steady)
	if err != nil {
		t.Fatal(err)
	}
	holder := acquire(t, a, "orders")
	waiters := []*asking{ask(t, b, "orders"), ask(t, b, "orders")}
	txns.looked(t)
	if err := b.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiters {
		if err := w.failed(t); !errors.Is(err, coordinator.ErrClosed) {
			t.Errorf("waiter: %v", err)
		}
	}
	if keys := queue(t, client, "orders"); len(keys) != 1 {
		t.Errorf("%d keys in the queue", len(keys))
	}
	if _, err := b.Acquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := b.TryAcquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("try: %v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("a second close: %v", err)
	}
	release(t, holder)
}
