package coordinator_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// fewer is a size that the race detector makes smaller.
func fewer(n, raceN int) int {
	if raced {
		return raceN
	}
	return n
}

// acquireMany acquires locks with many goroutines at once.
func acquireMany(t *testing.T, c *coordinator.Coordinator, names func(i int) string, n int) []*coordinator.Grant {
	t.Helper()
	grants := make([]*coordinator.Grant, n)
	keep(t, grants)
	var all sync.WaitGroup
	const workers = 100
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < n; i += workers {
				g, err := c.Acquire(within(t, 3*patience), names(i))
				if err != nil {
					t.Error(err)
					return
				}
				grants[i] = g
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return grants
}

// (Not parallel: it leaves nothing of the machine to others.)
func TestManyLocksHeldByOneCoordinator(t *testing.T) {
	long(t)
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	// The race detector is slow enough to keep a proof of a short lease waiting.
	opts := coordinator.Options{TTL: time.Duration(fewer(5, 12)) * time.Second}
	c := newCoordinator(t, client, opts)
	locks := fewer(10_000, 2_500)
	start := time.Now()
	grants := acquireMany(t, c, func(i int) string { return fmt.Sprintf("lock-%05d", i) }, locks)
	t.Logf("%d locks acquired in %v", locks, time.Since(start))
	if h := c.Health(); h.Held != locks || h.Err != nil {
		t.Fatalf("%+v", h)
	}

	// A proof must not cost more with more locks: the keys are listed less often.
	await := func(method string, n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d requests %s", n, method), func() bool { return w.Calls(method) >= n })
	}
	w.Reset()
	await("LeaseTimeToLive", 1) // a list just now, after which it is known how many keys there are
	w.Reset()
	await("LeaseKeepAlive", 1+locks/1000)
	if lists := w.Calls("LeaseTimeToLive"); lists > 1 {
		t.Errorf("%d lists of %d keys with %d proofs", lists, locks, w.Calls("LeaseKeepAlive"))
	}
	for _, g := range grants {
		if err := g.Err(); err != nil {
			t.Fatalf("%s: %v", g.Token(), err)
		}
	}
	n := 0
	w.Reset()
	for st, err := range c.List(within(t, patience), "") {
		if err != nil {
			t.Fatal(err)
		}
		if n++; st.Holder.Token != grants[n-1].Token() {
			t.Fatalf("%q is held by %v, not by %s", st.Lock, st.Holder, grants[n-1].Token())
		}
	}
	if pages := w.Calls("Txn"); n != locks || pages > locks/perPage+1 {
		t.Errorf("%d of %d locks listed with %d requests", n, locks, pages)
	}
	w.Reset()
	start = time.Now()
	if err := c.Close(within(t, patience)); err != nil {
		t.Error(err)
	}
	t.Logf("closed with %d locks in %v and %d requests", locks, time.Since(start), w.Calls(""))
	if requests := w.Calls(""); requests > 10 {
		t.Errorf("%v requests to close with %d locks", w.Counts(), locks)
	}
}

// Each stands for a process that waits for the lock.
//
// (Not parallel: it leaves nothing of the machine to others.)
func TestManyProcessesWaitForOneLock(t *testing.T) {
	long(t)
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	waiting := fewer(300, 100)
	holder := newCoordinator(t, client, steady)
	g := acquire(t, holder, "orders")
	asks := make([]*asking, waiting)
	start := time.Now()
	for i := range waiting {
		asks[i] = ask(t, newCoordinator(t, client, identified(fmt.Sprintf("process-%04d", i))), "orders")
	}
	queued(t, client, "orders", 1+waiting)
	t.Logf("%d processes wait after %v", waiting, time.Since(start))

	before := w.Calls("Txn")
	runtime.GC()
	st := statusOf(t, holder, "orders")
	if len(st.Waiting) != waiting || st.Holder.Token != g.Token() {
		t.Errorf("%d of %d wait for %v", len(st.Waiting), waiting, st.Holder)
	}
	t.Logf("Status took at most %d requests beside those of the waiters", w.Calls("Txn")-before)
	all := list(t, holder, "")
	if len(all) != 1 || len(all[0].Waiting) != waiting {
		t.Errorf("%d queues listed", len(all))
	}
	// The lock passes on in order, and each release wakes few.
	release(t, g)
	turns := make(chan *asking, waiting)
	for _, a := range asks {
		go func() {
			<-a.done
			turns <- a
		}()
	}
	for range 3 {
		release(t, (<-turns).granted(t))
	}
	for _, a := range asks {
		a.cancel()
	}
	for _, a := range asks {
		<-a.done
		if a.err == nil {
			_ = a.grant.Release(t.Context())
		}
	}
}
