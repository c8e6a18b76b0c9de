package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func acquireAll(t *testing.T, c *coordinator.Coordinator, locks []string, opts ...coordinator.AcquireOption) *coordinator.Grants {
	t.Helper()
	all, err := c.AcquireAll(within(t, patience), locks, opts...)
	if err != nil {
		t.Fatalf("acquire all of %q: %v", locks, err)
	}
	keep(t, all)
	return all
}

func TestAcquireAllTakesEachLockOnce(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, steady)
	var raised []revisionfence.Token
	all := acquireAll(t, c, []string{"c", "a", "b", "a", "c"}, coordinator.Raise(func(_ context.Context, token revisionfence.Token) error {
		raised = append(raised, token)
		return nil
	}))
	if len(all.Fence()) != 3 || len(raised) != 3 {
		t.Errorf("%d compares and barriers for %v, want 3 of each", len(all.Fence()), raised)
	}
	for i, lock := range []string{"a", "b", "c"} {
		g := all.Grant(lock)
		if g == nil || g.Lock() != lock || g.Err() != nil || raised[i] != g.Token() {
			t.Fatalf("grant of %q: %v; barriers ran for %v", lock, g, raised)
		}
		stands(t, client, g)
		queued(t, client, lock, 1)
	}
	if g := all.Grant("d"); g != nil {
		t.Errorf("grant of a lock that was not asked for: %s", g.Token())
	}
	if token, ok := revisionfence.FromContext(all.Context()); ok {
		t.Errorf("the context carries %s, and no token stands for several locks", token)
	}
	// The fence is true, and false as soon as one of the locks is not held.
	fenced := func() bool {
		resp, err := client.Txn(t.Context()).If(all.Fence()...).
			Then(clientv3.OpPut("resource", "")).Else(clientv3.OpGet("resource", clientv3.WithCountOnly())).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	if !fenced() {
		t.Error("the fence does not let its holder through")
	}
	release(t, all.Grant("b"))
	if fenced() {
		t.Error("the fence lets through though one lock was released")
	}
	if all.Err() == nil || all.Context().Err() == nil || !errors.Is(context.Cause(all.Context()), coordinator.ErrNotHeld) {
		t.Errorf("one was released: err %v, cause %v", all.Err(), context.Cause(all.Context()))
	}
	if err := all.Release(within(t, patience)); err != nil {
		t.Errorf("release of the others: %v", err)
	}
	if err := all.Release(within(t, patience)); err != nil {
		t.Errorf("a second release: %v, want the outcome of the first", err)
	}
	for _, lock := range []string{"a", "b", "c"} {
		queued(t, client, lock, 0)
	}
}

func TestAcquireAllTakesAllOrNone(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, b, "b")
	var busy *coordinator.BusyError

	_, err := a.AcquireAll(within(t, patience), []string{"a", "b", "c"}, coordinator.WaitAtMost(500*time.Millisecond))
	if !errors.As(err, &busy) || busy.Lock != "b" || busy.Holder.Token != g.Token() {
		t.Errorf("the time to wait is over: %v", err)
	}
	queued(t, etcd.Client(), "a", 0)
	queued(t, etcd.Client(), "b", 1)

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := a.AcquireAll(ctx, []string{"c", "b", "a"})
		result <- err
	}()
	queued(t, etcd.Client(), "b", 2)
	queued(t, etcd.Client(), "a", 1)
	queued(t, etcd.Client(), "c", 0) // in order
	cancel(cause)
	if err := receive(t, result, "AcquireAll"); !errors.Is(err, cause) || !errors.As(err, &busy) || busy.Lock != "b" {
		t.Errorf("the context ended: %v", err)
	}
	queued(t, etcd.Client(), "a", 0)
	queued(t, etcd.Client(), "b", 1)

	mine := errors.New("the resource is away")
	_, err = a.AcquireAll(within(t, patience), []string{"x", "y"}, coordinator.Raise(func(_ context.Context, token revisionfence.Token) error {
		if token.Lock() == "y" {
			return mine
		}
		return nil
	}))
	if !errors.Is(err, mine) {
		t.Errorf("a barrier failed: %v", err)
	}
	queued(t, etcd.Client(), "x", 0)
	queued(t, etcd.Client(), "y", 0)
	release(t, g)
}

func TestAcquireAllHasBounds(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	if _, err := c.AcquireAll(t.Context(), nil); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("no lock: %v", err)
	}
	if _, err := c.AcquireAll(t.Context(), []string{"a", ""}); !errors.Is(err, coordinator.ErrInvalidName) {
		t.Errorf("a lock without a name: %v", err)
	}
	var many []string
	for i := range coordinator.MaxLocks {
		many = append(many, fmt.Sprint("lock-", i))
	}
	if _, err := c.AcquireAll(t.Context(), append(many, "one more")); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("%d locks: %v", len(many)+1, err)
	}
	all := acquireAll(t, c, append(many, many...))
	// Its compares leave room for a transaction's own.
	var puts []clientv3.Op
	for i := range 64 {
		puts = append(puts, clientv3.OpPut(fmt.Sprint("resource-", i), ""))
	}
	resp, err := etcd.Client().Txn(t.Context()).If(all.Fence()...).Then(puts...).Commit()
	if err != nil || !resp.Succeeded {
		t.Errorf("a transaction under %d locks: %v, %v", len(many), resp, err)
	}
	if err := all.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	one := acquireAll(t, c, []string{"alone"})
	if err := one.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	queued(t, etcd.Client(), "alone", 0)
}

// Each of them holds what the other wants, if each takes the locks as they are
// given.
func TestAcquireAllInOppositeOrdersDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	const rounds = 200
	var inside atomic.Int32
	var all sync.WaitGroup
	for _, locks := range [][]string{{"a", "b"}, {"b", "a"}} {
		c := newCoordinator(t, etcd.Client(), steady)
		all.Go(func() {
			for range rounds {
				grants, err := c.AcquireAll(within(t, 2*patience), locks)
				if err != nil {
					t.Errorf("%q: %v", locks, err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				inside.Add(-1)
				if err := grants.Release(within(t, patience)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// Who holds one lock and waits for another, as anybody may in the right order,
// must not stand in a circle with those who want both at once. Keys put into
// both queues in one transaction would be such a circle.
func TestAcquireAllBesideSingleAcquiresDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	const rounds = 40
	var all sync.WaitGroup
	for range 3 {
		c := newCoordinator(t, etcd.Client(), steady)
		all.Go(func() {
			for range rounds {
				grants, err := c.AcquireAll(within(t, 2*patience), []string{"b", "a"})
				if err == nil {
					err = grants.Release(within(t, patience))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	single := newCoordinator(t, etcd.Client(), steady)
	all.Go(func() {
		for range rounds {
			ctx := within(t, 2*patience)
			a, err := single.Acquire(ctx, "a")
			if err != nil {
				t.Error(err)
				return
			}
			// Let the others come and wait for it.
			<-time.After(time.Duration(rand.IntN(3)) * time.Millisecond)
			b, err := single.Acquire(ctx, "b")
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(b.Release(ctx), a.Release(ctx)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Wait()
}

func TestLossWhileWaitingForTheOthersEndsAcquireAll(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), brisk)
	b := newCoordinator(t, etcd.Client(), steady)
	g := acquire(t, b, "c")
	result := make(chan error, 1)
	go func() {
		_, err := a.AcquireAll(within(t, patience), []string{"a", "b", "c"})
		result <- err
	}()
	queued(t, etcd.Client(), "c", 2)
	taken := queued(t, etcd.Client(), "a", 1)[0]
	if _, err := etcd.Client().Delete(t.Context(), string(taken.Key)); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := receive(t, result, "AcquireAll"); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted || lost.Token.Lock() != "a" {
		t.Errorf("AcquireAll ended with %v", err)
	}
	queued(t, etcd.Client(), "b", 0)
	queued(t, etcd.Client(), "c", 1)
	release(t, g)
}

func TestGrantsEndWithTheFirstLoss(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), brisk)
	all := acquireAll(t, a, []string{"a", "b"})
	if all.Err() != nil || all.Context().Err() != nil {
		t.Fatalf("new grants: %v, %v", all.Err(), all.Context().Err())
	}
	g := all.Grant("b")
	if _, err := etcd.Client().Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-all.Context().Done():
	case <-time.After(patience):
		t.Fatal("the context has not ended")
	}
	var lost *coordinator.LostError
	if err := context.Cause(all.Context()); !errors.As(err, &lost) || lost.Token != g.Token() {
		t.Errorf("the context ended with %v", err)
	}
	if !errors.Is(all.Err(), coordinator.ErrLost) || all.Grant("a").Err() != nil {
		t.Errorf("err %v, of the other %v", all.Err(), all.Grant("a").Err())
	}
	// What is still held is given up, and the loss is told.
	if err := all.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) || !errors.Is(err, coordinator.ErrLost) {
		t.Errorf("release: %v", err)
	}
	queued(t, etcd.Client(), "a", 0)
}

func TestLocksHeldTogetherAreNotReentrant(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	outer := acquire(t, c, "outer")
	all, err := c.AcquireAll(outer.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, lock := range []string{"a", "b", "outer"} {
		if _, err := c.Acquire(all.Context(), lock); !errors.Is(err, coordinator.ErrAlreadyHeld) {
			t.Errorf("acquire %q under the locks: %v", lock, err)
		}
	}
	if _, err := c.AcquireAll(all.Context(), []string{"0", "b"}); !errors.Is(err, coordinator.ErrAlreadyHeld) {
		t.Errorf("acquire all under the locks: %v", err)
	}
	queued(t, etcd.Client(), "0", 0)
	if err := all.Release(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	release(t, outer)
}

func TestGrantsAreReleasedInOneTransaction(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, client, steady)
	b := newCoordinator(t, etcd.Client(), steady)
	locks := []string{"a", "b", "c", "d"}
	all := acquireAll(t, a, locks)
	elsewhere := ask(t, b, "b") // somebody of another process
	queued(t, etcd.Client(), "b", 2)
	w.Reset()
	if err := all.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	if n := w.Calls(""); n != 1 {
		t.Errorf("%d requests to release: %v", n, w.Counts())
	}
	next := elsewhere.granted(t)
	rises(t, all.Grant("b"), next)
	release(t, next)
	for _, lock := range locks {
		queued(t, etcd.Client(), lock, 0)
		release(t, acquire(t, a, lock))
	}
}

func TestGrantsThatSomebodyWaitsForAreHandedOn(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, client, steady)
	txns := count(w)
	all := acquireAll(t, a, []string{"a", "b", "c"})
	next := ask(t, a, "b")
	if err := all.Release(within(t, patience)); err != nil {
		t.Error(err)
	}
	g := next.granted(t)
	rises(t, all.Grant("b"), g)
	if txns.of(handsOn) != 1 || txns.of(releases) != 2 {
		t.Errorf("%d hand-ons and %d releases", txns.of(handsOn), txns.of(releases))
	}
	stands(t, client, g)
	release(t, g)
	queued(t, client, "a", 0)
	queued(t, client, "c", 0)
}

func TestReleaseOfAllWithoutAClearAnswer(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, client, steady)
	all := acquireAll(t, a, []string{"a", "b", "c"})
	lost := w.DropReply("Txn", 1)
	if err := all.Release(within(t, patience)); err != nil || lost.Hits() != 1 {
		t.Errorf("the answer was lost: %v", err)
	}
	all = acquireAll(t, a, []string{"a", "b", "c"})
	w.FailBefore("Txn", 1)
	if err := all.Release(within(t, patience)); err != nil {
		t.Errorf("the request was lost: %v", err)
	}
	for _, lock := range []string{"a", "b", "c"} {
		queued(t, client, lock, 0)
	}
	// One of the keys is gone, by nobody's request of ours.
	all = acquireAll(t, a, []string{"a", "b", "c"})
	if _, err := etcd.Client().Delete(t.Context(), all.Grant("b").Key()); err != nil {
		t.Fatal(err)
	}
	if err := all.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("one key was deleted: %v", err)
	}
	for _, lock := range []string{"a", "b", "c"} {
		queued(t, client, lock, 0)
	}
}

// Etcd does not answer: the bound is one for all locks, and not one for each.
func TestReleaseOfAllIsBounded(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := steady
	opts.CleanupTimeout = 200 * time.Millisecond
	a := newCoordinator(t, client, opts)
	var locks []string
	for i := range 30 {
		locks = append(locks, fmt.Sprint("lock-", i))
	}
	all := acquireAll(t, a, locks)
	away := w.FailBefore("Txn", 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	err := all.Release(ctx)
	if !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, context.Canceled) {
		t.Errorf("nobody answers: %v", err)
	}
	if took := time.Since(start); took > 10*opts.CleanupTimeout {
		t.Errorf("it took %v, with %v to clean up", took, opts.CleanupTimeout)
	}
	if all.Err() == nil || all.Context().Err() == nil {
		t.Error("the grants go on after Release")
	}
	away.Remove()
	if err := all.Release(within(t, patience)); err != nil {
		t.Errorf("the outcome in the end: %v", err)
	}
	for _, lock := range locks {
		queued(t, client, lock, 0)
	}
}
