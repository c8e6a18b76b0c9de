package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func current(t *testing.T, c *coordinator.Coordinator, token revisionfence.Token) bool {
	t.Helper()
	is, err := c.IsCurrent(within(t, patience), token)
	if err != nil {
		t.Fatalf("is %s current: %v", token, err)
	}
	return is
}

func TestOnlyTheOwnersTokenIsCurrent(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	g := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	second := queued(t, etcd.Client(), "orders", 2)[1]

	// Whoever must not be told what a member that lags behind thinks.
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if txn, ok := call.Request.(*pb.TxnRequest); ok && transaction(call) == reads {
			for _, op := range txn.Success {
				if r := op.GetRequestRange(); r == nil || r.Serializable {
					t.Errorf("not linearizable: %v", op)
				}
			}
		}
		return call.Send(ctx)
	})
	if !current(t, b, g.Token()) {
		t.Error("the owner's token is not current")
	}
	waiter := tokenOf(t, client, "orders", string(second.Key))
	if current(t, b, waiter) {
		t.Error("a waiter's token is current: its key exists, and does not own")
	}
	old, err := revisionfence.New("orders", 1, g.Token().Revision())
	if err != nil {
		t.Fatal(err)
	}
	if current(t, b, old) {
		t.Error("a token of another epoch is current")
	}
	other, err := revisionfence.New("other", 0, g.Token().Revision())
	if err != nil {
		t.Fatal(err)
	}
	if current(t, b, other) {
		t.Error("a token of another lock is current")
	}
	release(t, g)
	if current(t, a, g.Token()) {
		t.Error("a token is current after its release")
	}
	now := next.granted(t)
	if now.Token() != waiter || !current(t, a, waiter) {
		t.Errorf("token %s of the waiter %s is not current", now.Token(), waiter)
	}
	release(t, now)
	if current(t, a, waiter) {
		t.Error("a token is current though the lock is free")
	}
	if _, err := a.IsCurrent(t.Context(), revisionfence.Token{}); !errors.Is(err, revisionfence.ErrNoToken) {
		t.Errorf("the zero token: %v", err)
	}
}

func TestEvictEndsExactlyThatGrantAndTellsItsHolder(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), brisk)
	operator := newCoordinator(t, etcd.Client(), identified("operator"))
	g := acquire(t, a, "orders")
	other := acquire(t, a, "others")
	next := ask(t, operator, "orders")
	queued(t, etcd.Client(), "orders", 2)
	if err := operator.Evict(t.Context(), g.Token(), "hangs since noon"); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostEvicted || lost.Token != g.Token() ||
		!strings.Contains(lost.Detail, "hangs since noon") || !strings.Contains(lost.Detail, "operator") {
		t.Errorf("the holder is told %v", err)
	}
	if err := g.Release(t.Context()); !errors.Is(err, coordinator.ErrNotHeld) || !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("a release after the eviction: %v", err)
	}
	second := next.granted(t)
	rises(t, g, second)
	if other.Err() != nil {
		t.Errorf("another grant of the same session: %v", other.Err())
	}
	stands(t, etcd.Client(), other)

	// It is not held any more, and who holds the lock now stays.
	var busy *coordinator.BusyError
	if err := operator.Evict(t.Context(), g.Token(), "again"); !errors.As(err, &busy) || busy.Holder.Token != second.Token() || busy.Lock != "orders" {
		t.Errorf("evict what another has followed: %v", err)
	}
	stands(t, etcd.Client(), second)
	release(t, second)
	if err := operator.Evict(t.Context(), g.Token(), "again"); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("evict from a free lock: %v", err)
	}
	// The process of the evicted one goes on.
	release(t, acquire(t, a, "orders"))
	release(t, other)
}

func TestEvictedWaiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), identified("a"))
	b := newCoordinator(t, etcd.Client(), identified("b"))
	c := newCoordinator(t, etcd.Client(), identified("c"))
	g := acquire(t, a, "orders")
	first := ask(t, b, "orders")
	place := string(queued(t, etcd.Client(), "orders", 2)[1].Key)
	second := ask(t, c, "orders")
	queued(t, etcd.Client(), "orders", 3)
	if err := a.Evict(t.Context(), tokenOf(t, etcd.Client(), "orders", place), "let c pass"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b is behind c", func() bool {
		return len(statusOf(t, a, "orders").Waiting) == 2 && identities(statusOf(t, a, "orders").Waiting)[0] == "c"
	})
	if g.Err() != nil {
		t.Errorf("the holder: %v", g.Err())
	}
	release(t, g)
	release(t, second.granted(t))
	release(t, first.granted(t))
}

func evicts(call *wire.Call) bool {
	txn, ok := call.Request.(*pb.TxnRequest)
	return ok && len(txn.Success) == 2 && strings.Contains(string(txn.Success[1].GetRequestPut().GetKey()), "/evicted/")
}

func TestEvictOfUnknownOutcomeIsRepeated(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), brisk)
	operator := newCoordinator(t, client, steady)
	g := acquire(t, a, "orders")

	unsent := w.FailBefore("Txn", 1, wire.When(evicts))
	if err := operator.Evict(t.Context(), g.Token(), "one"); !errors.Is(err, coordinator.ErrUnsettled) || unsent.Hits() != 1 {
		t.Errorf("an eviction that vanished: %v", err)
	}
	stands(t, client, g)
	w.DropReply("Txn", 1, wire.When(evicts))
	if err := operator.Evict(t.Context(), g.Token(), "two"); !errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("an eviction without an answer: %v", err)
	}
	if err := operator.Evict(t.Context(), g.Token(), "three"); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("the third, after the second took effect: %v", err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostEvicted || !strings.Contains(lost.Detail, "two") {
		t.Errorf("the holder is told %v", err)
	}
}

// Between the look and the deletion the grant may end by itself.
func TestEvictOfWhatEndsMeanwhileChangesNothing(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	operator := newCoordinator(t, client, steady)
	for name, end := range map[string]func(g *coordinator.Grant){
		"released": func(g *coordinator.Grant) { release(t, g) },
		"expired":  func(g *coordinator.Grant) { etcd.Expire(t, g) },
	} {
		g := acquire(t, a, "orders")
		latch := w.Hold("Txn", wire.When(evicts))
		result := make(chan error, 1)
		go func() { result <- operator.Evict(within(t, patience), g.Token(), "late") }()
		held(t, latch)
		end(g)
		latch.Release()
		if err := receive(t, result, "Evict"); !errors.Is(err, coordinator.ErrNotHeld) {
			t.Errorf("%s meanwhile: %v", name, err)
		}
		queued(t, client, "orders", 0)
		resp, err := client.Get(t.Context(), sessionsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			if strings.Contains(string(kv.Key), "/evicted/") {
				t.Errorf("%s meanwhile: news of an eviction that did not happen: %s", name, kv.Key)
			}
		}
	}
}

func TestEvictRefusesWhatItCannotMean(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, c, "orders")
	if err := c.Evict(t.Context(), revisionfence.Token{}, ""); !errors.Is(err, revisionfence.ErrNoToken) {
		t.Errorf("the zero token: %v", err)
	}
	if err := c.Evict(t.Context(), g.Token(), "two\nlines"); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("a reason of two lines: %v", err)
	}
	old, err := revisionfence.New("orders", 1, g.Token().Revision())
	if err != nil {
		t.Fatal(err)
	}
	var busy *coordinator.BusyError
	if err := c.Evict(t.Context(), old, ""); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
		t.Errorf("a token of another epoch: %v", err)
	}
	stands(t, etcd.Client(), g)
	release(t, g)
}

// A release can come before the holder has noticed that it was evicted.
func TestReleaseOfAnEvictedGrantIsToldWhy(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c, operator := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, etcd.Client(), identified("operator"))
	all, err := c.AcquireAll(within(t, patience), []string{"x", "y"})
	if err != nil {
		t.Fatal(err)
	}
	single, handed := acquire(t, c, "single"), acquire(t, c, "handed")
	next := ask(t, c, "handed")
	for _, g := range []*coordinator.Grant{single, handed, all.Grant("y")} {
		if err := operator.Evict(t.Context(), g.Token(), "hangs"); err != nil {
			t.Fatal(err)
		}
	}
	for name, release := range map[string]func(context.Context) error{"single": single.Release, "handed on": handed.Release, "several": all.Release} {
		err := release(within(t, patience))
		var lost *coordinator.LostError
		if !errors.Is(err, coordinator.ErrNotHeld) || !errors.As(err, &lost) || lost.Reason != coordinator.LostEvicted || !strings.Contains(lost.Detail, "hangs") {
			t.Errorf("%s: %v", name, err)
		}
	}
	release(t, next.granted(t))
}

// A proxy may send a request twice, and pass on the answer to the second copy.
func TestEvictionThatArrivesTwiceIsDone(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, operator := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	twice := w.SendTwice("Txn", 1, wire.When(func(call *wire.Call) bool {
		txn, ok := call.Request.(*pb.TxnRequest)
		return ok && len(txn.Compare) > 0
	}))
	if err := operator.Evict(t.Context(), g.Token(), "hangs"); err != nil || twice.Hits() != 1 {
		t.Errorf("%d requests sent twice: %v", twice.Hits(), err)
	}
	if err := operator.Evict(t.Context(), g.Token(), "hangs"); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("a second call: %v", err)
	}
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
}

// A newer version may mean something else by what it writes. Its key holds the
// lock, people are shown it, and nothing is decided by what it says.
func TestLockKeyOfANewerVersionIsOnlyRespected(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	release(t, acquire(t, c, "warm"))
	lease, err := etcd.Client().Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%s%x-1", directory("orders"), lease.ID)
	put, err := etcd.Client().Put(t.Context(), key, `{"format":99,"identity":"future","reason":"?","value":"eA=="}`, clientv3.WithLease(lease.ID))
	if err != nil {
		t.Fatal(err)
	}
	token, err := revisionfence.New("orders", 0, put.Header.Revision)
	if err != nil {
		t.Fatal(err)
	}
	var busy *coordinator.BusyError
	if _, err := c.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Key != key {
		t.Errorf("try: %v", err)
	}
	st, err := c.Status(t.Context(), "orders")
	if h := st.Holder; err != nil || h.Key != key || h.Lease != lease.ID {
		t.Errorf("status: %+v, %v", h, err)
	}
	if _, err := c.IsCurrent(t.Context(), token); !errors.Is(err, coordinator.ErrFormat) {
		t.Errorf("is current: %v", err)
	}
	if err := c.Evict(t.Context(), token, "test"); !errors.Is(err, coordinator.ErrFormat) {
		t.Errorf("evict: %v", err)
	}
	if n := len(queue(t, etcd.Client(), "orders")); n != 1 {
		t.Errorf("%d keys stand in the queue", n)
	}
	if _, err := etcd.Client().Revoke(t.Context(), lease.ID); err != nil {
		t.Error(err)
	}
}
