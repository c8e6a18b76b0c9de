package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// replica is one of several processes of a controller.
type replica struct {
	c     *coordinator.Coordinator
	guard *etcdguard.Guard
}

const generation = "controller/generation"

// lead runs reconcile in each tenure of this replica, for as long as ctx lasts.
func (r *replica) lead(ctx context.Context, reconcile func(context.Context, *coordinator.Grant) error) error {
	// Grant, raise, read, act: the barrier comes before reconcile reads anything,
	// so that no write of an older leader can change any more what it reads.
	return r.c.Lead(ctx, "controller", reconcile,
		coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
			return r.guard.Advance(ctx, t.Lock(), t)
		}))
}

// advance makes the next generation of what is stored. A tenure begins with it: what
// the replica knew from an earlier one is void.
func (r *replica) advance(ctx context.Context, g *coordinator.Grant) (int, error) {
	kv, err := r.guard.KV(g)
	if err != nil {
		return 0, err
	}
	resp, err := kv.Get(ctx, generation)
	if err != nil {
		return 0, err
	}
	n := 0
	if len(resp.Kvs) > 0 {
		if n, err = strconv.Atoi(string(resp.Kvs[0].Value)); err != nil {
			return 0, err
		}
	}
	_, err = kv.Put(ctx, generation, strconv.Itoa(n+1))
	return n + 1, err
}

// The leader is paused for longer than its lease. Its successor begins with what
// is stored, and what the old leader writes when it wakes up is refused; it then
// contends again.
func ExampleCoordinator_Lead_controller() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	start := func(name string) *replica {
		c, err := coordinator.New(etcd.Client(), &coordinator.Options{Identity: name, TTL: 3 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		guard, err := etcdguard.New(etcd.Client(), nil)
		if err != nil {
			log.Fatal(err)
		}
		return &replica{c, guard}
	}
	one, two := start("replica-1"), start("replica-2")
	defer one.c.Close(ctx)
	defer two.c.Close(ctx)

	leases, awake, late := make(chan clientv3.LeaseID, 1), make(chan struct{}), make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		tenure := 0
		ended <- one.lead(ctx, func(ctx context.Context, g *coordinator.Grant) error {
			if tenure++; tenure > 1 {
				return nil
			}
			n, err := one.advance(ctx, g)
			if err != nil {
				return err
			}
			fmt.Printf("replica-1 makes generation %d\n", n)
			leases <- g.Lease()
			<-awake // where a process can be paused: between any two lines
			_, err = one.advance(context.WithoutCancel(ctx), g)
			late <- err
			if errors.Is(err, resourceguard.ErrStale) {
				<-ctx.Done() // lost, and the coordinator is about to hear of it too
			}
			return err
		})
	}()
	if err := etcd.ExpireLease(ctx, <-leases); err != nil { // while replica-1 is paused
		log.Fatal(err)
	}
	err = two.lead(ctx, func(ctx context.Context, g *coordinator.Grant) error {
		n, err := two.advance(ctx, g)
		fmt.Printf("replica-2 makes generation %d\n", n)
		close(awake)
		fmt.Println("replica-1 is refused:", errors.Is(<-late, resourceguard.ErrStale))
		return err
	})
	fmt.Println("replica-2 is done:", err)
	fmt.Println("replica-1 led again and is done:", <-ended)
	// Output:
	// replica-1 makes generation 1
	// replica-2 makes generation 2
	// replica-1 is refused: true
	// replica-2 is done: <nil>
	// replica-1 led again and is done: <nil>
}
