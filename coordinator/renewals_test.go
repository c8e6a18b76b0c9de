package coordinator_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// The client warns "lease keepalive response queue is full" when nobody reads what
// it hands on, of which it keeps 16 for each lease.
func TestAnswersToRenewalsAreRead(t *testing.T) {
	long(t)
	t.Parallel()
	etcd := cluster(t, nil)
	core, logs := observer.New(zapcore.WarnLevel)
	client, w := tapped(t, etcd, func(c *clientv3.Config) { c.Logger = zap.New(core) })
	const sessions = 20
	for i := range sessions {
		acquire(t, newCoordinator(t, client, coordinator.Options{TTL: 2 * time.Second}), fmt.Sprint(i))
	}
	// Of each lease the client renews about every second, and we every half.
	for end := time.Now().Add(21 * time.Second); time.Now().Before(end); {
		pause()
	}
	if n := w.Messages("LeaseKeepAlive"); n < 50*sessions {
		t.Errorf("%d messages: this test is about nothing", n)
	}
	for _, warning := range logs.All() {
		t.Errorf("the client warns: %s", warning.Message)
	}
}

// A renewal that is under way while a lock is released must not keep it.
func TestReleaseBesideARenewal(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	lease := acquire(t, c, "kept").Lease()
	ctx, cancel := context.WithCancel(t.Context())
	renewals := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			_, _ = etcd.Client().KeepAliveOnce(ctx, lease)
		}
		renewals <- n
	}()
	const times = 500
	for range times {
		g := obtain(t, c, "orders")
		release(t, g)
		if resp, err := etcd.Client().Get(t.Context(), g.Key()); err != nil || len(resp.Kvs) != 0 {
			t.Fatalf("after the release: %v, %v", resp, err)
		}
	}
	cancel()
	if n := <-renewals; n < times/5 {
		t.Errorf("%d renewals beside %d releases: this test is about nothing", n, times)
	}
}

// A waiter whose member is cut off from the others knows nothing of what they
// decide: it waits, while the lock passes on, and has its turn afterwards.
func TestWaiterOnAMemberThatIsCutOff(t *testing.T) {
	if os.Getenv(embedded.BinaryEnv) != "" {
		t.Skip("only members in this process can be cut off from each other")
	}
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	label(t)
	lead := etcd.Leader(t)
	victim := (lead + 1) % 3
	on := func(i int) *clientv3.Client {
		return etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{etcd.Member(i).Endpoint()} })
	}
	truth := on(lead)
	t.Cleanup(func() { nothingLeft(t, truth) })
	holder, other, waiter := newCoordinator(t, truth, steady), newCoordinator(t, on((lead+2)%3), steady), newCoordinator(t, on(victim), steady)
	first := acquire(t, holder, "orders")
	second := ask(t, other, "orders")
	queued(t, truth, "orders", 2)
	third := ask(t, waiter, "orders")
	queued(t, truth, "orders", 3)
	etcd.Isolate(t, victim)
	release(t, first)
	g := second.granted(t)
	rises(t, first, g)
	for start := time.Now(); time.Since(start) < 2*time.Second; pause() { // more than an election
		third.waits(t)
	}
	release(t, g)
	// It is its turn, and its member does not know.
	queued(t, truth, "orders", 1)
	third.waits(t)
	if _, err := holder.TryAcquire(within(t, patience), "orders"); err == nil {
		t.Error("two owners: the lock of the waiter was granted to another")
	}
	etcd.Rejoin(t, victim)
	h := third.granted(t)
	rises(t, g, h)
	stands(t, truth, h)
	release(t, h)
}
