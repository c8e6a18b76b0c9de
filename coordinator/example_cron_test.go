package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// nightly is a job that every process starts every night and that one of them
// does.
type nightly struct {
	c     *coordinator.Coordinator
	guard *etcdguard.Guard
}

const lastNight = "report/last"

// run does the job of one night, unless another process does or did. Nights are
// dates of the form 2026-12-31, which sort as texts do.
func (n *nightly) run(ctx context.Context, night string) (did bool, err error) {
	// Grant, raise, read, act.
	grant, err := n.c.TryAcquire(ctx, "cron/report",
		coordinator.Raise(func(ctx context.Context, t revisionfence.Token) error {
			return n.guard.Advance(ctx, t.Lock(), t)
		}))
	if errors.Is(err, coordinator.ErrBusy) {
		return false, nil // somebody is at it
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, grant.Release(ctx)) }()
	kv, err := n.guard.KV(grant)
	if err != nil {
		return false, err
	}
	// The lock says that nobody is at it. Only what is stored says whether it has
	// been done: this process may be late.
	last, err := kv.Get(ctx, lastNight)
	if err != nil {
		return false, err
	}
	if len(last.Kvs) > 0 && string(last.Kvs[0].Value) >= night {
		return false, nil
	}
	// The work, and that it is done, in one transaction: all or nothing of it
	// happens, and nothing once the lock has passed on.
	_, err = kv.Txn(ctx).Then(
		clientv3.OpPut("report/of/"+night, "by "+grant.Token().String()),
		clientv3.OpPut(lastNight, night),
	).Commit()
	return err == nil, err
}

// Three processes have the same timer. TryAcquire lets one of them run the job,
// and what the job stores keeps one that comes later from running it again.
func Example_cronJob() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	var processes []*nightly
	for i := range 3 {
		c, err := coordinator.New(etcd.Client(), &coordinator.Options{Identity: fmt.Sprintf("host-%d", i)})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close(ctx)
		guard, err := etcdguard.New(etcd.Client(), nil)
		if err != nil {
			log.Fatal(err)
		}
		processes = append(processes, &nightly{c, guard})
	}
	for _, night := range []string{"2026-12-30", "2026-12-31", "2027-01-01"} { // stands for a timer in each of them
		var wg sync.WaitGroup
		var runs atomic.Int32
		for _, p := range processes {
			wg.Go(func() {
				did, err := p.run(ctx, night)
				if err != nil {
					log.Fatal(err)
				}
				if did {
					runs.Add(1)
				}
			})
		}
		wg.Wait()
		did, err := processes[0].run(ctx, night) // its timer is late
		fmt.Printf("%s: ran %d time; ran again for one that came late: %v, %v\n", night, runs.Load(), did, err)
	}
	// Output:
	// 2026-12-30: ran 1 time; ran again for one that came late: false, <nil>
	// 2026-12-31: ran 1 time; ran again for one that came late: false, <nil>
	// 2027-01-01: ran 1 time; ran again for one that came late: false, <nil>
}
