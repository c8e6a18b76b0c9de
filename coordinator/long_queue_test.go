package coordinator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

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
	eventually(t, "the waiter watches its predecessor", func() bool { return txns.of(reads) >= 2 && w.Open("Watch") > 0 })
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

// For each look at the queue the server reads all of it: who comes last in a long
// one looks once, and watches no more than it needs.
func TestComingLastInALongQueueCostsOneLook(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	for i := range 15 {
		if _, err := etcd.Client().Put(t.Context(), directory("orders")+fmt.Sprintf("foreign-%02d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	var mu sync.Mutex
	looks, watches, wide := 0, 0, 0
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if txn, ok := call.Request.(*pb.TxnRequest); ok && transaction(call) == reads {
			mu.Lock()
			for _, op := range txn.Success {
				if len(op.GetRequestRange().GetRangeEnd()) > 0 {
					looks++
				}
			}
			mu.Unlock()
		}
		return call.Send(ctx)
	})
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if req, ok := m.Payload.(*pb.WatchRequest); ok && m.Sent && req.GetCreateRequest() != nil {
			mu.Lock()
			defer mu.Unlock()
			if watches++; len(req.GetCreateRequest().RangeEnd) > 0 {
				wide++
			}
		}
		return nil
	})
	waiter := ask(t, c, "orders")
	eventually(t, "it watches", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return watches == 2 && looks > 0
	})
	mu.Lock()
	if looks != 1 || wide != 0 {
		t.Errorf("%d looks at the whole queue, %d watches of it", looks, wide)
	}
	mu.Unlock()
	if _, err := etcd.Client().Delete(t.Context(), directory("orders")+"foreign", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	release(t, waiter.granted(t))
}
