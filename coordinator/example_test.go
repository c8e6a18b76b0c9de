package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// startEtcd stands for your cluster.
func startEtcd(ctx context.Context) (*clientv3.Client, func()) {
	etcd, err := embedded.Run(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	return etcd.Client(), func() { _ = etcd.Close() }
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, stop := startEtcd(ctx)
	defer stop()

	c, err := coordinator.New(client, &coordinator.Options{Identity: "worker-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = c.Do(ctx, "orders/42", func(ctx context.Context, g *coordinator.Grant) error {
		// The write and the check that the lock has not passed on are one step
		// at etcd. Package etcdguard does this for a whole clientv3.KV.
		resp, err := client.Txn(ctx).If(g.Fence()...).Then(clientv3.OpPut("stock/42", "8")).Commit()
		if err == nil && !resp.Succeeded {
			err = coordinator.ErrLost
		}
		fmt.Println("written by the holder:", err == nil)
		return err
	}, coordinator.Reason("restocking"))
	fmt.Println("error:", err)
	// Output:
	// written by the holder: true
	// error: <nil>
}

func ExampleCoordinator_TryAcquire() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, stop := startEtcd(ctx)
	defer stop()
	one, _ := coordinator.New(client, &coordinator.Options{Identity: "worker-1"})
	defer one.Close(ctx)
	two, _ := coordinator.New(client, &coordinator.Options{Identity: "worker-2"})
	defer two.Close(ctx)

	g, err := one.TryAcquire(ctx, "orders/42", coordinator.Reason("restocking"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = two.TryAcquire(ctx, "orders/42")
	var busy *coordinator.BusyError
	if errors.As(err, &busy) {
		fmt.Printf("held by %s for %s\n", busy.Holder.Identity, busy.Holder.Reason)
		fmt.Println("the same token:", busy.Holder.Token == g.Token())
	}
	fmt.Println("released:", g.Release(ctx) == nil)
	// Output:
	// held by worker-1 for restocking
	// the same token: true
	// released: true
}

// A release that comes too late changes nothing and says so.
func ExampleGrant_Release() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, stop := startEtcd(ctx)
	defer stop()
	c, _ := coordinator.New(client, nil)
	defer c.Close(ctx)

	g, err := c.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	_, _ = client.Revoke(ctx, g.Lease()) // an operator ends the lease
	<-g.Context().Done()
	err = g.Release(ctx)
	var lost *coordinator.LostError
	fmt.Println(errors.Is(err, coordinator.ErrNotHeld), errors.As(err, &lost), lost.Reason)
	// Output:
	// true true lease revoked
}
