package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// sell is the code of a user, who wants to know what becomes of its writes when
// the lock is lost.
func sell(ctx context.Context, kv clientv3.KV, left string) error {
	_, err := kv.Put(ctx, "stock", left)
	return err
}

// This is a whole test of a user's own: a worker that has lost its lock, and does
// not know it yet, must not be able to overwrite what the next owner wrote.
func ExampleStart() {
	// In your own file: func TestStaleWriteIsRefused(t *testing.T) { ...
	testStaleWriteIsRefused := func(t embedded.TB) {
		etcd := embedded.Start(t, nil)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		t.Cleanup(cancel)
		guard, err := etcdguard.New(etcd.Client(), nil)
		if err != nil {
			t.Fatalf("%v", err)
		}
		// acquire is what each worker does, with a client of its own.
		acquire := func(name string) (*coordinator.Grant, clientv3.KV) {
			c, err := coordinator.New(etcd.NewClient(t), &coordinator.Options{Identity: name})
			if err != nil {
				t.Fatalf("%v", err)
			}
			t.Cleanup(func() { _ = c.Close(ctx) })
			grant, err := c.Acquire(ctx, "stock")
			if err != nil {
				t.Fatalf("%v", err)
			}
			kv, err := guard.KV(grant)
			if err != nil {
				t.Fatalf("%v", err)
			}
			return grant, kv
		}

		grant, a := acquire("A")
		if err := sell(ctx, a, "9"); err != nil {
			t.Fatalf("%v", err)
		}
		etcd.Expire(t, grant) // as if A had been paused past its lease
		_, b := acquire("B")
		if err := sell(ctx, b, "8"); err != nil {
			t.Fatalf("%v", err)
		}
		err = sell(ctx, a, "5")
		if !errors.Is(err, resourceguard.ErrStale) {
			t.Fatalf("the stale write: %v, want a refusal", err)
		}
		var stale *resourceguard.StaleError
		if errors.As(err, &stale) {
			fmt.Println("B's token is newer:", stale.Accepted.Revision() > stale.Presented.Revision())
		}
		resp, err := etcd.Client().Get(ctx, "stock")
		if err != nil {
			t.Fatalf("%v", err)
		}
		fmt.Printf("stock = %s\n", resp.Kvs[0].Value)
	}
	runExample(testStaleWriteIsRefused)
	// Output:
	// B's token is newer: true
	// stock = 8
}
