package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestAcquireWhoseReplyIsLostIsAdopted(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	txns := count(w)
	lost := w.DropReply("Txn", 1, of(enters))

	g := acquire(t, c, "orders")
	if lost.Hits() != 1 || txns.of(enters) != 1 || txns.of(settles) != 1 {
		t.Fatalf("%d replies lost, %d acquires, %d settles", lost.Hits(), txns.of(enters), txns.of(settles))
	}
	stands(t, client, g)
	if keys := queue(t, client, "orders"); len(keys) != 1 {
		t.Fatalf("the queue has %d keys: it waits for itself", len(keys))
	}
	release(t, g)
	queued(t, client, "orders", 0)
}

func TestTryWhoseReplyIsLostIsAdopted(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	w.DropReply("Txn", 1, of(enters))
	g, err := c.TryAcquire(within(t, patience), "orders")
	if err != nil {
		t.Fatal(err)
	}
	stands(t, client, g)
	release(t, g)
}

// Nobody can tell a request that is late from one that is lost. What the caller
// was told must stay true when it arrives.
func TestAcquireThatIsLateAppliesNoMore(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	late := w.Postpone("Txn", of(enters))

	g := acquire(t, c, "orders")
	stands(t, client, g)
	reply, err := late.Send(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if reply.(*pb.TxnResponse).Succeeded {
		t.Error("the acquire was given up, and applied all the same")
	}
	release(t, g)
	if arrives(t, late.Call()) {
		t.Error("the acquire applied after the release")
	}
	queued(t, client, "orders", 0)
}

func TestAcquireThatArrivesTwiceIsOneAcquire(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	w.SendTwice("Txn", 1, of(enters))
	g := acquire(t, c, "orders")
	stands(t, client, g)
	if version := queue(t, client, "orders")[0].Version; version != 1 {
		t.Errorf("the lock key was put %d times", version)
	}
	release(t, g)
}

// The caller leaves while it is not known what became of its acquire. Its key
// must go without anybody waiting for the end of the lease.
func TestCallerWhoLeavesUnsettledLeavesNoKey(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := steady
	opts.CleanupTimeout = 50 * time.Millisecond
	c := newCoordinator(t, client, opts)
	other := newCoordinator(t, etcd.Client(), steady)
	w.DropReply("Txn", 1, of(enters))
	settle := w.Hold("Txn", of(settles))

	a := ask(t, c, "orders")
	held(t, settle)
	a.cancel()
	if err := a.failed(t); !errors.Is(err, context.Canceled) || !errors.Is(err, coordinator.ErrUnsettled) {
		t.Fatalf("%v, want that it was canceled, and is unsettled", err)
	}
	if n := len(queue(t, client, "orders")); n != 1 {
		t.Fatalf("%d keys before settling", n)
	}
	next := ask(t, other, "orders")
	settle.Release()
	release(t, next.granted(t))
	queued(t, client, "orders", 0)
}

// Who leaves before the settling was sent has the key deleted by it.
func TestCallerWhoHasLeftIsNotAdopted(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := steady
	opts.CleanupTimeout = 20 * time.Millisecond
	c := newCoordinator(t, client, opts)
	txns := count(w)
	reply := w.HoldReply("Txn", of(enters))
	a := ask(t, c, "orders")
	held(t, reply)
	a.cancel()
	if err := a.failed(t); !errors.Is(err, context.Canceled) || !errors.Is(err, coordinator.ErrUnsettled) {
		t.Fatalf("%v, want that it was canceled, and is unsettled", err)
	}
	reply.Fail(errLost)
	queued(t, client, "orders", 0)
	if txns.of(settles) != 1 || txns.of(releases) != 0 {
		t.Errorf("%d settles, %d releases: the settle was to delete the key", txns.of(settles), txns.of(releases))
	}
	if txns.of(removes) != 0 {
		t.Error("the key was left for an audit to find")
	}
}

// A recovery after a restore, or an operator, ends sessions by deleting their
// keys, just when requests are failing all over. A session that came back by
// its own put would issue tokens of the old epoch.
func TestSettlingDoesNotReviveADeletedSession(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	before := acquire(t, c, "before")
	session := sessionsPrefix + fmt.Sprintf("%x", before.Lease())
	w.DropReply("Txn", 1, of(enters))
	settle := w.Hold("Txn", of(settles))

	a := ask(t, c, "orders")
	held(t, settle)
	deleted, err := etcd.Client().Delete(t.Context(), session)
	if err != nil || deleted.Deleted != 1 {
		t.Fatalf("delete the session key: %v, %v", deleted, err)
	}
	settle.Release()

	g := a.granted(t)
	if g.Lease() == before.Lease() {
		t.Error("the session goes on though its key was deleted")
	}
	if g.Token().Revision() <= deleted.Header.Revision {
		t.Errorf("token %s is not newer than the end of its session at %d", g.Token(), deleted.Header.Revision)
	}
	var lost *coordinator.LostError
	if err := ended(t, before); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
		t.Errorf("the other grant of the session: %v", err)
	}
	neverBack(t, client, session, deleted.Header.Revision)
	release(t, g)
}

func TestLeaseEndsWhileSettling(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	before := acquire(t, c, "before")
	w.DropReply("Txn", 1, of(enters))
	settle := w.Hold("Txn", of(settles))
	a := ask(t, c, "orders")
	held(t, settle)
	etcd.Expire(t, before)
	settle.Release()
	g := a.granted(t)
	if g.Lease() == before.Lease() {
		t.Error("a grant on a lease that has ended")
	}
	stands(t, client, g)
	_ = ended(t, before)
	release(t, g)
}

// clientv3 alone would send these again behind the coordinator's back, because
// the caller's context has not ended, and each copy may take effect.
func TestServerTimeoutsAreNotRepeatedUnseen(t *testing.T) {
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled} {
		t.Run(code.String(), func(t *testing.T) {
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			c := newCoordinator(t, client, steady)
			txns := count(w)
			for _, kind := range []string{enrols, enters, handsOn, releases} {
				w.DropReply("Txn", 1, of(kind), wire.Code(code))
			}
			// The session that got no answer is given up, and another opened.
			first := acquire(t, c, "orders")
			if got := [2]int{txns.of(enrols), txns.of(enters)}; got != [2]int{2, 1} {
				t.Errorf("%v attempts to open a session and to acquire", got)
			}
			next := ask(t, c, "orders")
			release(t, first)
			second := next.granted(t)
			if txns.of(handsOn) != 1 {
				t.Errorf("%d attempts to hand on", txns.of(handsOn))
			}
			rises(t, first, second)
			release(t, second)
			// This one is repeated by the coordinator, which knows of it.
			if txns.of(releases) != 2 {
				t.Errorf("%d attempts to release", txns.of(releases))
			}
		})
	}
}

// After a change of leaders all that was in flight is unknown at once. One put
// of the session key answers for all; a settle for each would make the retries
// of all others fail, again and again.
func TestManyUnknownAcquiresSettleTogether(t *testing.T) {
	// Not parallel: it would take the processor from tests about time.
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm")) // the session is open
	txns := count(w)
	const locks = 1000

	// Every reply is lost at the same moment.
	var sent sync.WaitGroup
	sent.Add(locks)
	lose := make(chan struct{})
	hook := w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if transaction(call) != enters {
			return call.Send(ctx)
		}
		err := call.Send(ctx)
		sent.Done()
		<-lose
		return errors.Join(err, errLost)
	})
	grants := make([]*coordinator.Grant, locks)
	var all sync.WaitGroup
	for i := range locks {
		all.Go(func() {
			g, err := c.Acquire(within(t, 2*patience), fmt.Sprint("lock-", i))
			if err != nil {
				t.Error(err)
				return
			}
			grants[i] = g
		})
	}
	sent.Wait()
	hook.Remove()
	close(lose)
	all.Wait()
	if t.Failed() {
		return
	}
	// A transaction takes 100 keys, and some come while it is under way.
	if n := txns.of(settles); n > locks/100+5 {
		t.Errorf("%d settles for %d acquires", n, locks)
	}
	if n := txns.of(enters); n != locks {
		t.Errorf("%d acquires were sent for %d locks", n, locks)
	}
	t.Logf("%d acquires of unknown outcome: %d settles, %d reads", locks, txns.of(settles), txns.of(reads))
	for _, g := range grants {
		all.Go(func() {
			if err := g.Release(within(t, 2*patience)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// The same for acquires that never arrived: each is sent once more and no more.
func TestManyAcquiresThatNeverArrivedAreRepeatedOnce(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "warm"))
	txns := count(w)
	const locks = 200
	var sent sync.WaitGroup
	sent.Add(locks)
	lose := make(chan struct{})
	hook := w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if transaction(call) != enters {
			return call.Send(ctx)
		}
		sent.Done()
		<-lose
		return errLost
	})
	var all sync.WaitGroup
	for i := range locks {
		all.Go(func() {
			ctx := within(t, 2*patience)
			g, err := c.Acquire(ctx, fmt.Sprint("lock-", i))
			if err == nil {
				err = g.Release(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	sent.Wait()
	hook.Remove()
	close(lose)
	all.Wait()
	t.Logf("%d acquires that never arrived: %d settles, %d acquires sent again", locks, txns.of(settles), txns.of(enters))
	if n := txns.of(settles); n > locks/100+5 {
		t.Errorf("%d settles for %d acquires", n, locks)
	}
	// Besides the repetition, those whose compare a settle in between defeated.
	if n := txns.of(enters); n > 4*locks {
		t.Errorf("%d acquires were sent for %d locks", n, locks)
	}
}
