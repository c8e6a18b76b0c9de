package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

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
