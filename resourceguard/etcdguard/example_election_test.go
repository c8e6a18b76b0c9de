package etcdguard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// electionDirectory is where concurrency.NewElection(session, "/elections/"+lock)
// has its keys. The guard and the coordinator are given the same one.
func electionDirectory(lock string) string { return "/elections/" + lock + "/" }

const desired = "scheduler/desired"

// schedule is the work of a leader, and the same in both steps.
func schedule(ctx context.Context, kv clientv3.KV, by string) error {
	if _, err := kv.Get(ctx, desired); err != nil {
		return err
	}
	_, err := kv.Put(ctx, desired, "as "+by+" says")
	return err
}

// A program leaves concurrency.Election in two steps. The first fences what the
// leader writes, the second lets Lead do the election; both kinds can be candidates
// at the same time. What a leader proclaims is not readable across the kinds: with
// step 2, Election.Leader and Observe of the old kind find the coordinator's record
// in its place.
func ExampleFromElection() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	client := etcd.Client()
	guard, err := etcdguard.New(client, &etcdguard.Options{Directory: electionDirectory})
	if err != nil {
		log.Fatal(err)
	}
	barrier := func(ctx context.Context, t revisionfence.Token) error {
		return guard.Advance(ctx, t.Lock(), t)
	}

	// Step 1: the election is what it was. After each Campaign: grant, raise, read,
	// act. The barrier matters more than elsewhere: Campaign can say that it was
	// won after its session has ended.
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	election := concurrency.NewElection(session, "/elections/scheduler")
	if err := election.Campaign(ctx, "host-1"); err != nil {
		log.Fatal(err)
	}
	tenure, err := etcdguard.FromElection("scheduler", election)
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
	fmt.Println("step 1 leads:", schedule(ctx, fenced, "host-1"))

	// Step 2, in another process. The old leader's lease ends meanwhile, and it
	// does not know.
	c, err := coordinator.New(client, &coordinator.Options{Directory: electionDirectory})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	_, err = c.TryAcquire(ctx, "scheduler")
	fmt.Println("step 2 is kept out by the leader:", errors.Is(err, coordinator.ErrBusy))
	if err := etcd.ExpireLease(ctx, session.Lease()); err != nil {
		log.Fatal(err)
	}
	err = c.Lead(ctx, "scheduler", func(ctx context.Context, grant *coordinator.Grant) error {
		kv, err := guard.KV(grant)
		if err != nil {
			return err
		}
		if err := schedule(ctx, kv, "host-2"); err != nil {
			return err
		}
		late := schedule(ctx, fenced, "host-1")
		stale, _ := errors.AsType[*resourceguard.StaleError](late)
		fmt.Println("step 1 is refused, for the leader is of step 2:", stale.Accepted == grant.Token())
		leader, err := election.Leader(ctx)
		if err != nil {
			return err
		}
		fmt.Println("Election.Leader finds a record:", json.Valid(leader.Kvs[0].Value))
		return nil
	}, coordinator.Raise(barrier))
	fmt.Println("step 2 led:", err)

	resp, err := client.Get(ctx, desired)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored: %s\n", resp.Kvs[0].Value)
	// Output:
	// step 1 leads: <nil>
	// step 2 is kept out by the leader: true
	// step 1 is refused, for the leader is of step 2: true
	// Election.Leader finds a record: true
	// step 2 led: <nil>
	// stored: as host-2 says
}
