package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// through makes a client reach etcd by a proxy.
func through(p *embedded.Proxy) func(*clientv3.Config) {
	return func(c *clientv3.Config) { c.Endpoints = []string{p.Endpoint()} }
}

// gone waits until etcd does not know the lease.
func gone(t *testing.T, client *clientv3.Client, lease clientv3.LeaseID) {
	t.Helper()
	eventually(t, fmt.Sprintf("lease %x is gone", lease), func() bool {
		resp, err := client.TimeToLive(t.Context(), lease)
		return err == nil && resp.TTL < 0
	})
}

// The network goes, the grant ends by the clock of its holder, the network comes
// back. etcd's own session would go on renewing the lease, and the lock would be
// held by nobody for as long as the process lives.
func TestSessionThatOutlivedItsGrantsIsEnded(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client, w := tapped(t, etcd, through(proxy))
	// The lease is long and the proofs fail: it lives at etcd when the network
	// comes back.
	c := newCoordinator(t, client, coordinator.Options{TTL: 2 * time.Second})
	g := acquire(t, c, "orders")
	other := acquire(t, c, "other")
	waiting := ask(t, c, "orders")
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if ka, ok := m.Payload.(*pb.LeaseKeepAliveResponse); ok && ka.ID == int64(g.Lease()) {
			return wire.ErrDrop // renewed at etcd, not proven here
		}
		return nil
	})
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostUnproven {
		t.Errorf("reason: %v", err)
	}
	if err := other.Err(); !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("the other grant of the session: %v", err)
	}
	over := time.Now()
	gone(t, etcd.Client(), g.Lease())
	next := waiting.granted(t)
	if took := time.Since(over); took > 5*time.Second {
		t.Errorf("the lock was free only after %v", took)
	}
	rises(t, g, next)
	if next.Lease() == g.Lease() {
		t.Error("the session that had ended granted a lock")
	}
	if err := g.Err(); !errors.Is(err, lost) {
		t.Errorf("the lost grant says %v", err)
	}
	release(t, next)
}

func TestNetworkThatComesBackRevivesNothing(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client, _ := tapped(t, etcd, through(proxy))
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	proxy.Cut()
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostUnproven {
		t.Errorf("reason: %v", err)
	}
	proxy.Heal()
	next := acquire(t, c, "orders")
	rises(t, g, next)
	gone(t, etcd.Client(), g.Lease())
	if next.Lease() == g.Lease() || !errors.Is(g.Err(), coordinator.ErrLost) {
		t.Errorf("lease %x and then %x; the lost grant says %v", g.Lease(), next.Lease(), g.Err())
	}
	release(t, next)
}

// The classical case: the holder is cut off, its sockets stay open, and nothing
// tells it.
func TestHolderThatIsCutOffEndsBeforeTheNextBegins(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	proxy := etcd.Proxy(t)
	client, w := tapped(t, etcd, through(proxy))
	var mu sync.Mutex
	var proven time.Time // when a renewal was sent, at the latest
	w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if _, ok := m.Payload.(*pb.LeaseKeepAliveRequest); ok && m.Sent {
			mu.Lock()
			defer mu.Unlock()
			proven = time.Now()
		}
		return nil
	})
	a := newCoordinator(t, client, hasty)
	b := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, a, "orders")
	eventually(t, "a proof", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !proven.IsZero()
	})
	next := ask(t, b, "orders")
	queued(t, etcd.Client(), "orders", 2)
	mu.Lock()
	last := proven
	proxy.Cut()
	mu.Unlock()

	ended := make(chan time.Time, 1)
	context.AfterFunc(g.Context(), func() { ended <- time.Now() })
	h := next.granted(t)
	granted := time.Now()
	var at time.Time
	select {
	case at = <-ended:
	case <-time.After(patience):
		t.Fatal("the holder is not told")
	}
	if !at.Before(granted) {
		t.Errorf("the first grant ended %v after the second began", at.Sub(granted))
	}
	// No proof can have been sent after the cut, and one was before.
	if held := at.Sub(last); held > g.TTL() {
		t.Errorf("held for %v after a renewal was last sent, of a TTL of %v", held, g.TTL())
	}
	if g.TrustedFor() != 0 || !errors.Is(g.Err(), coordinator.ErrLost) {
		t.Errorf("the holder that is cut off: %v, trusted for %v", g.Err(), g.TrustedFor())
	}
	rises(t, g, h)

	// What it had on its way arrives late and is refused.
	proxy.Heal()
	resp, err := client.Txn(within(t, patience)).If(g.Fence()...).Then(clientv3.OpPut("stock", "5")).Else(clientv3.OpGet(h.Key())).Commit()
	if err != nil || resp.Succeeded {
		t.Errorf("stale write: applied %v, %v", resp.Succeeded, err)
	}
	resp, err = etcd.Client().Txn(t.Context()).If(h.Fence()...).Then(clientv3.OpPut("stock", "8")).Commit()
	if err != nil || !resp.Succeeded {
		t.Errorf("write of the present holder: applied %v, %v", resp.Succeeded, err)
	}
	release(t, h)
}

// vitessio/vitess#11811: a lock whose renewal ended with the context of the call
// that had acquired it.
func TestGrantOutlivesTheContextOfItsAcquire(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, coordinator.Options{TTL: 2 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	g, err := c.Acquire(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(2*g.TTL() + g.TTL()/2)
	cancel()
	eventually(t, "two TTLs and a half", func() bool { return g.Err() != nil || time.Now().After(until) })
	if err := g.Err(); err != nil {
		t.Fatalf("lost with the context of its Acquire: %v", err)
	}
	if w.Calls("LeaseKeepAlive") < 3 {
		t.Errorf("%d renewals", w.Calls("LeaseKeepAlive"))
	}
	stands(t, client, g)
	release(t, g)
}

// A handle whose time is over when it is returned would be a lie.
func TestAnswersThatTakeLongerThanTheLease(t *testing.T) {
	for _, slow := range []string{"LeaseGrant", "Txn " + enrols, "Txn " + enters} {
		for _, proofs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, proofs %v", slow, proofs), func(t *testing.T) {
				t.Parallel()
				etcd := cluster(t, nil)
				client, w := tapped(t, etcd)
				const ttl = 2 * time.Second
				c := newCoordinator(t, client, coordinator.Options{TTL: ttl})
				latch := w.HoldReply("LeaseGrant")
				if slow != "LeaseGrant" {
					latch.Remove()
					latch = w.HoldReply("Txn", of(slow[len("Txn "):]))
				}
				var hook *wire.MessageHook
				if !proofs {
					hook = w.OnMessage(func(_ context.Context, m *wire.Message) error {
						if m.Method == "LeaseKeepAlive" {
							return wire.ErrDrop
						}
						return nil
					})
				}
				a := ask(t, c, "orders")
				held(t, latch)
				time.AfterFunc(ttl+ttl/4, func() {
					if hook != nil {
						hook.Remove()
					}
					latch.Release()
				})
				g := a.granted(t) // looks at Err
				if g.TrustedFor() <= 0 {
					t.Error("the time of the grant is over")
				}
				stands(t, client, g)
				release(t, g)
			})
		}
	}
}

func TestExpiredSessionIsReplaced(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	last := acquire(t, c, "orders")
	for range 3 {
		etcd.Expire(t, last)
		next := acquire(t, c, "orders") // knows nothing of that yet, and must find out
		rises(t, last, next)
		if next.Lease() == last.Lease() {
			t.Fatal("a grant on a lease that has ended")
		}
		stands(t, client, next)
		last = next
	}
	release(t, last)
}

func TestDeletedSessionKeyEndsTheSession(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, hasty)
	a, b := acquire(t, c, "a"), acquire(t, c, "b")
	if _, err := client.Delete(t.Context(), sessionsPrefix+fmt.Sprintf("%x", a.Lease())); err != nil {
		t.Fatal(err)
	}
	for _, g := range []*coordinator.Grant{a, b} {
		var lost *coordinator.LostError
		if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
			t.Errorf("reason: %v", err)
		}
	}
	gone(t, client, a.Lease())
	next := acquire(t, c, "a")
	rises(t, a, next)
	release(t, next)
}

func TestAcquiresShareOneSession(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			ctx := within(t, patience)
			g, err := c.Acquire(ctx, fmt.Sprint("lock-", i))
			if err == nil {
				err = g.Release(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := w.Calls("LeaseGrant"); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// Who came first decides nothing for the others.
func TestSessionIsOpenedForWhoeverStillWaits(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	request := w.Hold("LeaseGrant")
	first := ask(t, c, "first")
	held(t, request)
	second := ask(t, c, "second")
	first.cancel()
	if err := first.failed(t); !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	request.Release()
	release(t, second.granted(t))
	if n := w.Calls("LeaseGrant"); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// All who waited for a session have left. The lease that is granted all the
// same, or later, is not left to itself.
func TestSessionThatNobodyWaitsForIsEnded(t *testing.T) {
	for _, step := range []string{enrols, createsEpoch} {
		t.Run(step, func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			c := newCoordinator(t, client, steady)
			reply := w.HoldReply("Txn", of(step))
			a := ask(t, c, "orders")
			held(t, reply)
			a.cancel()
			if err := a.failed(t); !errors.Is(err, context.Canceled) || errors.Is(err, coordinator.ErrUnsettled) {
				t.Errorf("%v, want that it was canceled", err)
			}
			reply.Release()
			eventually(t, "no lease", func() bool {
				leases, err := client.Leases(t.Context())
				return err == nil && len(leases.Leases) == 0
			})
			release(t, acquire(t, c, "orders"))
		})
	}
}

// A server may grant more than it was asked for: the shortest lease is one and a
// half election time-outs.
func TestRaisedTTLIsReported(t *testing.T) {
	etcd := cluster(t, &embedded.Options{Config: func(c *embed.Config) {
		c.TickMs, c.ElectionMs = 100, 1900
	}})
	c := newCoordinator(t, etcd.Client(), coordinator.Options{TTL: time.Second})
	g := acquire(t, c, "orders")
	resp, err := etcd.Client().TimeToLive(t.Context(), g.Lease())
	if err != nil {
		t.Fatal(err)
	}
	if want := time.Duration(resp.GrantedTTL) * time.Second; g.TTL() != want || want <= time.Second {
		t.Errorf("TTL %v, etcd granted %v and was asked for 1 s", g.TTL(), want)
	}
	if left := g.TrustedFor(); left <= time.Second {
		t.Errorf("trusted for %v: the granted TTL counts", left)
	}
	release(t, g)
}

// Who holds many locks must not lose them to its own proofs, and its list of
// keys is not asked for each time.
func TestSessionOfThousandsOfLocks(t *testing.T) {
	long(t)
	// Not parallel: it would take the processor from tests about time.
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, coordinator.Options{TTL: 4 * time.Second})
	const locks = 2000
	grants := make(chan *coordinator.Grant, locks)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for n := i; n < locks; n += 32 {
				g, err := c.Acquire(within(t, 3*patience), fmt.Sprint("lock-", n))
				if err != nil {
					t.Error(err)
					return
				}
				grants <- g
			}
		})
	}
	all.Wait()
	close(grants)
	proofs, lists := w.Calls("LeaseKeepAlive"), w.Calls("LeaseTimeToLive")
	eventually(t, "six proofs", func() bool { return w.Calls("LeaseKeepAlive") >= proofs+6 })
	proofs, lists = w.Calls("LeaseKeepAlive")-proofs, w.Calls("LeaseTimeToLive")-lists
	if lists*2 > proofs {
		t.Errorf("%d lists with %d proofs", lists, proofs)
	}
	for g := range grants {
		if err := g.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
