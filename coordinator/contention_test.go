package coordinator_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// 200 goroutines of one process want one lock. What etcd held is judged by the
// history of the lock's directory, watched from before the first of them.
func TestManyGoroutinesOneKey(t *testing.T) {
	// Not parallel: it would take the processor from tests about time.
	const goroutines = 200
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)

	before, err := etcd.Client().Get(t.Context(), directory("orders"), clientv3.WithPrefix())
	if err != nil || len(before.Kvs) != 0 {
		t.Fatalf("before: %v, %v", before, err)
	}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	history := etcd.Client().Watch(watching, directory("orders"), clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1))

	first := acquire(t, c, "orders")
	var (
		all     sync.WaitGroup
		holders atomic.Int32
		last    atomic.Int64
		joined  sync.WaitGroup
	)
	last.Store(first.Token().Int64())
	joined.Add(goroutines)
	for range goroutines {
		all.Go(func() {
			ctx := &waitContext{Context: t.Context(), waiting: make(chan struct{})}
			go func() {
				<-ctx.waiting
				joined.Done()
			}()
			g, err := c.Acquire(ctx, "orders")
			if err != nil {
				t.Error(err)
				return
			}
			if n := holders.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			if token := g.Token().Int64(); last.Swap(token) >= token {
				t.Errorf("token %s after a larger one", g.Token())
			}
			if err := g.Err(); err != nil {
				t.Error(err)
			}
			holders.Add(-1)
			if err := g.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	joined.Wait()
	if keys := queue(t, etcd.Client(), "orders"); len(keys) != 1 {
		t.Errorf("%d goroutines wait, and etcd has %d keys for them, want the holder's alone", goroutines, len(keys))
	}
	release(t, first)
	all.Wait()

	// As of each revision there is one key at most, and all tokens rise.
	end := queueRevision(t, etcd.Client(), "orders")
	alive := make(map[string]bool)
	var created int64
	tenures := 0
	for seen := int64(0); seen < end; {
		resp, ok := <-history
		if !ok || resp.Err() != nil {
			t.Fatalf("history: %v", resp.Err())
		}
		for i, ev := range resp.Events {
			seen = ev.Kv.ModRevision
			switch ev.Type {
			case mvccpb.Event_PUT:
				if !ev.IsCreate() || ev.Kv.CreateRevision <= created {
					t.Errorf("put of %s at %d, after one at %d", ev.Kv.Key, ev.Kv.ModRevision, created)
				}
				created = ev.Kv.CreateRevision
				alive[string(ev.Kv.Key)] = true
				tenures++
			case mvccpb.Event_DELETE:
				delete(alive, string(ev.Kv.Key))
			}
			whole := i+1 == len(resp.Events) || resp.Events[i+1].Kv.ModRevision != seen
			if whole && len(alive) > 1 {
				t.Errorf("at revision %d the lock has the keys %v", seen, alive)
			}
		}
	}
	if tenures != goroutines+1 || len(alive) != 0 {
		t.Errorf("%d tenures, want %d; left: %v", tenures, goroutines+1, alive)
	}
}

// queueRevision is the revision of the last change, after everybody has left.
func queueRevision(t *testing.T, client *clientv3.Client, lock string) int64 {
	t.Helper()
	resp, err := client.Put(t.Context(), directory(lock)+"end", "")
	if err != nil {
		t.Fatal(err)
	}
	gone, err := client.Delete(t.Context(), directory(lock)+"end")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone
	return resp.Header.Revision - 1
}

// What a waiter costs: its goroutine, and what is kept for it. Not parallel, for
// others would be measured too.
func TestMemoryForEachWaiter(t *testing.T) {
	const waiters = 1000
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, c, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	idle, goroutines := memory(), runtime.NumGoroutine()
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { _, _ = c.Acquire(ctx, "orders") })
	}
	eventually(t, "all wait", func() bool { return coordinator.Waiting(c) == waiters })
	bytes, threads := (memory()-idle)/waiters, float64(runtime.NumGoroutine()-goroutines)/waiters
	t.Logf("a waiter: %d bytes, its own goroutine's stack included; %.2f goroutines", bytes, threads)
	if threads > 1.1 {
		t.Errorf("%.2f goroutines for each waiter, want the caller's own", threads)
	}
	cancel()
	all.Wait()
	release(t, g)
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Several processes, several goroutines each: holders never overlap and tokens
// rise in the order of the grants.
func TestManyProcessesManyGoroutines(t *testing.T) {
	// Not parallel: it would take the processor from tests about time.
	const processes, goroutines, turns = 4, 8, 5
	etcd := cluster(t, nil)
	var (
		all     sync.WaitGroup
		holders atomic.Int32
		last    atomic.Int64
	)
	for range processes {
		c := newCoordinator(t, etcd.Client(), steady)
		for range goroutines {
			all.Go(func() {
				for range turns {
					err := c.Do(t.Context(), "orders", func(_ context.Context, g *coordinator.Grant) error {
						if n := holders.Add(1); n != 1 {
							t.Errorf("%d holders at once", n)
						}
						if token := g.Token().Int64(); last.Swap(token) >= token {
							t.Errorf("token %s after a larger one", g.Token())
						}
						holders.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}
