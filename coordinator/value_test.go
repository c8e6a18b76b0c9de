package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// setsValue reports whether a request replaces the value of a lock key.
func setsValue(call *wire.Call) bool {
	txn, ok := call.Request.(*pb.TxnRequest)
	return ok && len(txn.Success) == 1 && strings.HasPrefix(string(txn.Success[0].GetRequestPut().GetKey()), locksPrefix)
}

func published(t *testing.T, c *coordinator.Coordinator, g *coordinator.Grant) string {
	t.Helper()
	st := statusOf(t, c, g.Lock())
	if st.Holder.Token != g.Token() {
		t.Fatalf("the lock is held by %v, not by %s", st.Holder, g.Token())
	}
	return string(st.Holder.Value)
}

func setValue(t *testing.T, g *coordinator.Grant, value string) {
	t.Helper()
	if err := g.SetValue(within(t, patience), []byte(value)); err != nil {
		t.Fatalf("set value %q: %v", value, err)
	}
}

func TestValueIsPublishedAndReplaced(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), identified("a"))
	b := newCoordinator(t, etcd.Client(), steady)
	mine := []byte("one")
	g := acquire(t, a, "orders", coordinator.Value(mine), coordinator.Reason("nightly"))
	mine[0] = 'x' // the caller's slice is the caller's
	if v := published(t, b, g); v != "one" {
		t.Errorf("published %q", v)
	}
	for _, want := range []string{"two", "", "three"} {
		setValue(t, g, want)
		if v := published(t, b, g); v != want {
			t.Errorf("published %q, want %q", v, want)
		}
		// The process itself, which does not ask etcd, tells the same.
		var busy *coordinator.BusyError
		for _, c := range []*coordinator.Coordinator{a, b} {
			if _, err := c.TryAcquire(within(t, patience), "orders"); !errors.As(err, &busy) || string(busy.Holder.Value) != want || busy.Holder.Reason != "nightly" {
				t.Errorf("%v with value %q, want %q", err, busy.Holder.Value, want)
			}
		}
	}
	stands(t, etcd.Client(), g) // the token has not changed, nor the lease
	release(t, g)
	if err := g.SetValue(within(t, patience), nil); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("after the release: %v", err)
	}
}

func TestValueHasABound(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	most := bytes.Repeat([]byte{0xff}, coordinator.MaxValue)
	if _, err := c.Acquire(t.Context(), "orders", coordinator.Value(append(most, 0))); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("%d bytes: %v", len(most)+1, err)
	}
	g := acquire(t, c, "orders", coordinator.Value(most))
	if published(t, c, g) != string(most) {
		t.Error("the largest value was changed")
	}
	if err := g.SetValue(t.Context(), append(most, 0)); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("set %d bytes: %v", len(most)+1, err)
	}
	if published(t, c, g) != string(most) {
		t.Error("the value was changed by what was refused")
	}
	release(t, g)
}

// An attempt of which no answer came may be applied at any later time. It must
// not undo what was set since.
func TestLateSetValueDoesNotOverwriteANewerOne(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	late := w.Postpone("Txn", wire.When(setsValue))
	if err := g.SetValue(within(t, patience), []byte("old")); !errors.Is(err, coordinator.ErrUnsettled) {
		t.Fatalf("without an answer: %v", err)
	}
	setValue(t, g, "new")
	if arrives(t, late.Call()) || published(t, c, g) != "new" {
		t.Errorf("the older value arrived late and stands: %q", published(t, c, g))
	}
	// The same when it was applied at once, and the newer one has to follow it.
	w.DropReply("Txn", 1, wire.When(setsValue))
	if err := g.SetValue(within(t, patience), []byte("applied")); !errors.Is(err, coordinator.ErrUnsettled) {
		t.Fatalf("without an answer: %v", err)
	}
	if v := published(t, c, g); v != "applied" {
		t.Fatalf("published %q", v)
	}
	setValue(t, g, "newest")
	if v := published(t, c, g); v != "newest" {
		t.Errorf("published %q", v)
	}
	// And an attempt of a tenure that is over changes nothing.
	late = w.Postpone("Txn", wire.When(setsValue))
	if err := g.SetValue(within(t, patience), []byte("old")); !errors.Is(err, coordinator.ErrUnsettled) {
		t.Fatalf("without an answer: %v", err)
	}
	release(t, g)
	next := acquire(t, c, "orders", coordinator.Value([]byte("next")))
	if arrives(t, late.Call()) || published(t, c, next) != "next" {
		t.Errorf("the value of an earlier tenure: %q", published(t, c, next))
	}
	queued(t, client, "orders", 1)
	release(t, next)
}

func TestSetValueAfterALossFailsAndIsNoticed(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady) // a proof is far away
	g := acquire(t, c, "orders")
	other := acquire(t, c, "others")
	var lost *coordinator.LostError
	if _, err := etcd.Client().Delete(t.Context(), g.Key()); err != nil {
		t.Fatal(err)
	}
	if err := g.SetValue(within(t, patience), nil); !errors.As(err, &lost) || lost.Reason != coordinator.LostKeyDeleted || lost.Token != g.Token() {
		t.Errorf("the key is gone: %v", err)
	}
	if !errors.Is(g.Err(), coordinator.ErrLost) || g.Context().Err() == nil || other.Err() != nil {
		t.Errorf("err %v, of another grant %v", g.Err(), other.Err())
	}
	queued(t, etcd.Client(), "orders", 0)
	etcd.Expire(t, other)
	if err := other.SetValue(within(t, patience), nil); !errors.As(err, &lost) {
		t.Errorf("the lease is gone: %v", err)
	}
	queued(t, etcd.Client(), "others", 0)
}

func TestSetValueEndsWithItsContext(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "orders")
	latch := w.Hold("Txn", wire.When(setsValue))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- g.SetValue(ctx, []byte("held")) }()
	held(t, latch)
	cancel()
	if err := receive(t, result, "SetValue"); !errors.Is(err, coordinator.ErrUnsettled) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	latch.Release()
	setValue(t, g, "again")
	release(t, g)
}
