package coordinator_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// cost is what a step costs at etcd.
type cost struct {
	requests  map[string]int // by method; streams as one each
	proposals uint64         // entries of the raft log
}

// price measures a step, which must do the same each time, after what makes it
// possible. The proofs of the session are not part of it. The server has
// proposals of its own, rarely: what was seen once without them is the price.
func price(t *testing.T, etcd *embedded.Cluster, w *wire.Wire, prepare, step func()) cost {
	t.Helper()
	var least cost
	for i := range 5 {
		prepare()
		before := raftIndex(t, etcd)
		w.Reset()
		step()
		c := cost{requests: w.Counts(), proposals: raftIndex(t, etcd) - before}
		delete(c.requests, "LeaseKeepAlive")
		delete(c.requests, "LeaseTimeToLive")
		maps.DeleteFunc(c.requests, func(_ string, n int) bool { return n == 0 })
		if i == 0 || c.proposals < least.proposals {
			least = c
		}
	}
	return least
}

func nothing() {}

func raftIndex(t *testing.T, etcd *embedded.Cluster) uint64 {
	t.Helper()
	status, err := etcd.Client().Status(t.Context(), etcd.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	return status.RaftIndex
}

func (c cost) is(t *testing.T, what string, requests map[string]int, proposals uint64) {
	t.Helper()
	t.Logf("%s: requests %v, proposals %d", what, c.requests, c.proposals)
	if !maps.Equal(c.requests, requests) || c.proposals != proposals {
		t.Errorf("%s costs requests %v and %d proposals, want %v and %d", what, c.requests, c.proposals, requests, proposals)
	}
}

func TestAcquireAndReleaseCostOneRequestEach(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	var g *coordinator.Grant
	take := func() { g = acquire(t, c, "orders") }
	give := func() {
		if g != nil {
			release(t, g)
		}
	}
	price(t, etcd, w, give, take).is(t, "an acquire", map[string]int{"Txn": 1}, 1)
	give()
	price(t, etcd, w, take, give).is(t, "a release", map[string]int{"Txn": 1}, 1)
}

func TestTryOnAHeldLockCostsARead(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	other := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, other, "orders")
	price(t, etcd, w, nothing, func() {
		if _, err := c.TryAcquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrBusy) {
			t.Error(err)
		}
	}).is(t, "a try on a held lock", map[string]int{"Range": 1}, 0)
	release(t, g)

	// On one that the own process holds, nothing.
	g = acquire(t, c, "orders")
	price(t, etcd, w, nothing, func() {
		if _, err := c.TryAcquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrBusy) {
			t.Error(err)
		}
	}).is(t, "a try on a lock of the own process", map[string]int{}, 0)
	release(t, g)
}

func TestHandOnCostsOneRequest(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	var next *asking
	price(t, etcd, w, nothing, func() {
		next = ask(t, c, "orders")
		release(t, g)
		g = next.granted(t)
	}).is(t, "release, wait and acquire in one process", map[string]int{"Txn": 1}, 1)
	release(t, g)
}

// The waiter has watched since before the release: what the lock's change of
// hands costs it is the event and the read that decides.
func TestQuickHandOffBetweenProcessesCostsOneEventAndNoRead(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	events := make(chan string, 100)
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if resp, ok := m.Payload.(interface{ GetCreated() bool }); ok && !m.Sent && m.Method == "Watch" && !resp.GetCreated() {
			events <- m.Method
		}
		return nil
	})
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	release(t, acquire(t, b, "warm"))
	holder := acquire(t, a, "orders")
	txns.reset()
	waiter := ask(t, b, "orders")
	txns.looked(t)
	w.Reset()
	txns.reset()
	before := raftIndex(t, etcd)

	release(t, holder)
	g := waiter.granted(t)
	if n := raftIndex(t, etcd) - before; n != 1 {
		t.Errorf("%d proposals, want that of the release", n)
	}
	counts := w.Counts()
	if len(events) != 1 || txns.of(reads) != 0 || counts["Txn"] != 0 || counts["Range"] != 0 || counts["Watch"] != 0 {
		t.Errorf("%d answers of the watch, requests %v", len(events), counts)
	}
	rises(t, holder, g)
	release(t, g)
}

// Waiting costs nothing but the watch, and one read with each proof.
func TestWaitingCostsOneReadAProof(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, hasty)
	holder := acquire(t, a, "orders")
	waiters := []*asking{ask(t, b, "orders"), ask(t, b, "orders"), ask(t, b, "orders")}
	txns.looked(t)
	looks, proofs, watches := txns.of(reads), w.Calls("LeaseTimeToLive"), w.Calls("Watch")
	eventually(t, "some proofs", func() bool { return w.Calls("LeaseTimeToLive") >= proofs+4 })
	looks, proofs = txns.of(reads)-looks, w.Calls("LeaseTimeToLive")-proofs
	if looks > proofs+1 { // one may belong to the proof before
		t.Errorf("%d reads with %d proofs", looks, proofs)
	}
	if w.Calls("Watch") != watches || txns.of(enters) != 1 {
		t.Errorf("%d watches opened, %d acquires", w.Calls("Watch")-watches, txns.of(enters))
	}
	for _, a := range waiters {
		a.cancel()
		if err := a.failed(t); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	release(t, holder)
}

// Other keys move on and are compacted all the time. A waiter of a quiet lock
// must not start over with each of them.
func TestTrafficElsewhereCostsAWaiterNothing(t *testing.T) {
	// Not parallel: it would take the processor from tests about time.
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	holder := acquire(t, a, "orders")
	waiter := ask(t, b, "orders")
	txns.looked(t)
	start := time.Now()
	for range 5 {
		var last int64
		for range 50 {
			resp, err := etcd.Client().Put(t.Context(), "elsewhere", strings.Repeat("x", 100))
			if err != nil {
				t.Fatal(err)
			}
			last = resp.Header.Revision
		}
		if _, err := etcd.Client().Compact(t.Context(), last, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
	}
	// A proof comes at most every two seconds.
	if most := 2 + int(time.Since(start)/(2*time.Second)); txns.of(reads) > most {
		t.Errorf("%d reads in %v", txns.of(reads), time.Since(start))
	}
	if w.Calls("Watch") != 1 {
		t.Errorf("%d watches", w.Calls("Watch"))
	}
	release(t, holder)
	g := waiter.granted(t)
	rises(t, holder, g)
	release(t, g)
}
