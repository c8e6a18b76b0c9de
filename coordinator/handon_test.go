package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// relay is one lock that is about to be handed on within a process.
type relay struct {
	client *clientv3.Client
	w      *wire.Wire
	txns   *tally
	c      *coordinator.Coordinator
	holder *coordinator.Grant
	next   *asking
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	client, w := tapped(t, cluster(t, nil))
	opts := steady
	opts.CleanupTimeout = 50 * time.Millisecond
	r := &relay{client: client, w: w, c: newCoordinator(t, client, opts)}
	r.holder = acquire(t, r.c, "orders")
	r.next = ask(t, r.c, "orders")
	r.txns = count(w)
	return r
}

// pass releases the lock in the background.
func (r *relay) pass(t *testing.T) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.holder.Release(within(t, patience)) }()
	return done
}

// only fails unless the grant's key is the only one in the queue.
func (r *relay) only(t *testing.T, g *coordinator.Grant) {
	t.Helper()
	stands(t, r.client, g)
	if keys := queue(t, r.client, "orders"); len(keys) != 1 {
		t.Errorf("%d keys in the queue", len(keys))
	}
}

func TestHandOnWhoseReplyIsLostIsAdopted(t *testing.T) {
	r := newRelay(t)
	r.w.DropReply("Txn", 1, of(handsOn))
	release(t, r.holder)
	g := r.next.granted(t)
	rises(t, r.holder, g)
	r.only(t, g)
	if r.txns.of(settlesHandOn) != 1 || r.txns.of(settles) != 0 || r.txns.of(enters) != 0 {
		t.Errorf("%v", r.txns.count)
	}
	if arrives(t, r.txns.last(t, handsOn)) {
		t.Error("the hand-on applied a second time")
	}
	release(t, g)
	if arrives(t, r.txns.last(t, handsOn)) {
		t.Error("the hand-on came back after the release")
	}
	queued(t, r.client, "orders", 0)
}

// It is not known whether the hand-on ever arrived, so the lock is given up. The
// request that is still on its way must not take it again for nobody.
func TestHandOnThatIsLateAppliesNoMore(t *testing.T) {
	r := newRelay(t)
	late := r.w.Postpone("Txn", of(handsOn))
	release(t, r.holder)
	g := r.next.granted(t)
	rises(t, r.holder, g)
	if arrives(t, late.Call()) {
		t.Error("the hand-on was given up, and applied all the same")
	}
	r.only(t, g)
	release(t, g)
	if arrives(t, late.Call()) {
		t.Error("the hand-on applied after the release")
	}
	queued(t, r.client, "orders", 0)
}

// It arrives while it is being settled.
func TestHandOnThatArrivesBeforeItsSettlingIsAdopted(t *testing.T) {
	r := newRelay(t)
	late := r.w.Postpone("Txn", of(handsOn))
	settle := r.w.Hold("Txn", of(settlesHandOn))
	done := r.pass(t)
	held(t, settle)
	if !arrives(t, late.Call()) {
		t.Fatal("the hand-on did not apply: this test is about nothing")
	}
	settle.Release()
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	g := r.next.granted(t)
	rises(t, r.holder, g)
	r.only(t, g)
	release(t, g)
}

func TestHandOnThatArrivesTwiceIsOneHandOn(t *testing.T) {
	r := newRelay(t)
	r.w.SendTwice("Txn", 1, of(handsOn))
	release(t, r.holder)
	g := r.next.granted(t)
	rises(t, r.holder, g)
	r.only(t, g)
	if version := queue(t, r.client, "orders")[0].Version; version != 1 {
		t.Errorf("the lock key was put %d times", version)
	}
	release(t, g)
}

// An operator deleted the old key: the releaser had lost the lock, and the next
// goroutine asks for it like anybody else.
func TestHandOnOfADeletedKey(t *testing.T) {
	for _, answer := range []string{"clear", "lost"} {
		t.Run(answer, func(t *testing.T) {
			r := newRelay(t)
			if answer == "lost" {
				r.w.FailBefore("Txn", 1, of(handsOn))
			}
			if _, err := r.client.Delete(t.Context(), r.holder.Key()); err != nil {
				t.Fatal(err)
			}
			err := r.holder.Release(within(t, patience))
			g := r.next.granted(t)
			rises(t, r.holder, g)
			r.only(t, g)
			switch {
			case answer == "clear" && !errors.Is(err, coordinator.ErrNotHeld):
				t.Errorf("release: %v, want ErrNotHeld", err)
			case answer == "lost" && err != nil:
				// A hand-on that got no answer may have done it.
				t.Errorf("release: %v", err)
			}
			release(t, g)
		})
	}
}

// A recovery or an operator ended the session: no key may be put for it.
func TestHandOnPutsNoKeyForADeletedSession(t *testing.T) {
	r := newRelay(t)
	request := r.w.Hold("Txn", of(handsOn))
	done := r.pass(t)
	held(t, request)
	session := sessionsPrefix + fmt.Sprintf("%x", r.holder.Lease())
	if deleted, err := r.client.Delete(t.Context(), session); err != nil || deleted.Deleted != 1 {
		t.Fatalf("delete the session key: %v, %v", deleted, err)
	}
	request.Release()
	if err := <-done; !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
	g := r.next.granted(t)
	rises(t, r.holder, g)
	if g.Lease() == r.holder.Lease() {
		t.Error("the session goes on though its key was deleted")
	}
	if arrives(t, r.txns.last(t, handsOn)) {
		t.Error("a late copy of the hand-on applied")
	}
	release(t, g)
}

func TestHandOnOnALeaseThatHasEnded(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	next := ask(t, c, "orders")
	other := newCoordinator(t, etcd.Client(), steady)
	request := w.Hold("Txn", of(handsOn))
	done := make(chan error, 1)
	go func() { done <- g.Release(within(t, patience)) }()
	held(t, request)
	etcd.Expire(t, g)
	between := acquire(t, other, "orders")
	request.Release()
	if err := <-done; !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
	queued(t, client, "orders", 2) // the next goroutine stands in line anew
	stands(t, client, between)
	next.waits(t)
	release(t, between)
	last := next.granted(t)
	rises(t, between, last)
	release(t, last)
}

// No key is ever put over another, so a token is always the create revision.
func TestHandOnNeverOverwritesAKey(t *testing.T) {
	t.Parallel()
	client, w := tapped(t, cluster(t, nil))
	c := newCoordinator(t, client, hasty)
	holder := acquire(t, c, "orders")
	next := ask(t, c, "orders")
	prefix, serial, _ := strings.Cut(holder.Owner(), "-")
	n, err := strconv.Atoi(serial)
	if err != nil || prefix != fmt.Sprintf("%x", holder.Lease()) {
		t.Fatalf("owner %q: %v", holder.Owner(), err)
	}
	planted := directory("orders") + fmt.Sprintf("%s-%d", prefix, n+1)
	hold := w.Hold("Txn", of(handsOn))
	done := make(chan error, 1)
	go func() { done <- holder.Release(within(t, patience)) }()
	held(t, hold)
	if _, err := client.Put(t.Context(), planted, "planted", clientv3.WithLease(holder.Lease())); err != nil {
		t.Fatal(err)
	}
	hold.Release()
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	g := next.granted(t)
	rises(t, holder, g)
	stands(t, client, g)
	if kvs := queue(t, client, "orders"); kvs[0].Version != 1 {
		t.Errorf("the planted key was put %d times", kvs[0].Version)
	}
	release(t, g)
}

func TestWaiterLeavesDuringAHandOn(t *testing.T) {
	for _, outcome := range []string{"clear", "lost"} {
		t.Run(outcome, func(t *testing.T) {
			r := newRelay(t)
			reply := r.w.HoldReply("Txn", of(handsOn))
			done := r.pass(t)
			held(t, reply)
			r.next.cancel()
			if err := r.next.failed(t); !errors.Is(err, context.Canceled) || !errors.Is(err, coordinator.ErrUnsettled) {
				t.Errorf("the waiter that left: %v", err)
			}
			if outcome == "lost" {
				reply.Fail(errLost)
			} else {
				reply.Release()
			}
			if err := <-done; err != nil {
				t.Errorf("release: %v", err)
			}
			queued(t, r.client, "orders", 0)
			release(t, acquire(t, r.c, "orders"))
		})
	}
}

// The key was put for a waiter that has left. It serves the next one, who is
// the first to be given its token.
func TestKeyOfAWaiterThatLeftPassesOn(t *testing.T) {
	r := newRelay(t)
	second := ask(t, r.c, "orders")
	reply := r.w.HoldReply("Txn", of(handsOn))
	done := r.pass(t)
	held(t, reply)
	r.next.cancel()
	if err := r.next.failed(t); !errors.Is(err, context.Canceled) {
		t.Errorf("the waiter that left: %v", err)
	}
	key := queue(t, r.client, "orders")[0]
	reply.Release()
	if err := <-done; err != nil {
		t.Errorf("release: %v", err)
	}
	g := second.granted(t)
	if g.Token().Revision() != key.CreateRevision {
		t.Errorf("token %s, the key that was put has %d", g.Token(), key.CreateRevision)
	}
	if r.txns.of(handsOn) != 1 || r.txns.of(enters) != 0 {
		t.Errorf("%v", r.txns.count)
	}
	r.only(t, g)
	// Once a handle carried the token, the next one has another.
	third := ask(t, r.c, "orders")
	release(t, g)
	last := third.granted(t)
	rises(t, g, last)
	release(t, last)
}

// The lock passes to another process when that came first, and comes back.
func TestProcessesTakeTurns(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	a := newCoordinator(t, client, steady)
	b := newCoordinator(t, etcd.Client(), steady)
	first := acquire(t, a, "orders")
	second, third := ask(t, a, "orders"), ask(t, a, "orders")
	there := ask(t, b, "orders")
	queued(t, client, "orders", 2)

	release(t, first)
	g := there.granted(t)
	rises(t, first, g)
	second.waits(t)
	again := ask(t, b, "orders")
	release(t, g)
	h := second.granted(t)
	rises(t, g, h)
	again.waits(t)
	release(t, h)
	g = again.granted(t)
	third.waits(t)
	rises(t, h, g)
	release(t, g)
	h = third.granted(t)
	rises(t, g, h)
	release(t, h)
}

// A full store refuses the put, not the delete: the lock must not stay taken.
func TestHandOnThatIsRefusedReleases(t *testing.T) {
	r := newRelay(t)
	r.w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if kind := transaction(call); kind == handsOn || kind == enters {
			return rpctypes.ErrGRPCNoSpace
		}
		return call.Send(ctx)
	})
	release(t, r.holder)
	if err := r.next.failed(t); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("waiter: %v", err)
	}
	queued(t, r.client, "orders", 0)
}

// The holder of a lock in the process is lost, not released: those behind it
// must be served all the same.
func TestWaiterBehindALostGrant(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, hasty)
	for _, end := range []string{"key deleted", "lease ended"} {
		g := acquire(t, c, "orders")
		next := ask(t, c, "orders")
		if end == "key deleted" {
			if _, err := client.Delete(t.Context(), g.Key()); err != nil {
				t.Fatal(err)
			}
		} else {
			etcd.Expire(t, g)
		}
		if err := ended(t, g); !errors.Is(err, coordinator.ErrLost) {
			t.Errorf("%s: %v", end, err)
		}
		h := next.granted(t)
		rises(t, g, h)
		release(t, h)
	}
	awaitQueue(t, client, "orders", "is empty", func(kvs []*mvccpb.KeyValue) bool { return len(kvs) == 0 })
}
