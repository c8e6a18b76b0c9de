package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// pool is the workers of one process, who share jobs with those of others.
type pool struct {
	c     *coordinator.Coordinator
	guard *etcdguard.Guard
	jobs  []string

	done sync.Map // jobs that are known to be done: a hint, not the truth
	did  atomic.Int64
}

// open yields the jobs that may be open, from a place of its own on: workers that
// all began with the first would get in each other's way.
func (p *pool) open() iter.Seq[string] {
	return func(yield func(string) bool) {
		start := rand.IntN(len(p.jobs))
		for i := range p.jobs {
			job := p.jobs[(start+i)%len(p.jobs)]
			if _, done := p.done.Load(job); !done && !yield(job) {
				return
			}
		}
	}
}

// work does up to n jobs, and fewer if there is none left that nobody is at.
func (p *pool) work(ctx context.Context, n int) error {
	for range n {
		// Grant, raise, read, act.
		grant, err := p.c.TryAcquireAny(ctx, p.open(), coordinator.Raise(p.barrier))
		switch {
		case errors.Is(err, coordinator.ErrBusy), errors.Is(err, coordinator.ErrInvalidOption):
			return nil // all that is open is being done, or nothing is
		case err != nil:
			return err
		}
		if err := errors.Join(p.do(ctx, grant), grant.Release(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// barrier comes before a job's state is read.
func (p *pool) barrier(ctx context.Context, t revisionfence.Token) error {
	return p.guard.Advance(ctx, t.Lock(), t)
}

func (p *pool) do(ctx context.Context, grant *coordinator.Grant) error {
	job := grant.Lock()
	kv, err := p.guard.KV(grant)
	if err != nil {
		return err
	}
	state, err := kv.Get(ctx, "state/"+job)
	if err != nil {
		return err
	}
	p.done.Store(job, true)
	if len(state.Kvs) > 0 {
		return nil // somebody else did it, after open yielded it
	}
	if _, err := kv.Put(ctx, "state/"+job, "done"); err != nil { // the work
		return err
	}
	p.did.Add(1)
	return nil
}

// Two hundred workers share ten thousand jobs, of which each does up to ten before
// it ends; more processes of the same kind could join in. A lock says that a job is
// being done; what is stored says that it has been done.
func ExampleCoordinator_TryAcquireAny_pool() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	etcd, err := embedded.Run(ctx, nil) // stands for your cluster
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()

	jobs := make([]string, 10_000)
	for i := range jobs {
		jobs[i] = fmt.Sprintf("job-%04d", i)
	}
	c, err := coordinator.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	guard, err := etcdguard.New(etcd.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	p := &pool{c: c, guard: guard, jobs: jobs}
	n := 200
	if raced {
		n = 20 // the race detector makes the embedded etcd slow too
	}
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			if err := p.work(ctx, 10); err != nil {
				log.Fatal(err)
			}
		})
	}
	workers.Wait()
	stored, err := etcd.Client().Get(ctx, "state/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("no job was done twice:", p.did.Load() == stored.Count)
	fmt.Println("there was work for all:", stored.Count > int64(5*n))
	// Output:
	// no job was done twice: true
	// there was work for all: true
}
