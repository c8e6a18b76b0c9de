package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// A late copy of an acquire can put its key back after the release. Nobody knows
// of it, and it is found with the next proof.
func TestGhostOfAFastAcquireIsRemoved(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	txns := count(w)
	kept := acquire(t, c, "kept")
	g := acquire(t, c, "orders")
	first := txns.last(t, enters)
	release(t, g)
	if !arrives(t, first) {
		t.Fatal("the late copy did not apply: this test is about nothing")
	}
	ghosted := time.Now()
	other := newCoordinator(t, etcd.Client(), steady)
	next := acquire(t, other, "orders")
	// A quarter of the TTL, and time for a machine that has other things to do.
	if took := time.Since(ghosted); took > 3*time.Second {
		t.Errorf("the ghost held the lock for %v", took)
	}
	release(t, next)
	if err := kept.Err(); err != nil {
		t.Errorf("another lock of the session: %v", err)
	}
	release(t, kept)
}

// Only what is known to be nobody's is removed, and only what has our form.
func TestAuditSparesWhatIsNotAGhost(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	txns := count(w)
	g := acquire(t, c, "held")
	lease := clientv3.WithLease(g.Lease())
	var foreign []string
	for _, key := range []string{
		directory("orders") + "somebody-else-1",
		directory("orders") + fmt.Sprintf("%x", g.Lease()), // as concurrency.Mutex has it
		directory("orders") + fmt.Sprintf("%x-01", g.Lease()),
		directory("orders") + fmt.Sprintf("below/%x-1", g.Lease()),
		coordinator.DefaultPrefix + fmt.Sprintf("marks/%x-1", g.Lease()),
		"elsewhere/" + fmt.Sprintf("%x-1", g.Lease()),
	} {
		if _, err := client.Put(t.Context(), key, "", lease); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, key)
	}
	// An acquire that is under way for longer than an audit takes: its key is
	// there, and no answer has come.
	reply := w.HoldReply("Txn", of(enters))
	a := ask(t, c, "under way")
	held(t, reply)
	audits := w.Calls("LeaseTimeToLive")
	eventually(t, "an audit", func() bool {
		return w.Calls("LeaseTimeToLive") > audits && w.Open("LeaseTimeToLive") == 0
	})
	reply.Release()
	under := a.granted(t)
	for _, key := range foreign {
		if resp, err := client.Get(t.Context(), key); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("%s was removed", key)
		}
	}
	if n := txns.of(removes); n != 0 {
		t.Errorf("%d keys were removed", n)
	}
	stands(t, client, under)
	stands(t, client, g)
	release(t, under)
	release(t, g)
}

// The list of a lease's keys comes from one member, which may be behind.
func TestAuditConfirmsWhatItsListLacks(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	g := acquire(t, c, "orders")
	lists := make(chan struct{}, 100)
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if reply, ok := call.Reply.(*pb.LeaseTimeToLiveResponse); ok {
			reply.Keys = nil
			lists <- struct{}{}
		}
		return err
	})
	for range 3 { // two audits are over when the third begins
		select {
		case <-lists:
		case <-time.After(patience):
			t.Fatal("no audit")
		}
	}
	if err := g.Err(); err != nil {
		t.Errorf("lost by a list that was behind: %v", err)
	}
	stands(t, client, g)
	release(t, g)
}

// Between the list of an audit and what it does about it, a lock can be
// released and acquired anew in the process.
func TestReleaseDuringAnAuditDisturbsNobody(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, hasty)
	first := acquire(t, c, "orders")
	list := w.Hold("LeaseTimeToLive")
	held(t, list)
	release(t, first)
	second := acquire(t, c, "orders")
	// The confirmation of what the list lacks is the last that the audit does.
	confirm := w.HoldReply("Range", wire.When(func(call *wire.Call) bool {
		return string(call.Request.(*pb.RangeRequest).Key) == first.Key()
	}))
	list.Release()
	select {
	case <-confirm.Arrived():
		confirm.Release()
	case <-time.After(500 * time.Millisecond): // it may know better than to ask
	}
	audits := w.Calls("LeaseTimeToLive")
	eventually(t, "a further audit", func() bool { return w.Calls("LeaseTimeToLive") > audits })

	stands(t, client, second)
	if err := second.Err(); err != nil {
		t.Fatal(err)
	}
	// The process still knows that it holds the lock: whoever else wants it
	// stands behind in the process and not behind an own key at etcd.
	txns := count(w)
	behind := ask(t, c, "orders")
	behind.waits(t)
	release(t, second)
	third := behind.granted(t)
	if txns.of(handsOn) != 1 || txns.of(enters) != 0 {
		t.Errorf("%d hand-ons and %d acquires: the process had forgotten that it held the lock", txns.of(handsOn), txns.of(enters))
	}
	release(t, third)
}

// An operator deletes the lock key of a holder whose lease lives on.
func TestDeletedLockKeyEndsItsGrantOnly(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	c := newCoordinator(t, client, hasty)
	other := acquire(t, c, "other")
	g := acquire(t, c, "orders")
	deleted := time.Now()
	if _, err := client.Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
		t.Errorf("reason: %v", err)
	}
	if took := time.Since(deleted); took > 3*time.Second {
		t.Errorf("noticed after %v", took)
	}
	if keys := queue(t, client, "orders"); len(keys) != 0 {
		t.Errorf("the key is back: %v", keys)
	}
	if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("release: %v", err)
	}
	next := acquire(t, c, "orders")
	rises(t, g, next)
	if err := other.Err(); err != nil || next.Lease() != other.Lease() {
		t.Errorf("another grant of the session: %v", err)
	}
	release(t, next)
	release(t, other)
}

// Where locks lie anywhere, the form of a key says little: a user's own key that
// is named after the grant's owner, on its lease, is not a ghost. One where this
// session had a lock still is.
func TestAuditOfDirectoriesSparesWhatLooksAlike(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	opts := hasty
	opts.Directory = below("/jobs/")
	c := newCoordinator(t, client, opts)
	g, used := acquire(t, c, "a"), acquire(t, c, "b")
	lease := clientv3.WithLease(g.Lease())
	ghost := "/jobs/b/" + used.Owner()
	release(t, used)
	users := []string{
		"/workers/" + g.Owner(),
		"/jobs/" + g.Owner(),
		"/jobs/c/" + g.Owner(), // where a lock might lie, and none did
		"/jobs/a/" + fmt.Sprintf("%x-%d", g.Lease(), 1_000_000),
	}
	for _, key := range append(users, ghost) {
		if _, err := client.Put(t.Context(), key, "http://me:80", lease); err != nil {
			t.Fatal(err)
		}
	}
	audits := w.Calls("LeaseTimeToLive")
	eventually(t, "the ghost is removed", func() bool {
		resp, err := client.Get(t.Context(), ghost)
		return err == nil && len(resp.Kvs) == 0
	})
	eventually(t, "another audit", func() bool {
		return w.Calls("LeaseTimeToLive") > audits+1 && w.Open("LeaseTimeToLive") == 0
	})
	for _, key := range users {
		if resp, err := client.Get(t.Context(), key); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("%s was removed", key)
		}
	}
	release(t, g)
}

// With thousands of keys a session lists them less often. An eviction, and the loss
// of the session key, are noticed with each proof all the same.
func TestEvictionIsNoticedSoonWithManyKeys(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, operator := newCoordinator(t, client, hasty), newCoordinator(t, etcd.Client(), steady)
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if reply, ok := call.Reply.(*pb.LeaseTimeToLiveResponse); ok { // of a session with many more keys
			for i := range 20_000 {
				reply.Keys = append(reply.Keys, fmt.Appendf(nil, "elsewhere/%d", i))
			}
		}
		return err
	})
	g, other := acquire(t, c, "orders"), acquire(t, c, "others")
	listed := func() {
		before := w.Calls("LeaseTimeToLive")
		eventually(t, "a list", func() bool { return w.Calls("LeaseTimeToLive") > before && w.Open("LeaseTimeToLive") == 0 })
	}
	listed()
	lists := w.Calls("LeaseTimeToLive")
	if err := operator.Evict(t.Context(), g.Token(), "hangs"); err != nil {
		t.Fatal(err)
	}
	var lost *coordinator.LostError
	if err := ended(t, g); !errors.As(err, &lost) || lost.Reason != coordinator.LostEvicted {
		t.Errorf("the holder is told %v", err)
	}
	if other.Err() != nil {
		t.Errorf("another grant: %v", other.Err())
	}
	if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix+fmt.Sprintf("sessions/%x", g.Lease())); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, other); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted {
		t.Errorf("without a session key: %v", err)
	}
	if n := w.Calls("LeaseTimeToLive"); n > lists+1 { // the one of keyGone
		t.Errorf("%d lists meanwhile: this test is about nothing", n-lists)
	}
}
