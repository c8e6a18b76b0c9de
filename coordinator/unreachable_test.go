package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// What a call is given, and when it must have returned: after the time for its
// own cleaning up, and what a busy machine adds.
const (
	given = 2 * time.Second
	late  = given + coordinator.DefaultCleanupTimeout + 500*time.Millisecond
)

// fleet is many coordinators on one client, so that each call meets a state of
// its own.
type fleet struct {
	t      *testing.T
	client *clientv3.Client
	all    []*coordinator.Coordinator
}

func (f *fleet) open(ttl time.Duration) *coordinator.Coordinator {
	f.t.Helper()
	c, err := coordinator.New(f.client, &coordinator.Options{TTL: ttl})
	if err != nil {
		f.t.Fatal(err)
	}
	f.all = append(f.all, c)
	return c
}

// hold opens a coordinator that holds a lock of its own.
func (f *fleet) hold(ttl time.Duration) (*coordinator.Coordinator, *coordinator.Grant) {
	f.t.Helper()
	c := f.open(ttl)
	return c, acquire(f.t, c, fmt.Sprint("lock-", len(f.all)))
}

// call is one call that must fail, in time.
type call struct {
	name string
	make func(context.Context) error
}

func inTime(t *testing.T, calls []call) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range calls {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), given)
			defer cancel()
			start := time.Now()
			err := c.make(ctx)
			if took := time.Since(start); took > late {
				t.Errorf("%s returned after %v", c.name, took)
			}
			if err == nil {
				t.Errorf("%s returned no error", c.name)
			}
		})
	}
	all.Wait()
}

// errOf makes an error of a grant that should not be there.
func errOf(g *coordinator.Grant, err error) error {
	if err == nil {
		return g.Err()
	}
	return err
}

// first are the first calls on coordinators that have no session yet.
func (f *fleet) first() []call {
	a, b, c, d, e, closing := f.open(time.Second), f.open(time.Second), f.open(time.Second), f.open(time.Second), f.open(time.Second), f.open(time.Second)
	return []call{
		{"first acquire", func(ctx context.Context) error { return errOf(a.Acquire(ctx, "first")) }},
		{"first try", func(ctx context.Context) error { return errOf(b.TryAcquire(ctx, "first")) }},
		{"first ping", c.Ping},
		{"first do", func(ctx context.Context) error {
			return d.Do(ctx, "first", func(context.Context, *coordinator.Grant) error { return nil })
		}},
		{"first acquire, at most a second", func(ctx context.Context) error {
			return errOf(e.Acquire(context.WithoutCancel(ctx), "first", coordinator.WaitAtMost(time.Second)))
		}},
		{"close during the first acquire", func(ctx context.Context) error {
			waiter := ask(f.t, closing, "first")
			if err := closing.Close(ctx); err != nil && !errors.Is(err, coordinator.ErrUnsettled) {
				f.t.Errorf("close: %v", err)
			}
			<-waiter.done
			return waiter.err
		}},
	}
}

// later are calls on coordinators that hold locks, and on their grants.
func (f *fleet) later(ttl time.Duration) []call {
	_, taken := f.hold(ttl)
	acquiring, _ := f.hold(ttl)
	trying, _ := f.hold(ttl)
	pinging, _ := f.hold(ttl)
	_, released := f.hold(ttl)
	passing, passed := f.hold(ttl)
	next := ask(f.t, passing, passed.Lock())
	behind, _ := f.hold(ttl)
	standing := ask(f.t, behind, taken.Lock())
	queued(f.t, f.client, taken.Lock(), 2)
	closing, closed := f.hold(ttl)
	waiting := ask(f.t, closing, closed.Lock())

	doing, _ := f.hold(ttl)
	inside, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- doing.Do(f.t.Context(), fmt.Sprint("do-", ttl), func(context.Context, *coordinator.Grant) error {
			close(inside)
			<-finish
			return errMine
		})
	}()
	<-inside

	calls := []call{
		{"acquire", func(ctx context.Context) error { return errOf(acquiring.Acquire(ctx, "later")) }},
		{"acquire of a held lock", func(ctx context.Context) error { return errOf(acquiring.Acquire(ctx, taken.Lock())) }},
		{"try", func(ctx context.Context) error { return errOf(trying.TryAcquire(ctx, "later")) }},
		{"ping", pinging.Ping},
		{"release", released.Release},
		{"release with a waiter behind", passed.Release},
		{"waiting for that", func(ctx context.Context) error {
			defer context.AfterFunc(ctx, next.cancel)()
			<-next.done
			return next.err
		}},
		{"waiting behind another process", func(ctx context.Context) error {
			defer context.AfterFunc(ctx, standing.cancel)()
			<-standing.done
			return standing.err
		}},
		{"close", closing.Close},
		{"waiting until closed", func(context.Context) error {
			<-waiting.done
			return waiting.err
		}},
		{"holding until closed", func(context.Context) error {
			<-closed.Context().Done()
			return closed.Err()
		}},
		{"do, whose function returns", func(context.Context) error {
			close(finish)
			return <-done
		}},
	}
	for i := range calls {
		calls[i].name = fmt.Sprintf("TTL %v: %s", ttl, calls[i].name)
	}
	return calls
}

// close closes all coordinators and looks for what they left.
func (f *fleet) close() {
	f.t.Helper()
	var all sync.WaitGroup
	for _, c := range f.all {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(f.t.Context(), given)
			defer cancel()
			start := time.Now()
			if err := c.Close(ctx); err != nil && !errors.Is(err, coordinator.ErrUnsettled) {
				f.t.Errorf("close: %v", err)
			}
			if took := time.Since(start); took > late {
				f.t.Errorf("close returned after %v", took)
			}
		})
	}
	all.Wait()
	eventually(f.t, "no goroutine is left", func() bool { return goroutines(f.t) == "" })
}

// etcd is stopped with its sockets open, or has died, or was never there. Every
// call ends with its context all the same, cleaning up included.
func TestNobodyWaitsForAServerThatDoesNotAnswer(t *testing.T) {
	long := 5 * time.Second // the session outlives the calls
	for name, silence := range map[string]func(*testing.T, *embedded.Cluster){
		"stopped": func(t *testing.T, etcd *embedded.Cluster) { etcd.Pause(t) },
		"dead":    func(t *testing.T, etcd *embedded.Cluster) { etcd.Kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, &embedded.Options{Process: true})
			label(t)
			f := &fleet{t: t, client: etcd.Client()}
			calls := append(f.first(), f.later(time.Second)...)
			calls = append(calls, f.later(long)...)
			silence(t, etcd)
			inTime(t, calls)
			f.close()
			if name != "stopped" {
				return
			}
			etcd.Resume(t)
			// Nobody could be told: the leases run out.
			eventually(t, "no lease is left", func() bool {
				leases, err := etcd.Client().Leases(t.Context())
				return err == nil && len(leases.Leases) == 0
			})
			nothingLeft(t, etcd.Client())
		})
	}
	t.Run("never there", func(t *testing.T) {
		t.Parallel()
		etcd := embedded.Start(t, nil)
		label(t)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{l.Addr().String()} })
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		f := &fleet{t: t, client: client}
		inTime(t, f.first())
		f.close()
	})
}

// The client is closed first, against the rules: nothing hangs, and nothing
// goes on.
func TestClientThatIsClosedFirst(t *testing.T) {
	etcd := embedded.Start(t, nil)
	label(t)
	client := etcd.NewClient(t)
	f := &fleet{t: t, client: client}
	calls := append(f.first(), f.later(time.Minute)...)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	inTime(t, calls)
	f.close()
}
