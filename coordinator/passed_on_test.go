package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// The key of a process stands for whoever of its goroutines is granted the lock,
// and says so, also if it was put for one that has left.
func TestKeyThatPassedOnSaysForWhom(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c, other := newCoordinator(t, client, steady), newCoordinator(t, etcd.Client(), steady)
	for name, handedOn := range map[string]bool{"after a wait": false, "after a hand-on": true} {
		t.Run(name, func(t *testing.T) {
			lock := "handed-on"
			if !handedOn {
				lock = "waited"
			}
			var mine, theirs *coordinator.Grant
			if handedOn { // behind another process, the new key does not own the lock
				mine = acquire(t, c, lock)
			} else {
				theirs = acquire(t, other, lock)
			}
			first := ask(t, c, lock, coordinator.Reason("first"), coordinator.Value([]byte("1")))
			second := ask(t, c, lock, coordinator.Reason("second"), coordinator.Value([]byte("2")))
			came := time.Now()
			if handedOn {
				behind := ask(t, other, lock)
				queued(t, client, lock, 2)
				release(t, mine)
				theirs = behind.granted(t)
			}
			queued(t, client, lock, 2)
			first.cancel()
			_ = first.failed(t)
			release(t, theirs)
			g := second.granted(t)
			var busy *coordinator.BusyError
			if _, err := c.TryAcquire(t.Context(), lock); !errors.As(err, &busy) || busy.Holder.Reason != "second" || string(busy.Holder.Value) != "2" {
				t.Errorf("in the process: %v", err)
			}
			eventually(t, "etcd says so too", func() bool {
				h := statusOf(t, other, lock).Holder
				return h.Reason == "second" && string(h.Value) == "2" && h.Token == g.Token() && came.Sub(h.Since).Abs() < time.Second
			})
			release(t, g)
		})
	}
	t.Run("and a value set at once stays", func(t *testing.T) {
		theirs := acquire(t, other, "set")
		first, second := ask(t, c, "set", coordinator.Reason("first")), ask(t, c, "set", coordinator.Reason("second"))
		queued(t, client, "set", 2)
		first.cancel()
		_ = first.failed(t)
		txns := count(w)
		release(t, theirs)
		g := second.granted(t)
		if err := g.SetValue(t.Context(), []byte("new")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if h := statusOf(t, other, "set").Holder; h.Reason != "second" || string(h.Value) != "new" {
				t.Errorf("holder %v with value %q", h, h.Value)
			}
			pause()
		}
		if n := txns.of(writes); n > 3 { // the third finds that one was faster
			t.Errorf("%d writes", n)
		}
		release(t, g)
	})
}

// A context of the caller's may do anything when it is asked for a value.
func TestContextWhoseValuesAskTheCoordinator(t *testing.T) {
	etcd := cluster(t, nil)
	c := newCoordinator(t, etcd.Client(), steady)
	curious := func() context.Context { return &curiousContext{within(t, patience), c} }
	g, err := c.Acquire(curious(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	bound, cancel := g.Bind(curious())
	defer cancel()
	next := make(chan *coordinator.Grant, 1)
	go func() {
		g, err := c.Acquire(curious(), "orders")
		if err != nil {
			t.Error(err)
		}
		next <- g
	}()
	eventually(t, "it waits", func() bool { return c.Health().Waiting == 1 })
	if err := g.Release(curious()); err != nil || bound.Err() == nil {
		t.Errorf("release: %v, bound context %v", err, bound.Err())
	}
	release(t, receive(t, next, "the next grant"))
	all, err := c.AcquireAll(curious(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Release(curious()); err != nil {
		t.Error(err)
	}
	if err := c.Do(curious(), "orders", func(context.Context, *coordinator.Grant) error { return nil }); err != nil {
		t.Error(err)
	}
}

type curiousContext struct {
	context.Context
	c *coordinator.Coordinator
}

func (c *curiousContext) Value(key any) any {
	_ = c.c.Health() // takes the coordinator's lock
	return c.Context.Value(key)
}
