package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// Worker A is paused for longer than its lease. It wakes up after B has got the
// lock and written, and does not know.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	guard, err := etcdguard.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	worker := func(name string) (*coordinator.Coordinator, *coordinator.Grant) {
		c, err := coordinator.New(etcd.Client(), &coordinator.Options{Identity: name})
		if err != nil {
			log.Fatal(err)
		}
		// Grant, raise, read, act: what is read after the barrier is not changed
		// by an older owner any more.
		grant, err := c.Acquire(ctx, "orders/42", coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
			return guard.Advance(ctx, t.Lock(), t)
		}))
		if err != nil {
			log.Fatal(err)
		}
		return c, grant
	}
	write := func(name string, grant *coordinator.Grant, value string) {
		kv, err := guard.KV(grant)
		if err != nil {
			log.Fatal(err)
		}
		_, err = kv.Put(ctx, "stock", value)
		switch {
		case err == nil:
			fmt.Printf("%s writes %s\n", name, value)
		case errors.Is(err, resourceguard.ErrStale):
			fmt.Printf("%s writes %s: refused as stale, %v\n", name, value, resourceguard.OutcomeOf(err))
		default:
			log.Fatal(err)
		}
	}

	ca, a := worker("A")
	defer ca.Close(ctx)
	write("A", a, "7")
	if err := etcd.ExpireLease(ctx, a.Lease()); err != nil { // A is paused meanwhile
		log.Fatal(err)
	}
	cb, b := worker("B")
	defer cb.Close(ctx)
	write("B", b, "8")
	write("A", a, "5")

	resp, err := etcd.Client().Get(ctx, "stock")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stock is %s\n", resp.Kvs[0].Value)
	// Output:
	// A writes 7
	// B writes 8
	// A writes 5: refused as stale, not applied
	// stock is 8
}
