package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// in returns options under which locks lie where a function says.
func in(where func(lock string) string) coordinator.Options {
	opts := steady
	opts.Directory = where
	return opts
}

// below puts each lock into a directory of its name.
func below(prefix string) func(string) string {
	return func(lock string) string { return prefix + lock + "/" }
}

// A program that uses concurrency.Mutex is joined where it is: while either
// holds the lock the other does not, in both directions, and they wait in one
// queue.
func TestDirectoryOfAMutexIsJoined(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, in(below("/jobs/")))
	session, err := concurrency.NewSession(client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "/jobs/nightly")
	ctx := within(t, patience)

	if err := mutex.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	var busy *coordinator.BusyError
	if _, err := c.TryAcquire(ctx, "nightly"); !errors.As(err, &busy) || busy.Holder.Key != mutex.Key() || busy.Holder.Lease != session.Lease() {
		t.Errorf("while the mutex is held: %v", err)
	}
	next := ask(t, c, "nightly")
	queuedIn(t, client, "/jobs/nightly/", 2)
	next.waits(t)
	if err := mutex.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	g := next.granted(t)
	if dir := strings.TrimSuffix(g.Key(), g.Owner()); dir != "/jobs/nightly/" {
		t.Errorf("the lock key %s is not where the mutex looks", g.Key())
	}
	stands(t, client, g)

	if err := mutex.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("the mutex while we hold the lock: %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- mutex.Lock(ctx) }()
	queuedIn(t, client, "/jobs/nightly/", 2)
	third := ask(t, c, "nightly")
	release(t, g) // handed on, behind the mutex
	if err := receive(t, locked, "the mutex"); err != nil {
		t.Fatal(err)
	}
	third.waits(t)
	st := statusOf(t, c, "nightly")
	if st.Directory != "/jobs/nightly/" || st.Holder.Key != mutex.Key() || len(st.Waiting) != 1 || len(st.Strays()) != 1 {
		t.Errorf("status %+v", st)
	}
	if err := mutex.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	last := third.granted(t)
	rises(t, g, last)
	release(t, last)
	queuedIn(t, client, "/jobs/nightly/", 0)
}

func TestMutexAndCoordinatorExcludeEachOtherUnderLoad(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	const rounds = 25
	var inside atomic.Int32
	enter := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d holders at once", n)
		}
		inside.Add(-1)
	}
	var all sync.WaitGroup
	for range 2 {
		session, err := concurrency.NewSession(client)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		mutex := concurrency.NewMutex(session, "/jobs/nightly")
		all.Go(func() {
			for range rounds {
				ctx := within(t, 2*patience)
				if err := mutex.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				enter()
				if err := mutex.Unlock(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
		c := newCoordinator(t, client, in(below("/jobs/")))
		for range 2 {
			all.Go(func() {
				for range rounds {
					ctx := within(t, 2*patience)
					if err := c.Do(ctx, "nightly", func(context.Context, *coordinator.Grant) error {
						enter()
						return nil
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// Names that share a directory are one lock, under each of its names. Two keys
// put in one transaction would have one create revision: two owners.
func TestNamesInOneDirectoryAreOneLock(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	shared := in(func(string) string { return "/jobs/one/" })
	a := newCoordinator(t, client, shared)
	b := newCoordinator(t, client, shared)
	first := acquire(t, a, "x")
	var busy *coordinator.BusyError
	for _, c := range []*coordinator.Coordinator{a, b} {
		if _, err := c.TryAcquire(t.Context(), "y"); !errors.As(err, &busy) || busy.Lock != "y" || busy.Holder.Token.Revision() != first.Token().Revision() {
			t.Errorf("another name of a held lock: %v", err)
		}
	}
	if _, err := a.Acquire(first.Context(), "y"); !errors.Is(err, coordinator.ErrAlreadyHeld) {
		t.Errorf("another name of a lock held under this context: %v", err)
	}
	next := ask(t, a, "y")
	queuedIn(t, client, "/jobs/one/", 1)
	release(t, first)
	second := next.granted(t)
	// A token is of the lock that its holder asked for: guards compare names.
	if second.Lock() != "y" || second.Token().Revision() <= first.Token().Revision() {
		t.Errorf("token %s after %s, want a larger one of y", second.Token(), first.Token())
	}
	release(t, second)

	all := acquireAll(t, a, []string{"y", "x", "z"})
	queuedIn(t, client, "/jobs/one/", 1)
	if len(all.Fence()) != 1 || all.Grant("x") == nil || all.Grant("x") != all.Grant("z") {
		t.Errorf("names of one lock: %d compares, grants %v and %v", len(all.Fence()), all.Grant("x"), all.Grant("z"))
	}
	if err := all.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	// Under load, every token is larger than those before.
	var mu sync.Mutex
	var last int64
	var workers sync.WaitGroup
	for i, c := range []*coordinator.Coordinator{a, b, a, b} {
		name := string(rune('p' + i))
		workers.Go(func() {
			for range 30 {
				err := c.Do(within(t, 2*patience), name, func(_ context.Context, g *coordinator.Grant) error {
					mu.Lock()
					defer mu.Unlock()
					if g.Lock() != name || g.Token().Revision() <= last {
						t.Errorf("token %s for %s, after revision %d", g.Token(), name, last)
					}
					last = g.Token().Revision()
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	queuedIn(t, client, "/jobs/one/", 0)
}

func TestDirectoriesInsideOneAnotherAreRefused(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), in(func(lock string) string { return lock }))
	inner := acquire(t, c, "/jobs/a/b/")
	for _, lock := range []string{"/jobs/a/", "/jobs/", "/jobs/a/b/c/", "/jobs/a/b/c/d/"} {
		if _, err := c.Acquire(t.Context(), lock); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("%s beside /jobs/a/b/: %v", lock, err)
		}
		if _, err := c.TryAcquire(t.Context(), lock); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("try %s beside /jobs/a/b/: %v", lock, err)
		}
	}
	sibling := acquire(t, c, "/jobs/a/bb/")
	release(t, sibling)
	release(t, inner)
	// Not in use any more.
	eventually(t, "the directory is free", func() bool {
		g, err := c.Acquire(within(t, patience), "/jobs/a/")
		if errors.Is(err, coordinator.ErrInvalidName) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		release(t, g)
		return true
	})
}

func TestDirectoriesThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), in(func(lock string) string { return lock }))
	prefix := coordinator.DefaultPrefix
	for _, dir := range []string{
		"/jobs",              // does not end in "/"
		"/",                  // everything
		prefix,               // what is ours
		prefix + "sessions/", // likewise
		prefix + "locks/",
		prefix + "epoch/",
		prefix + "locks//",
		prefix + "locks/a/b/", // inside the queue of a lock
	} {
		if _, err := c.Acquire(t.Context(), dir); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("%q: %v", dir, err)
		}
		if _, err := c.Status(t.Context(), dir); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("status of %q: %v", dir, err)
		}
		if _, err := c.AcquireAll(t.Context(), []string{"/jobs/", dir}); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("with others, %q: %v", dir, err)
		}
		for _, err := range c.Observe(t.Context(), dir) {
			if !errors.Is(err, coordinator.ErrInvalidName) {
				t.Errorf("observe %q: %v", dir, err)
			}
		}
	}
	release(t, acquire(t, c, prefix+"locks/a/")) // where the default has it
	long := newCoordinator(t, etcd.Client(), in(func(string) string { return strings.Repeat("x", 4096) + "/" }))
	if _, err := long.Acquire(t.Context(), "orders"); !errors.Is(err, coordinator.ErrInvalidName) {
		t.Errorf("a directory of 4097 bytes: %v", err)
	}
	for _, err := range c.List(t.Context(), "") {
		if !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("list: %v", err)
		}
	}
}

// Everything that names a lock finds it in its directory.
func TestAllCallsGoToTheDirectory(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), in(below("/jobs/")))
	opts := brisk
	opts.Directory = below("/jobs/")
	b := newCoordinator(t, etcd.Client(), opts)
	if err := a.Ping(within(t, patience)); err != nil {
		t.Errorf("ping: %v", err)
	}
	g := acquire(t, b, "nightly", coordinator.Value([]byte("v")))
	o := observe(t, a, "nightly")
	if h := o.next(t); h.Token != g.Token() || string(h.Value) != "v" {
		t.Errorf("observed %v", h)
	}
	if !current(t, a, g.Token()) {
		t.Error("the holder's token is not current")
	}
	if err := a.Evict(t.Context(), g.Token(), "in the way"); err != nil {
		t.Errorf("evict: %v", err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostEvicted {
		t.Errorf("the holder is told %v", err)
	}
	if h := o.next(t); !h.IsZero() {
		t.Errorf("observed %v", h)
	}
	// What nobody knows of is still found and deleted, where the session had locks.
	if _, err := etcd.Client().Put(t.Context(), g.Key(), "", clientv3.WithLease(g.Lease())); err != nil {
		t.Fatal(err)
	}
	queuedIn(t, etcd.Client(), "/jobs/nightly/", 0)
}
