package coordinator_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newCoordinator returns a coordinator that is closed with the test, and whose
// keys are then looked for.
func newCoordinator(t *testing.T, client *clientv3.Client, opts *coordinator.Options) *coordinator.Coordinator {
	t.Helper()
	c, err := coordinator.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// within bounds a step of a test that must not take long.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t *testing.T, c *coordinator.Coordinator, lock string, opts ...coordinator.AcquireOption) *coordinator.Grant {
	t.Helper()
	g, err := c.Acquire(within(t, 10*time.Second), lock, opts...)
	if err != nil {
		t.Fatalf("acquire %q: %v", lock, err)
	}
	return g
}

func release(t *testing.T, g *coordinator.Grant) {
	t.Helper()
	if err := g.Release(within(t, 10*time.Second)); err != nil {
		t.Fatalf("release %s: %v", g.Token(), err)
	}
}

func TestTokensRiseFromHolderToHolder(t *testing.T) {
	etcd := embedded.Start(t, nil)
	a := newCoordinator(t, etcd.Client(), nil)
	b := newCoordinator(t, etcd.Client(), nil)
	last := acquire(t, a, "orders")
	if last.Err() != nil || last.TrustedFor() <= 0 {
		t.Fatalf("a new grant: err %v, trusted for %v", last.Err(), last.TrustedFor())
	}
	var busy *coordinator.BusyError
	if _, err := b.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Token != last.Token() {
		t.Fatalf("try on a held lock: %v", err)
	}
	if _, err := a.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Token != last.Token() {
		t.Fatalf("try on a lock held by the same process: %v", err)
	}
	for i := range 20 {
		c := []*coordinator.Coordinator{a, b}[i%2]
		next := make(chan *coordinator.Grant)
		go func() {
			g, err := c.Acquire(t.Context(), "orders")
			if err != nil {
				t.Error(err)
			}
			next <- g
		}()
		release(t, last)
		g := <-next
		if order, err := g.Token().Compare(last.Token()); err != nil || order <= 0 {
			t.Fatalf("token %s after %s: %d, %v", g.Token(), last.Token(), order, err)
		}
		last = g
	}
	release(t, last)
}

func TestManyGoroutinesOneLock(t *testing.T) {
	etcd := embedded.Start(t, nil)
	a := newCoordinator(t, etcd.Client(), nil)
	b := newCoordinator(t, etcd.Client(), nil)
	var holders atomic.Int32
	var last atomic.Int64
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			c := []*coordinator.Coordinator{a, b}[i%2]
			g, err := c.Acquire(within(t, 60*time.Second), "orders")
			if err != nil {
				t.Error(err)
				return
			}
			if n := holders.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			if token := g.Token().Int64(); last.Swap(token) >= token {
				t.Errorf("token %d came late", token)
			}
			holders.Add(-1)
			if err := g.Release(within(t, 60*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
