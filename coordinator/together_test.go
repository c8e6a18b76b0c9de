package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func releaseAll(t *testing.T, all *coordinator.Grants) {
	t.Helper()
	if err := all.Release(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}

func TestFreeLocksCostOneRequest(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	for _, n := range []int{2, 3, coordinator.MaxLocks} {
		var locks []string
		for i := range n {
			locks = append(locks, fmt.Sprintf("lock-%02d", i))
		}
		var all *coordinator.Grants
		price(t, etcd, w, func() {
			if all != nil {
				releaseAll(t, all)
			}
		}, func() { all = acquireAll(t, c, locks) }).is(t, fmt.Sprint("taking locks: ", n), map[string]int{"Txn": 1}, 1)
		i := 0
		for lock, g := range all.All() {
			if lock != locks[i] || g != all.Grant(lock) || g.Lock() != lock {
				t.Errorf("grant %d is of %q: %s", i, lock, g.Token())
			}
			stands(t, client, g)
			i++
		}
		if i != n {
			t.Errorf("%d grants of %d", i, n)
		}
		for range all.All() {
			break // may be left
		}
		releaseAll(t, all)
	}
}

// One lock that is not free, or has somebody waiting, and nothing is put into the
// queue of any other: not even for a moment, in which somebody could stand behind.
func TestLocksThatAreNotAllFreeLeaveNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, other := newCoordinator(t, client, steady), newCoordinator(t, etcd.Client(), steady)
	txns := count(w)
	for _, taken := range []string{"a", "b", "c"} {
		g := acquire(t, other, taken)
		revision := g.Token().Revision()
		_, err := c.AcquireAll(within(t, patience), []string{"a", "b", "c"}, coordinator.WaitAtMost(100*time.Millisecond))
		var busy *coordinator.BusyError
		if !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
			t.Errorf("%v, want that %s holds", err, g.Token())
		}
		// Since then: the keys that were put one after another, and their ends.
		for _, lock := range []string{"a", "b", "c"} {
			queue := queue(t, etcd.Client(), lock)
			if lock == taken && (len(queue) != 1 || queue[0].CreateRevision != revision) || lock != taken && len(queue) != 0 {
				t.Errorf("queue of %q: %v", lock, queue)
			}
		}
		release(t, g)
	}
	if n := txns.of(entersAll); n != 3 {
		t.Errorf("%d attempts at all at once, want one each", n)
	}
	// A key that is not ours, and on no lease, is respected too.
	if _, err := etcd.Client().Put(t.Context(), directory("b")+"foreign", ""); err != nil {
		t.Fatal(err)
	}
	_, err := c.AcquireAll(within(t, patience), []string{"a", "b"}, coordinator.WaitAtMost(100*time.Millisecond))
	if !errors.Is(err, coordinator.ErrBusy) {
		t.Errorf("behind a foreign key: %v", err)
	}
	if _, err := etcd.Client().Delete(t.Context(), directory("b")+"foreign"); err != nil {
		t.Fatal(err)
	}
	releaseAll(t, acquireAll(t, c, []string{"a", "b"}))
}

// What became of the attempt is not known: it may have put all keys, or put them
// later.
func TestUnknownAttemptAtAllLocks(t *testing.T) {
	locks := []string{"a", "b", "c"}
	for name, fault := range map[string]func(*wire.Wire) func(*testing.T){
		"applied, and the answer lost": func(w *wire.Wire) func(*testing.T) {
			w.DropReply("Txn", 1, of(entersAll))
			return func(*testing.T) {}
		},
		"lost": func(w *wire.Wire) func(*testing.T) {
			w.FailBefore("Txn", 1, of(entersAll))
			return func(*testing.T) {}
		},
		"late": func(w *wire.Wire) func(*testing.T) {
			late := w.Postpone("Txn", of(entersAll))
			return func(t *testing.T) {
				if arrives(t, late.Call()) {
					t.Error("the attempt that was given up applied all the same")
				}
			}
		},
		"sent twice": func(w *wire.Wire) func(*testing.T) {
			w.SendTwice("Txn", 1, of(entersAll))
			return func(*testing.T) {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			c := newCoordinator(t, client, steady)
			release(t, acquire(t, c, "warm"))
			after := fault(w)
			all := acquireAll(t, c, locks)
			for _, lock := range locks {
				stands(t, client, all.Grant(lock))
				queued(t, client, lock, 1)
			}
			after(t)
			for _, lock := range locks {
				queued(t, client, lock, 1)
			}
			releaseAll(t, all)
			after(t)
			for _, lock := range locks {
				queued(t, client, lock, 0)
			}
		})
	}
}

// The answer took long: a copy may be under way, and must not put the keys again
// once they have been released.
func TestSlowAttemptAtAllLocksLeavesNoGhosts(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	reply := w.HoldReply("Txn", of(entersAll))
	result := make(chan *coordinator.Grants, 1)
	go func() {
		all, err := c.AcquireAll(within(t, patience), []string{"a", "b"})
		if err != nil {
			t.Error(err)
		}
		result <- all
	}()
	held(t, reply)
	time.AfterFunc(1100*time.Millisecond, reply.Release)
	all := receive(t, result, "AcquireAll")
	releaseAll(t, all)
	if arrives(t, reply.Call()) {
		t.Error("a copy of the attempt applied after the release")
	}
	queued(t, client, "a", 0)
}

// The caller leaves while the attempt is under way; others of the process have
// lined up meanwhile.
func TestCallerWhoLeavesAnAttemptAtAllLocks(t *testing.T) {
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			opts := steady
			opts.CleanupTimeout = 50 * time.Millisecond
			c := newCoordinator(t, client, opts)
			release(t, acquire(t, c, "warm"))
			var latch *wire.Latch
			if applied {
				latch = w.HoldReply("Txn", of(entersAll))
			} else {
				latch = w.Hold("Txn", of(entersAll))
			}
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- allErr(c.AcquireAll(ctx, []string{"a", "b", "c"})) }()
			held(t, latch)
			next := ask(t, c, "b")
			try := make(chan error, 1)
			go func() { try <- errOf(c.TryAcquire(within(t, patience), "b")) }()
			eventually(t, "both wait", func() bool { return coordinator.Waiting(c) == 2 })
			cancel()
			if err := receive(t, result, "AcquireAll"); !errors.Is(err, context.Canceled) || !errors.Is(err, coordinator.ErrUnsettled) {
				t.Errorf("%v, want that it was canceled, and is unsettled", err)
			}
			latch.Release()
			g := next.granted(t)
			var busy *coordinator.BusyError
			if err := receive(t, try, "the try"); !errors.As(err, &busy) || busy.Holder.Token != g.Token() {
				t.Errorf("the try: %v", err)
			}
			queued(t, client, "a", 0)
			queued(t, client, "b", 1)
			queued(t, client, "c", 0)
			release(t, g)
		})
	}
}

// Close waits for the functions under Do, but whoever waits for a lock is told at once,
// also while the locks are asked for together.
func TestCloseEndsAnAttemptAtAllLocks(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	finish, running := make(chan struct{}), make(chan struct{})
	worked := make(chan error, 1)
	go func() {
		worked <- c.Do(context.WithoutCancel(t.Context()), "long", func(context.Context, *coordinator.Grant) error {
			close(running)
			<-finish
			return nil
		})
	}()
	<-running
	latch := w.Hold("Txn", of(entersAll))
	result := make(chan error, 1)
	go func() { result <- allErr(c.AcquireAll(t.Context(), []string{"a", "b"})) }()
	held(t, latch)
	closed, start := make(chan error, 1), time.Now()
	go func() { closed <- c.Close(within(t, patience)) }()
	if err := receive(t, result, "AcquireAll"); !errors.Is(err, coordinator.ErrClosed) || time.Since(start) > 3*time.Second {
		t.Errorf("AcquireAll after %v: %v, want that the coordinator is closed", time.Since(start), err)
	}
	select {
	case err := <-closed:
		t.Errorf("close did not wait for the function: %v", err)
	default:
	}
	latch.Release()
	close(finish)
	if err := receive(t, closed, "Close"); err != nil {
		t.Error(err)
	}
	if err := receive(t, worked, "Do"); !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("Do: %v", err)
	}
}

// The joint attempt is part of the time that a lock is waited for.
func TestSilentEtcdDoesNotDoubleTheWaitForAllLocks(t *testing.T) {
	etcd := cluster(t, nil)
	proxy := etcd.Proxies(t)
	opts := steady
	opts.CleanupTimeout = 50 * time.Millisecond
	c := newCoordinator(t, etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = proxy.Endpoints() }), opts)
	for _, when := range []string{"there is no session yet", "there is one"} {
		proxy.Cut()
		start := time.Now()
		err := allErr(c.AcquireAll(within(t, patience), []string{"a", "b"}, coordinator.WaitAtMost(500*time.Millisecond)))
		if took := time.Since(start); !errors.Is(err, coordinator.ErrNoAnswer) || took > 900*time.Millisecond {
			t.Errorf("%s: after %v: %v", when, took, err)
		}
		proxy.Heal()
		if err := c.Ping(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
}

// Those of the process who come while the locks are being taken stand behind.
func TestWhoComesDuringAnAttemptAtAllLocksStandsBehind(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	latch := w.Hold("Txn", of(entersAll))
	result := make(chan *coordinator.Grants, 1)
	go func() {
		all, err := c.AcquireAll(within(t, patience), []string{"a", "b", "c"})
		if err != nil {
			t.Error(err)
		}
		result <- all
	}()
	held(t, latch)
	next, leaver := ask(t, c, "b"), ask(t, c, "c")
	try := make(chan error, 1)
	go func() { try <- errOf(c.TryAcquire(within(t, patience), "a")) }()
	eventually(t, "all wait", func() bool { return coordinator.Waiting(c) == 3 })
	leaver.cancel()
	eventually(t, "one has left", func() bool { return coordinator.Waiting(c) == 2 })
	latch.Release()
	if err := leaver.failed(t); errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("nothing of the leaver is left, and it was told: %v", err)
	}
	all := receive(t, result, "AcquireAll")
	var busy *coordinator.BusyError
	if err := receive(t, try, "the try"); !errors.As(err, &busy) || busy.Holder.Token != all.Grant("a").Token() {
		t.Errorf("the try: %v", err)
	}
	next.waits(t)
	releaseAll(t, all)
	g := next.granted(t)
	rises(t, all.Grant("b"), g)
	release(t, g)
}

// The session ends while the locks are taken: they are taken with the next.
func TestAllLocksWithASessionThatEnds(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	before := acquire(t, c, "before")
	latch := w.Hold("Txn", of(entersAll))
	result := make(chan *coordinator.Grants, 1)
	go func() {
		all, err := c.AcquireAll(within(t, patience), []string{"a", "b"})
		if err != nil {
			t.Error(err)
		}
		result <- all
	}()
	held(t, latch)
	if _, err := etcd.Client().Delete(t.Context(), sessionsPrefix+fmt.Sprintf("%x", before.Lease()), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	latch.Release()
	all := receive(t, result, "AcquireAll")
	for _, g := range all.All() {
		if g.Lease() == before.Lease() {
			t.Errorf("%s on a session that is over", g.Token())
		}
		stands(t, client, g)
	}
	releaseAll(t, all)
}
