package coordinator_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// The member that the holder and a waiter are connected to is removed from the
// cluster for good (etcd-io/etcd#8382). Nobody loses anything.
func TestMemberIsRemovedWhileHoldingAndWaiting(t *testing.T) {
	long(t)
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	label(t)
	victim := (etcd.Leader(t) + 1) % 3
	truth := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{etcd.Member(etcd.Leader(t)).Endpoint()} })
	t.Cleanup(func() { nothingLeft(t, truth) })
	client, _ := tapped(t, etcd, func(c *clientv3.Config) { c.Endpoints = []string{etcd.Member(victim).Endpoint()} })
	opts := coordinator.Options{TTL: 6 * time.Second}
	holder, waiter := newCoordinator(t, client, opts), newCoordinator(t, client, opts)
	g := acquire(t, holder, "orders")
	waits := ask(t, waiter, "orders")
	queued(t, truth, "orders", 2)
	client.SetEndpoints(etcd.Endpoints()...)

	status, err := truth.Status(t.Context(), etcd.Member(victim).Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member may be removed", func() bool { // once all have been up for a while
		_, err := truth.MemberRemove(t.Context(), status.Header.MemberId)
		return err == nil
	})
	// Longer than the lease would last without a renewal.
	for start := time.Now(); time.Since(start) < g.TTL()+time.Second; pause() {
		if err := g.Err(); err != nil {
			t.Fatalf("the holder lost its lock: %v", err)
		}
	}
	stands(t, truth, g)
	waits.waits(t)
	release(t, g)
	h := waits.granted(t)
	rises(t, g, h)
	release(t, h)
}

// A lease begins anew with each leader (etcd-io/etcd#9395, #17132): the lock of a
// holder that has died is free late then, but it gets free.
func TestDeadHolderIsSucceededThoughTheLeaderMoves(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	label(t)
	t.Cleanup(func() { nothingLeft(t, etcd.Client()) })
	c := newCoordinator(t, etcd.Client(), steady)
	dead := newMortal(t, etcd, "prefix")
	last := dead.hold(t, "orders")
	waits := ask(t, c, "orders")
	dead.kill()
	first := etcd.Leader(t)
	for i := 1; i <= 3; i++ {
		etcd.MoveLeader(t, (first+i)%3)
		for start := time.Now(); time.Since(start) < mortalTTL/2; {
			pause()
		}
	}
	g := waits.granted(t)
	if order, err := g.Token().Compare(last.token); err != nil || order <= 0 {
		t.Errorf("token %s after %s: %v", g.Token(), last.token, err)
	}
	release(t, g)
}
