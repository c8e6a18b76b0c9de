package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

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

// The holder leaves in each of the gaps between entering the queue, watching
// it and looking at it.
func TestReleaseInAGapIsNotMissed(t *testing.T) {
	for _, gap := range []string{"before the watch", "before the look", "after the look"} {
		t.Run(gap, func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			c := newCoordinator(t, client, steady)
			release(t, acquire(t, c, "warm"))
			other := newCoordinator(t, etcd.Client(), steady)
			holder := acquire(t, other, "orders")

			arrived, proceed := make(chan struct{}), make(chan struct{})
			var once sync.Once
			block := func() {
				once.Do(func() {
					close(arrived)
					<-proceed
				})
			}
			switch gap {
			case "before the watch":
				w.OnMessage(func(_ context.Context, m *wire.Message) error {
					if m.Method == "Watch" && m.Sent {
						block()
					}
					return nil
				})
			case "before the look":
				w.OnUnary(func(ctx context.Context, call *wire.Call) error {
					if transaction(call) == reads {
						block()
					}
					return call.Send(ctx)
				})
			case "after the look":
				w.OnUnary(func(ctx context.Context, call *wire.Call) error {
					err := call.Send(ctx)
					if transaction(call) == reads {
						block()
					}
					return err
				})
			}
			a := ask(t, c, "orders")
			<-arrived
			release(t, holder)
			close(proceed)
			g := a.granted(t)
			rises(t, holder, g)
			release(t, g)
		})
	}
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

// etcd says that the revision of the watch is gone (etcd-io/etcd#9715).
func TestCompactionIsNoEndOfWaiting(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	txns := count(w)
	waiter := ask(t, b, "orders")
	place := queued(t, client, "orders", 2)[1]
	txns.looked(t)
	var once sync.Once
	onEvents(w, func(resp *pb.WatchResponse) error {
		once.Do(func() {
			resp.Canceled, resp.CompactRevision, resp.Events = true, resp.Header.Revision, nil
		})
		return nil
	})
	if _, err := client.Put(t.Context(), directory("orders")+"behind", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second look", func() bool { return txns.of(reads) > 1 })
	waiter.waits(t)
	if kvs := queue(t, client, "orders"); string(kvs[1].Key) != string(place.Key) || kvs[1].CreateRevision != place.CreateRevision {
		t.Errorf("the waiter lost its place: %v", kvs)
	}
	if _, err := client.Delete(t.Context(), directory("orders")+"behind"); err != nil {
		t.Fatal(err)
	}
	release(t, holder)
	g := waiter.granted(t)
	if g.Key() != string(place.Key) {
		t.Errorf("granted %s, stood at %s", g.Key(), place.Key)
	}
	release(t, acquireBehind(t, client, a, g))
}

// The same for real: cut off, while the queue moves on and is compacted.
func TestCompactionWhileCutOffIsNoEndOfWaiting(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client, _ := tapped(t, etcd, func(c *clientv3.Config) { c.Endpoints = []string{proxy.Endpoint()} })
	far := etcd.Client()
	a, b := newCoordinator(t, far, steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	waiter := ask(t, b, "orders")
	queued(t, far, "orders", 2)

	proxy.Cut()
	var last int64
	for i := range 50 {
		resp, err := far.Put(t.Context(), fmt.Sprint("other-", i), "")
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Header.Revision
	}
	release(t, holder)
	if _, err := far.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Heal()
	g := waiter.granted(t)
	rises(t, holder, g)
	release(t, g)
}

// Events can be lost (etcd-io/etcd#18089), and a server that was restored waits
// in silence for a revision of its future. With each proof the waiter looks for
// itself.
func TestLostEventsAreMadeUpFor(t *testing.T) {
	for _, lost := range []string{"all events", "that the watch was created"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			etcd := cluster(t, nil)
			// Not tapped: clientv3 keeps a watch that was never created until
			// its client is closed.
			w := wire.New()
			client := etcd.NewClient(t, func(c *clientv3.Config) {
				c.DialOptions = append(c.DialOptions, w.DialOptions()...)
			})
			a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, hasty)
			holder := acquire(t, a, "orders")
			w.OnMessage(func(_ context.Context, m *wire.Message) error {
				resp, ok := m.Payload.(*pb.WatchResponse)
				if ok && !m.Sent && (lost == "all events" && len(resp.Events) > 0 || lost != "all events" && resp.Created) {
					return wire.ErrDrop
				}
				return nil
			})
			txns := count(w)
			waiter := ask(t, b, "orders")
			txns.looked(t) // with the first proof, if there is no watch
			release(t, holder)
			freed := time.Now()
			select {
			case <-waiter.done:
			case <-time.After(5 * time.Second):
				t.Fatalf("not noticed in %v, which is many proofs", time.Since(freed))
			}
			release(t, waiter.granted(t))
		})
	}
}

// A member that is cut off from its leader is silent unless it was asked not to
// be, and then a waiter would hear nothing until its lease has run out.
func TestWatchAsksForALeader(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	opened := make(chan bool, 10)
	w.OnMessage(func(ctx context.Context, m *wire.Message) error {
		if req, ok := m.Payload.(*pb.WatchRequest); ok && m.Sent && req.GetCreateRequest() != nil {
			md, _ := metadata.FromOutgoingContext(ctx)
			asked := md.Get(rpctypes.MetadataRequireLeaderKey)
			opened <- len(asked) == 1 && asked[0] == rpctypes.MetadataHasLeader
		}
		return nil
	})
	waiter := ask(t, b, "orders")
	select {
	case asks := <-opened:
		if !asks {
			t.Error("the watch does not ask for a leader")
		}
	case <-time.After(patience):
		t.Error("no watch")
	}
	release(t, holder)
	release(t, waiter.granted(t))
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

// clientv3 forgets a watch whose context ends before the server has confirmed
// it. The server does not, and the stream stays open too.
func TestGivingUpWhileTheWatchBeginsLeavesNoWatch(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd) // looks for watches
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	created, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if resp, ok := m.Payload.(*pb.WatchResponse); ok && !m.Sent && resp.Created {
			once.Do(func() {
				close(created)
				<-proceed
			})
		}
		return nil
	})
	waiter := ask(t, b, "orders")
	<-created
	waiter.cancel()
	if err := waiter.failed(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(proceed)
	queued(t, client, "orders", 1)
	release(t, holder)
}

// A queue that is longer than what one process watches as a whole.
func TestLongQueueIsServedInOrder(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	const processes = 13
	holder := acquire(t, newCoordinator(t, client, steady), "orders")
	var line []*asking
	for i := range processes {
		line = append(line, ask(t, newCoordinator(t, client, steady), "orders"))
		queued(t, client, "orders", i+2)
	}
	for i, a := range line {
		for _, behind := range line[i:] {
			behind.waits(t)
		}
		release(t, holder)
		g := a.granted(t)
		rises(t, holder, g)
		stands(t, client, g)
		holder = g
	}
	release(t, holder)
}

// far has a waiter behind more keys than it watches, all of them foreign.
func far(t *testing.T) (*clientv3.Client, *tally, *asking, []string, func() int) {
	t.Helper()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	var mu sync.Mutex
	events := 0
	onEvents(w, func(resp *pb.WatchResponse) error {
		mu.Lock()
		defer mu.Unlock()
		events += len(resp.Events)
		return nil
	})
	var ahead []string
	for i := range 15 {
		ahead = append(ahead, directory("orders")+fmt.Sprintf("foreign-%02d", i))
		if _, err := etcd.Client().Put(t.Context(), ahead[i], ""); err != nil {
			t.Fatal(err)
		}
	}
	c := newCoordinator(t, client, steady)
	a := ask(t, c, "orders")
	queued(t, etcd.Client(), "orders", 16)
	eventually(t, "the waiter watches its predecessor", func() bool { return txns.of(reads) >= 3 && w.Open("Watch") > 0 })
	return etcd.Client(), txns, a, ahead, func() int {
		mu.Lock()
		defer mu.Unlock()
		return events
	}
}

func TestFarWaiterIsNotWokenByEveryRelease(t *testing.T) {
	t.Parallel()
	client, _, waiter, ahead, events := far(t)
	for _, key := range ahead[:4] {
		if _, err := client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	// The predecessor goes, which it must hear of. Everything before that has
	// been delivered by then, if it is delivered at all.
	if _, err := client.Delete(t.Context(), ahead[14]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the predecessor", func() bool { return events() > 0 })
	if n := events(); n != 1 {
		t.Errorf("%d events for one that concerned it", n)
	}
	for _, key := range ahead[4:14] {
		waiter.waits(t)
		if _, err := client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	release(t, waiter.granted(t))
}

func TestFarWaiterNoticesThatItsKeyIsGone(t *testing.T) {
	t.Parallel()
	client, _, waiter, ahead, _ := far(t)
	old := queue(t, client, "orders")[15]
	if _, err := client.Delete(t.Context(), string(old.Key)); err != nil {
		t.Fatal(err)
	}
	awaitQueue(t, client, "orders", "a new place", func(kvs []*mvccpb.KeyValue) bool {
		return len(kvs) == 16 && string(kvs[15].Key) != string(old.Key)
	})
	waiter.waits(t)
	for _, key := range ahead {
		if _, err := client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	g := waiter.granted(t)
	stands(t, client, g)
	release(t, g)
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

// A client that resumed its watch at an earlier revision delivers events again.
func TestEventsDeliveredTwiceChangeNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	onEvents(w, func(resp *pb.WatchResponse) error {
		for _, ev := range resp.Events {
			resp.Events = append(resp.Events, proto.CloneOf(ev))
		}
		return nil
	})
	waiter := ask(t, b, "orders")
	queued(t, client, "orders", 2)
	behind := ask(t, a, "orders")
	release(t, holder)
	g := waiter.granted(t)
	behind.waits(t)
	release(t, g)
	release(t, behind.granted(t))
}
