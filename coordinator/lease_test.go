package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// A server that is going away, or a proxy without one, refuses every stream at
// once. A proof that tried again as fast as it is refused would be a flood.
func TestRefusedProofsAreNotAFlood(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	const ttl = 4 * time.Second
	c := newCoordinator(t, client, coordinator.Options{TTL: ttl})
	g := acquire(t, c, "orders")
	start := time.Now()
	hook := w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if m.Method == "LeaseKeepAlive" {
			return status.Error(codes.Unavailable, "no backend")
		}
		return nil
	})
	w.Reset()
	_ = ended(t, g)
	hook.Remove()
	// Eight attempts a second in the time of the lease, and two of the session of
	// the concurrency package.
	streams, took := w.Calls("LeaseKeepAlive"), time.Since(start)
	t.Logf("%d streams in %v", streams, took)
	if most := int(took/time.Second+1) * 10; streams > most || streams < 4 {
		t.Errorf("%d streams in %v, want at most %d", streams, took, most)
	}
}

// A member that is cut off from its leader would keep the proof waiting.
func TestProofAsksForALeader(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	without := make(chan struct{}, 100)
	seen := make(chan struct{}, 100)
	w.OnMessage(func(ctx context.Context, m *wire.Message) error {
		if _, ok := m.Payload.(*pb.LeaseKeepAliveRequest); ok && m.Sent {
			md, _ := metadata.FromOutgoingContext(ctx)
			if asked := md.Get(rpctypes.MetadataRequireLeaderKey); len(asked) != 1 || asked[0] != rpctypes.MetadataHasLeader {
				without <- struct{}{}
			}
			seen <- struct{}{}
		}
		return nil
	})
	for range 5 { // more than those of the concurrency package, which asks too
		_ = receive(t, seen, "a renewal")
	}
	if len(without) > 0 {
		t.Error("a renewal does not ask for a leader")
	}
	release(t, g)
}

// The lease was granted, and nobody was told. It must not stay until it ends by
// itself: the next attempt uses it, or Close revokes it.
func TestLeaseWhoseGrantWasNotAnsweredIsNotLeft(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.DeadlineExceeded} {
		t.Run(fmt.Sprint("used by the next, ", code), func(t *testing.T) {
			t.Parallel()
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			c := newCoordinator(t, client, steady)
			lost := w.DropReply("LeaseGrant", 1, wire.Code(code))
			g := acquire(t, c, "orders")
			leases, err := etcd.Client().Leases(t.Context())
			if err != nil || len(leases.Leases) != 1 || leases.Leases[0].ID != g.Lease() || lost.Hits() != 1 {
				t.Errorf("%d answers lost; leases %v, grant on %x: %v", lost.Hits(), leases, g.Lease(), err)
			}
			if left := g.TrustedFor(); left <= 0 || left > g.TTL() || g.TTL() != steady.TTL {
				t.Errorf("trusted for %v of %v", left, g.TTL())
			}
			release(t, g)
		})
	}
	t.Run("revoked by Close", func(t *testing.T) {
		t.Parallel()
		etcd := cluster(t, nil)
		client, w := tapped(t, etcd)
		c := newCoordinator(t, client, steady)
		lost := w.DropReply("LeaseGrant", 0, wire.Code(codes.Internal))
		a := ask(t, c, "orders")
		eventually(t, "the answer is lost", func() bool { return lost.Hits() > 0 })
		if err := c.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
		if err := a.failed(t); !errors.Is(err, coordinator.ErrClosed) {
			t.Error(err)
		}
		leases, err := etcd.Client().Leases(t.Context())
		if err != nil || len(leases.Leases) != 0 {
			t.Errorf("leases left: %v, %v", leases, err)
		}
	})
}

// An old lease that is taken over is trusted from a renewal on, not from when it
// was asked for again: nothing comes of one that cannot be renewed.
func TestLeaseThatIsTakenOverIsRenewedFirst(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	lost := w.DropReply("LeaseGrant", 1, wire.Code(codes.Internal))
	renewed := make(chan struct{}, 1000)
	silence := w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if _, ok := m.Payload.(*pb.LeaseKeepAliveRequest); ok && m.Sent {
			renewed <- struct{}{}
			return wire.ErrDrop
		}
		return nil
	})
	enrol := w.Hold("Txn", of(enrols))
	a := ask(t, c, "orders")
	_ = receive(t, renewed, "the renewal")
	select {
	case <-enrol.Arrived():
		t.Error("used before its renewal was answered")
	case <-time.After(500 * time.Millisecond):
	}
	if lost.Hits() != 1 {
		t.Errorf("%d answers lost", lost.Hits())
	}
	silence.Remove()
	enrol.Release()
	release(t, a.granted(t))
}

// What may not be revoked ends by itself. Close waits for that, and not longer.
func TestLeaseThatMayNotBeRevokedEndsByItself(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, err := coordinator.New(client, &coordinator.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, "orders")
	w.FailBefore("LeaseRevoke", 0, wire.Code(codes.PermissionDenied))
	if err := c.Close(within(t, patience)); err != nil {
		t.Errorf("close: %v", err)
	}
	gone(t, etcd.Client(), g.Lease())
}

func TestCloseGivesUpALeaseThatItMayNotRevoke(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, err := coordinator.New(client, &coordinator.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, "orders")
	w.FailBefore("LeaseRevoke", 0, wire.Code(codes.PermissionDenied))
	w.FailBefore("LeaseTimeToLive", 0, wire.Code(codes.PermissionDenied))
	start := time.Now()
	err = c.Close(context.WithoutCancel(t.Context()))
	if !errors.Is(err, coordinator.ErrUnsettled) || status.Code(err) != codes.PermissionDenied {
		t.Errorf("close: %v, want an ErrUnsettled with what etcd says", err)
	}
	t.Logf("after %v: %v", time.Since(start), err)
	gone(t, etcd.Client(), g.Lease())
}
