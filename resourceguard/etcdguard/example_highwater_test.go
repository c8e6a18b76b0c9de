package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// A worker may finish under a lease that has ended, as long as nobody else has begun.
// From the first call of the next worker on it is refused.
func ExampleOptions_highWater() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	guard, err := etcdguard.New(etcd.Client(), &etcdguard.Options{Mode: etcdguard.HighWater})
	if err != nil {
		log.Fatal(err)
	}
	const lock = "orders/42" // and so the name of the resource
	write := func(name string, grant *coordinator.Grant, value string) {
		kv, err := guard.KV(grant)
		if err != nil {
			log.Fatal(err)
		}
		switch _, err = kv.Put(ctx, "stock", value); {
		case err == nil:
			fmt.Printf("%s writes %s\n", name, value)
		case errors.Is(err, resourceguard.ErrStale):
			fmt.Printf("%s writes %s: refused as stale\n", name, value)
		default:
			log.Fatal(err)
		}
	}
	acquire := func() *coordinator.Grant {
		c, err := coordinator.New(etcd.Client(), nil)
		if err != nil {
			log.Fatal(err)
		}
		grant, err := c.Acquire(ctx, lock)
		if err != nil {
			log.Fatal(err)
		}
		return grant
	}

	a := acquire()
	write("A", a, "7")
	if err := etcd.ExpireLease(ctx, a.Lease()); err != nil { // A is paused meanwhile
		log.Fatal(err)
	}
	write("A", a, "8")
	b := acquire()
	if err := guard.Advance(ctx, lock, b.Token()); err != nil { // before B reads
		log.Fatal(err)
	}
	write("A", a, "5")
	write("B", b, "9")

	mark, _, err := guard.Mark(ctx, lock)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the mark is B's:", mark.Token == b.Token())
	// Output:
	// A writes 7
	// A writes 8
	// A writes 5: refused as stale
	// B writes 9
	// the mark is B's: true
}

// An operation ID makes it safe to repeat a write whose answer was lost.
func ExampleGuard_Do() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	guard, err := etcdguard.New(etcd.Client(), &etcdguard.Options{Mode: etcdguard.HighWater})
	if err != nil {
		log.Fatal(err)
	}
	c, err := coordinator.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	grant, err := c.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}

	w := resourceguard.Write{
		Resource:  "orders/42",
		Token:     grant.Token(), // which may have come with a request
		Owner:     grant.Owner(),
		Operation: resourceguard.Operation{ID: "ship 1", Digest: []byte("one parcel")},
	}
	for range 2 { // the first answer was lost
		result, _, err := guard.Do(ctx, w, clientv3.OpPut("shipped", "1"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed:", result.Replayed)
	}
	resp, err := etcd.Client().Get(ctx, "shipped")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("written:", resp.Kvs[0].Version)

	w.Operation.Digest = []byte("two parcels")
	_, _, err = guard.Do(ctx, w, clientv3.OpPut("shipped", "2"))
	fmt.Println(errors.Is(err, resourceguard.ErrOperationReused), resourceguard.OutcomeOf(err))
	// Output:
	// replayed: false
	// replayed: true
	// written: 1
	// true not applied
}

// The ID travels in the context where the call is that of a clientv3.KV.
func ExampleGuard_KV_operation() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	guard, err := etcdguard.New(etcd.Client(), &etcdguard.Options{Mode: etcdguard.HighWater})
	if err != nil {
		log.Fatal(err)
	}
	c, err := coordinator.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	grant, err := c.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	kv, err := guard.KV(grant)
	if err != nil {
		log.Fatal(err)
	}
	once := resourceguard.WithOperation(ctx, resourceguard.Operation{ID: "ship 1"})
	for range 2 {
		resp, err := kv.Txn(once).
			If(clientv3.Compare(clientv3.Version("shipped"), "=", 0)).
			Then(clientv3.OpPut("shipped", "1")).
			Commit()
		if err != nil {
			log.Fatal(err)
		}
		// Carried out again, the compare would not hold any more.
		fmt.Println("succeeded:", resp.Succeeded)
	}
	// Output:
	// succeeded: true
	// succeeded: true
}
