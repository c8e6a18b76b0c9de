package coordinator_test

import (
	"net"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// What "etcd grpc-proxy" does to watches and leases, which it shares between its
// clients, costs time at most (etcd-io/etcd#13031).
func TestLocksThroughTheProxyOfEtcd(t *testing.T) {
	etcd := cluster(t, nil)
	behind := etcd.NewClient(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kv, kvDone := grpcproxy.NewKvProxy(behind)
	watch, watchDone := grpcproxy.NewWatchProxy(behind.Ctx(), zap.NewNop(), behind)
	lease, leaseDone := grpcproxy.NewLeaseProxy(behind.Ctx(), behind)
	server := grpc.NewServer()
	pb.RegisterKVServer(server, kv)
	pb.RegisterWatchServer(server, watch)
	pb.RegisterLeaseServer(server, lease)
	pb.RegisterMaintenanceServer(server, grpcproxy.NewMaintenanceProxy(behind))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = behind.Close() // which is how the proxies end
		<-kvDone
		<-watchDone
		<-leaseDone
	})

	through := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{listener.Addr().String()} })
	// The proxy answers a renewal when it makes its own, each third of the TTL or half
	// a second later: of a shorter lease two in a row can miss the time of a proof.
	opts := coordinator.Options{TTL: 6 * time.Second}
	a, b := newCoordinator(t, through, opts), newCoordinator(t, through, opts)
	direct := newCoordinator(t, etcd.Client(), opts)
	if err := a.Ping(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, a, "orders")
	second, third := ask(t, b, "orders"), ask(t, direct, "orders")
	queued(t, etcd.Client(), "orders", 3)
	for start := time.Now(); time.Since(start) < g.TTL()+time.Second; pause() {
		if err := g.Err(); err != nil {
			t.Fatalf("lost through the proxy: %v", err)
		}
	}
	stands(t, etcd.Client(), g)
	release(t, g)
	waiters := []*asking{second, third}
	select {
	case <-second.done:
	case <-third.done:
		waiters = []*asking{third, second}
	}
	for _, waiter := range waiters {
		next := waiter.granted(t)
		rises(t, g, next)
		release(t, next)
		g = next
	}

	// A lease that is revoked past the proxy ends the grant behind it.
	g = acquire(t, a, "orders")
	etcd.Expire(t, g)
	_ = ended(t, g)
	release(t, acquire(t, b, "orders"))
}
