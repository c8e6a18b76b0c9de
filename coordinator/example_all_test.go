package coordinator_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// stockOf is the resource that the lock of a warehouse guards.
func stockOf(lock string) string { return "stock/" + strings.TrimPrefix(lock, "warehouse/") }

// Goods move from one warehouse to another: both locks at once, and both tokens
// in the transaction that moves them.
func ExampleCoordinator_AcquireAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	client := etcd.Client()
	c, err := coordinator.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	// LockOf makes the guard refuse a write under the lock of another warehouse.
	guard, err := etcdguard.New(client, &etcdguard.Options{LockOf: func(key string) (string, error) {
		return "warehouse/" + strings.TrimPrefix(key, "stock/"), nil
	}})
	if err != nil {
		log.Fatal(err)
	}
	for place, n := range map[string]string{"stock/north": "8", "stock/south": "1"} {
		if _, err := client.Put(ctx, place, n); err != nil {
			log.Fatal(err)
		}
	}

	// Grant, raise, read, act. The barrier runs for each lock with its own token:
	// no token stands for two.
	grants, err := c.AcquireAll(ctx, []string{"warehouse/south", "warehouse/north"},
		coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
			return guard.Advance(ctx, stockOf(t.Lock()), t)
		}))
	if err != nil {
		log.Fatal(err)
	}
	kv, err := guard.KV(grants)
	if err != nil {
		log.Fatal(err)
	}
	read := func(key string) int {
		resp, err := kv.Get(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		n, err := strconv.Atoi(string(resp.Kvs[0].Value))
		if err != nil {
			log.Fatal(err)
		}
		return n
	}
	north, south := read("stock/north"), read("stock/south")
	_, err = kv.Txn(ctx).Then(
		clientv3.OpPut("stock/north", strconv.Itoa(north-3)),
		clientv3.OpPut("stock/south", strconv.Itoa(south+3)),
	).Commit()
	fmt.Printf("moved: %v; north has %d, south has %d\n", err == nil, read("stock/north"), read("stock/south"))
	fmt.Println("both released:", grants.Release(ctx) == nil)
	// Output:
	// moved: true; north has 5, south has 4
	// both released: true
}
