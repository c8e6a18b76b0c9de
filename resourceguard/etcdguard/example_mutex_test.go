package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// jobDirectory is where concurrency.NewMutex(session, "/jobs/"+lock) has its keys.
// The guard and the coordinator are given the same one.
func jobDirectory(lock string) string { return "/jobs/" + lock + "/" }

const reports = "reports/count"

// report is the work, and the same in both steps: it takes a clientv3.KV, and does
// not care who fences it.
func report(ctx context.Context, kv clientv3.KV, text string) error {
	resp, err := kv.Get(ctx, reports)
	if err != nil {
		return err
	}
	before := ""
	if len(resp.Kvs) > 0 {
		before = string(resp.Kvs[0].Value) + ", "
	}
	_, err = kv.Put(ctx, reports, before+text)
	return err
}

// A program leaves concurrency.Mutex in two steps. The first fences the writes and
// keeps the lock, the second changes the lock and keeps the rest; programs of all
// three kinds can run at the same time, since they queue in one directory. Until
// the last one fences its writes, those of one that does not can still come late.
func ExampleFromMutex() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	client := etcd.Client()
	guard, err := etcdguard.New(client, &etcdguard.Options{Directory: jobDirectory})
	if err != nil {
		log.Fatal(err)
	}
	barrier := func(ctx context.Context, t revisionfence.Token) error {
		return guard.Advance(ctx, t.Lock(), t)
	}

	// Step 1: the lock is the Mutex that it was. After each Lock: grant, raise,
	// read, act.
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "/jobs/report")
	if err := mutex.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	tenure, err := etcdguard.FromMutex("report", mutex)
	if err != nil {
		log.Fatal(err)
	}
	if err := barrier(ctx, tenure.Token()); err != nil {
		log.Fatal(err)
	}
	fenced, err := guard.KV(tenure)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("step 1 writes:", report(ctx, fenced, "under a Mutex"))

	// Step 2, in another process: the coordinator stands in the same queue.
	c, err := coordinator.New(client, &coordinator.Options{Directory: jobDirectory})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	_, err = c.TryAcquire(ctx, "report")
	fmt.Println("step 2 is kept out by the Mutex:", errors.Is(err, coordinator.ErrBusy))

	if err := mutex.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	err = c.Do(ctx, "report", func(ctx context.Context, grant *coordinator.Grant) error {
		fmt.Println("the Mutex is kept out by step 2:", mutex.TryLock(ctx))
		order, _ := grant.Token().Compare(tenure.Token())
		fmt.Println("tokens rise:", order > 0)
		kv, err := guard.KV(grant)
		if err != nil {
			return err
		}
		fmt.Println("step 1 is refused:", report(ctx, fenced, "too late") != nil)
		return report(ctx, kv, "under a Grant")
	}, coordinator.Raise(barrier))
	fmt.Println("step 2 writes:", err)

	resp, err := client.Get(ctx, reports)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("written: %s\n", resp.Kvs[0].Value)
	// Output:
	// step 1 writes: <nil>
	// step 2 is kept out by the Mutex: true
	// the Mutex is kept out by step 2: mutex: Locked by another session
	// tokens rise: true
	// step 1 is refused: true
	// step 2 writes: <nil>
	// written: under a Mutex, under a Grant
}
