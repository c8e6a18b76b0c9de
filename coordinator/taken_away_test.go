package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// Somebody deletes the keys of those who wait, as fast as they come. That must
// not become a race of the two.
func TestKeysThatAreDeletedInALoopAreNotPutAsFast(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	c, other := newCoordinator(t, client, steady), newCoordinator(t, etcd.Client(), steady)
	holder := acquire(t, other, "orders")
	ctx, stop := context.WithCancel(t.Context())
	deleted := make(chan int, 1)
	events := etcd.Client().Watch(ctx, directory("orders"), clientv3.WithPrefix())
	go func() {
		n := 0
		defer func() { deleted <- n }()
		for resp := range events {
			for _, ev := range resp.Events {
				if ev.IsCreate() && string(ev.Kv.Key) != holder.Key() {
					_, _ = etcd.Client().Delete(ctx, string(ev.Kv.Key))
					n++
				}
			}
		}
	}()
	waiter := ask(t, c, "orders")
	time.Sleep(3 * time.Second) // it is a rate that is looked at
	stop()
	n := receive(t, deleted, "the end of the deleting")
	t.Logf("%d keys put and deleted in 3 s", n)
	if puts := txns.of(enters); puts > 25 || n < 3 {
		t.Errorf("%d keys put and %d deleted in 3 s", puts, n)
	}
	release(t, holder)
	release(t, waiter.granted(t))
}

// All keys of a lease go with it. Whoever hears of one of them first must not
// take that for somebody's deleting it.
func TestRevokedLeaseIsNotADeletedKey(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	for name, revoke := range map[string]bool{"revoked": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			c, other := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, etcd.Client(), steady)
			holder := acquire(t, other, name)
			a, b := acquire(t, c, name+"-a"), acquire(t, c, name+"-b")
			waiter := ask(t, c, name) // hears of it at once
			own := queued(t, etcd.Client(), name, 2)[1]
			want := coordinator.LostRevoked
			if revoke {
				if _, err := etcd.Client().Revoke(t.Context(), a.Lease()); err != nil {
					t.Fatal(err)
				}
			} else {
				want = coordinator.LostKeyDeleted
				session := sessionsPrefix + strings.Split(a.Owner(), "-")[0]
				_, err := etcd.Client().Txn(t.Context()).Then(clientv3.OpDelete(session), clientv3.OpDelete(string(own.Key))).Commit()
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, g := range []*coordinator.Grant{a, b} {
				var lost *coordinator.LostError
				if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != want {
					t.Errorf("%s ended with %v, want %s", g.Token(), err, want)
				}
			}
			release(t, holder)
			release(t, waiter.granted(t))
		})
	}
}

// The client was closed first: nobody could tell etcd, and the lock is held until
// the lease ends.
func TestReleaseAfterTheClientWasClosedSaysThatNothingIsKnown(t *testing.T) {
	t.Parallel()
	etcd := embedded.Start(t, nil)
	label(t)
	client := etcd.NewClient(t)
	c, err := coordinator.New(client, &coordinator.Options{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, "orders")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	_ = ended(t, g)
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrUnsettled) || errors.Is(err, coordinator.ErrNotHeld) || !errors.Is(err, coordinator.ErrClosed) {
		t.Errorf("release: %v", err)
	}
	stands(t, etcd.Client(), g)
	if err := c.Close(within(t, patience)); !errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("close: %v", err)
	}
	gone(t, etcd.Client(), g.Lease())
}

// A coordinator among the locks of another would hold one of them for ever.
func TestPrefixInsideOfAnotherIsRefused(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	outer := newCoordinator(t, etcd.Client(), steady)
	release(t, acquire(t, outer, "orders"))
	for _, place := range []string{"locks/orders/", "locks/", "sessions/", "marks/x/", "ops/", "floors/x/"} {
		opts := steady
		opts.Prefix = coordinator.DefaultPrefix + place
		inner := newCoordinator(t, etcd.Client(), opts)
		if _, err := inner.Acquire(within(t, patience), "orders"); !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("prefix %q: %v", opts.Prefix, err)
		}
	}
	queued(t, etcd.Client(), "orders", 0)
	release(t, acquire(t, outer, "orders"))
}

func TestPrefixThatOnlyLooksLikeThatIsTaken(t *testing.T) {
	t.Parallel()
	etcd := embedded.Start(t, nil)
	if _, err := etcd.Client().Put(t.Context(), "/app/epoch", "something else"); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"/locks/", "/app/locks/", coordinator.DefaultPrefix + "locksmith/", coordinator.DefaultPrefix} {
		opts := steady
		opts.Prefix = prefix
		c := newCoordinator(t, etcd.Client(), opts)
		release(t, acquire(t, c, "orders"))
	}
}

// Where watches do not begin, each waiter that gives up would leave one behind.
func TestWatchesThatDoNotBeginAreBounded(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	// Not tapped: clientv3 keeps a watch that was never created until its client is
	// closed.
	w := wire.New()
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, w.DialOptions()...) })
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if resp, ok := m.Payload.(*pb.WatchResponse); ok && !m.Sent && resp.Created {
			return wire.ErrDrop
		}
		return nil
	})
	a, b := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	txns := count(w)
	holder := acquire(t, a, "orders")
	const attempts = 30
	for i := range attempts {
		waiter := ask(t, b, "orders")
		eventually(t, "it is in the queue", func() bool { return txns.of(enters) > i })
		queued(t, etcd.Client(), "orders", 2)
		waiter.cancel()
		_ = waiter.failed(t)
		queued(t, etcd.Client(), "orders", 1)
	}
	if n := coordinator.Beginning(b); n > 5 {
		t.Errorf("%d watches for %d attempts", n, attempts)
	}
	// It is waited for the lock all the same.
	waiter := ask(t, b, "orders")
	queued(t, etcd.Client(), "orders", 2)
	release(t, holder)
	release(t, waiter.granted(t))
}
