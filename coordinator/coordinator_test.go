package coordinator_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestMain(m *testing.M) {
	if work := os.Getenv(workerVariable); work != "" {
		worker(work) // this is the child process of a test
		return
	}
	// Tests that run in parallel wait, and do little else: as many of them as
	// there are processors would be few.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := parallel.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a step of a test may take that takes milliseconds on an
// idle machine.
const patience = 20 * time.Second

// long keeps a test out of a quick run: one that takes as long as many others
// together, because it goes through all faults or needs thousands of locks.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes as long as many other tests together: not in a quick run (-short)")
	}
}

// steady is for tests that are not about time: nothing expires while they run.
var steady = coordinator.Options{TTL: time.Minute}

// hasty is for tests that are about time.
var hasty = coordinator.Options{TTL: 3 * time.Second}

// cluster runs an etcd for a test. When the test's coordinators have been
// closed, no key and no lease of theirs may be left, and no goroutine.
func cluster(t *testing.T, opts *embedded.Options) *embedded.Cluster {
	t.Helper()
	etcd := embedded.Start(t, opts)
	label(t)
	t.Cleanup(func() { nothingLeft(t, etcd.Client()) })
	return etcd
}

// label marks all goroutines that this one starts from now on.
func label(t *testing.T) {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
}

func nothingLeft(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	resp, err := client.Get(ctx, coordinator.DefaultPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Errorf("what is left: %v", err)
		return
	}
	for _, kv := range resp.Kvs {
		if string(kv.Key) != coordinator.DefaultPrefix+"epoch" {
			t.Errorf("key left: %s", kv.Key)
		}
	}
	leases, err := client.Leases(ctx)
	if err != nil {
		t.Errorf("what is left: %v", err)
		return
	}
	for _, l := range leases.Leases {
		// The list is what one member has heard of so far; the leader knows.
		if now, err := client.TimeToLive(ctx, l.ID); err == nil && now.TTL > 0 {
			t.Errorf("lease left: %x", l.ID)
		}
	}
	for left := goroutines(t); left != ""; left = goroutines(t) {
		if ctx.Err() != nil {
			t.Errorf("goroutines left:\n%s", left)
			return
		}
		pause()
	}
}

// goroutines returns the goroutines that run code of the coordinator on behalf
// of this test: they inherit its label.
func goroutines(t *testing.T) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(record, `{"test":"`+t.Name()+`"}`) && strings.Contains(record, "/etcd-fence/coordinator.") {
			found.WriteString(record + "\n")
		}
	}
	return found.String()
}

// pause is for what cannot be waited for.
func pause() { time.Sleep(5 * time.Millisecond) }

// eventually waits for what is no event.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); pause() {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// tapped returns a client whose requests can be counted and disturbed. No watch
// of it may be left when the coordinators on it have been closed.
func tapped(t *testing.T, etcd *embedded.Cluster, adjust ...func(*clientv3.Config)) (*clientv3.Client, *wire.Wire) {
	t.Helper()
	w := wire.New()
	client := etcd.NewClient(t, append(adjust, func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, w.DialOptions()...)
	})...)
	t.Cleanup(func() {
		eventually(t, "no watch is left", func() bool { return w.Open("Watch") == 0 })
	})
	return client, w
}

// newCoordinator returns a coordinator that is closed with the test.
func newCoordinator(t *testing.T, client *clientv3.Client, opts coordinator.Options) *coordinator.Coordinator {
	t.Helper()
	c, err := coordinator.New(client, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// within bounds a step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// keep keeps a grant that a test may hold without looking at it again from being
// forgotten, and so released.
func keep(t *testing.T, g any) { t.Cleanup(func() { runtime.KeepAlive(g) }) }

// acquire returns a grant that lasts until it is released or lost.
func acquire(t *testing.T, c *coordinator.Coordinator, lock string, opts ...coordinator.AcquireOption) *coordinator.Grant {
	t.Helper()
	g := obtain(t, c, lock, opts...)
	keep(t, g)
	return g
}

// obtain returns a grant that can be forgotten.
func obtain(t *testing.T, c *coordinator.Coordinator, lock string, opts ...coordinator.AcquireOption) *coordinator.Grant {
	t.Helper()
	g, err := c.Acquire(within(t, patience), lock, opts...)
	if err != nil {
		t.Fatalf("acquire %q: %v", lock, err)
	}
	if err := g.Err(); err != nil {
		t.Fatalf("acquire %q returned a grant that has ended: %v", lock, err)
	}
	return g
}

func release(t *testing.T, g *coordinator.Grant) {
	t.Helper()
	if err := g.Release(within(t, patience)); err != nil {
		t.Fatalf("release %s: %v", g.Token(), err)
	}
}

// ended waits for the end of a grant and returns its reason.
func ended(t *testing.T, g *coordinator.Grant) error {
	t.Helper()
	select {
	case <-g.Context().Done():
		return context.Cause(g.Context())
	case <-time.After(patience):
		t.Fatalf("grant %s has not ended", g.Token())
		return nil
	}
}

// rises fails unless the later grant has the larger token.
func rises(t *testing.T, earlier, later *coordinator.Grant) {
	t.Helper()
	if order, err := later.Token().Compare(earlier.Token()); err != nil || order <= 0 {
		t.Fatalf("token %s after %s: %d, %v", later.Token(), earlier.Token(), order, err)
	}
}

// asking is an Acquire that has joined the queue of its process.
type asking struct {
	cancel context.CancelFunc
	done   chan struct{}
	grant  *coordinator.Grant
	err    error
}

// ask starts an Acquire and returns when it waits.
func ask(t *testing.T, c *coordinator.Coordinator, lock string, opts ...coordinator.AcquireOption) *asking {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	waits := &waitContext{Context: ctx, waiting: make(chan struct{})}
	a := &asking{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.grant, a.err = c.Acquire(waits, lock, opts...)
	}()
	select {
	case <-waits.waiting:
	case <-a.done:
	}
	return a
}

// waitContext tells when somebody begins to wait for its end, which Acquire
// does once it has joined the queue.
type waitContext struct {
	context.Context
	once    sync.Once
	waiting chan struct{}
}

func (c *waitContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waiting) })
	return c.Context.Done()
}

// granted returns the grant that the Acquire ended with.
func (a *asking) granted(t *testing.T) *coordinator.Grant {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Fatal("the waiter was not granted the lock")
	}
	if a.err != nil {
		t.Fatalf("waiter: %v", a.err)
	}
	if err := a.grant.Err(); err != nil {
		t.Fatalf("the waiter was returned a grant that has ended: %v", err)
	}
	keep(t, a.grant)
	return a.grant
}

// failed returns the error that the Acquire ended with.
func (a *asking) failed(t *testing.T) error {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Fatal("the waiter did not return")
	}
	if a.err == nil {
		t.Fatalf("the waiter was granted %s", a.grant.Token())
	}
	return a.err
}

// waits fails if the Acquire has ended.
func (a *asking) waits(t *testing.T) {
	t.Helper()
	select {
	case <-a.done:
		t.Fatalf("the waiter is done: %v", a.err)
	default:
	}
}

func directory(lock string) string { return coordinator.DefaultPrefix + "locks/" + lock + "/" }

// queue returns the keys of a lock, the owner's first.
func queue(t *testing.T, client *clientv3.Client, lock string) []*mvccpb.KeyValue {
	t.Helper()
	return awaitQueue(t, client, lock, "", func([]*mvccpb.KeyValue) bool { return true })
}

// awaitQueue waits until the keys of a lock are as they should be.
func awaitQueue(t *testing.T, client *clientv3.Client, lock, what string, ok func([]*mvccpb.KeyValue) bool) []*mvccpb.KeyValue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for {
		resp, err := client.Get(ctx, directory(lock), clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			t.Fatalf("queue of %q: %s: %v", lock, what, err)
		}
		if ok(resp.Kvs) {
			return resp.Kvs
		}
		watching, stop := context.WithCancel(ctx)
		<-client.Watch(watching, directory(lock), clientv3.WithPrefix(), clientv3.WithRev(resp.Header.Revision+1))
		stop()
	}
}

// queued waits until the queue of a lock has so many keys.
func queued(t *testing.T, client *clientv3.Client, lock string, n int) []*mvccpb.KeyValue {
	t.Helper()
	return awaitQueue(t, client, lock, "its length", func(kvs []*mvccpb.KeyValue) bool { return len(kvs) == n })
}

// stands fails unless the grant's key is at etcd as its token says.
func stands(t *testing.T, client *clientv3.Client, g *coordinator.Grant) {
	t.Helper()
	resp, err := client.Get(t.Context(), g.Key())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != g.Token().Revision() || resp.Kvs[0].Lease != int64(g.Lease()) {
		t.Fatalf("grant %s on lease %x: etcd has %v", g.Token(), g.Lease(), resp.Kvs)
	}
}

// neverBack fails if the key existed at any moment since it was deleted.
func neverBack(t *testing.T, client *clientv3.Client, key string, deleted int64) {
	t.Helper()
	now, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for revision := deleted; revision <= now.Header.Revision; revision++ {
		if then, err := client.Get(t.Context(), key, clientv3.WithRev(revision)); err != nil || len(then.Kvs) != 0 {
			t.Errorf("%s, deleted at %d, at %d: %v, %v", key, deleted, revision, then.Kvs, err)
			return
		}
	}
}

// lines calls f for each line of a reader, until it ends.
func lines(r *bufio.Scanner, f func(string)) {
	for r.Scan() {
		f(r.Text())
	}
}
