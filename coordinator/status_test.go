package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// perPage is how many keys Status and List read at most with one request.
const perPage = 500

func statusOf(t *testing.T, c *coordinator.Coordinator, lock string) coordinator.Status {
	t.Helper()
	st, err := c.Status(within(t, patience), lock)
	if err != nil {
		t.Fatalf("status of %q: %v", lock, err)
	}
	return st
}

// list returns what List yields, by directory, as "holder, waiting...".
func list(t *testing.T, c *coordinator.Coordinator, prefix string) []coordinator.Status {
	t.Helper()
	var all []coordinator.Status
	for st, err := range c.List(within(t, patience), prefix) {
		if err != nil {
			t.Fatalf("list %q: %v", prefix, err)
		}
		all = append(all, st)
	}
	return all
}

// foreign puts keys that nobody made who knows of this package, in transactions
// of a given size, and deletes them when the test ends.
func foreign(t *testing.T, client *clientv3.Client, each int, keys ...string) {
	t.Helper()
	for part := range slices.Chunk(keys, each) {
		var puts []clientv3.Op
		for _, key := range part {
			puts = append(puts, clientv3.OpPut(key, ""))
		}
		if _, err := client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		for part := range slices.Chunk(keys, 100) {
			var removals []clientv3.Op
			for _, key := range part {
				removals = append(removals, clientv3.OpDelete(key))
			}
			if _, err := client.Txn(ctx).Then(removals...).Commit(); err != nil {
				t.Error(err)
			}
		}
	})
}

// tokenOf is the token that a lock key would have if it were that of a grant.
func tokenOf(t *testing.T, client *clientv3.Client, lock, key string) revisionfence.Token {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", key, resp, err)
	}
	token, err := revisionfence.FromKey(lock, 0, resp.Kvs[0])
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// queuedIn waits until a directory has so many keys.
func queuedIn(t *testing.T, client *clientv3.Client, dir string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d keys in %s", n, dir), func() bool {
		resp, err := client.Get(t.Context(), dir, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count == int64(n)
	})
}

func identities(holders []coordinator.Holder) []string {
	var names []string
	for _, h := range holders {
		names = append(names, h.Identity)
	}
	return names
}

func TestStatusShowsTheQueueWithOneRowForEachProcess(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	a := newCoordinator(t, etcd.Client(), identified("a"))
	b := newCoordinator(t, etcd.Client(), identified("b"))
	c := newCoordinator(t, etcd.Client(), identified("c"))
	if st := statusOf(t, a, "orders"); !st.Holder.IsZero() || len(st.Waiting) != 0 || st.Lock != "orders" || st.Directory != directory("orders") || st.Revision == 0 {
		t.Errorf("a free lock: %+v", st)
	}
	g := acquire(t, a, "orders", coordinator.Reason("nightly"))
	var waiting []*asking
	for i, process := range []*coordinator.Coordinator{b, b, b, a, a, c} {
		waiting = append(waiting, ask(t, process, "orders"))
		if i == 0 {
			queued(t, etcd.Client(), "orders", 2)
		}
	}
	queued(t, etcd.Client(), "orders", 3)
	st := statusOf(t, c, "orders")
	if st.Holder.Token != g.Token() || st.Holder.Identity != "a" || st.Holder.Reason != "nightly" {
		t.Errorf("holder %v, want %s", st.Holder, g.Token())
	}
	if got := identities(st.Waiting); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("waiting %v, want b and c", got)
	}
	if len(st.Strays()) != 0 {
		t.Errorf("strays %v", st.Strays())
	}
	for _, w := range waiting {
		w.cancel()
		_ = w.failed(t)
	}
	release(t, g)
	queued(t, etcd.Client(), "orders", 0)
}

func TestForeignKeysAreReportedAndNeverDeleted(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	stray := directory("orders") + "left-by-hand"
	foreign(t, client, 1, stray)
	a := newCoordinator(t, client, identified("a"))
	session, err := concurrency.NewSession(client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, strings.TrimSuffix(directory("orders"), "/"))
	locking, stop := context.WithCancel(t.Context())
	locked := make(chan struct{})
	go func() {
		defer close(locked)
		_ = mutex.Lock(locking)
	}()
	queued(t, client, "orders", 2)
	next := ask(t, a, "orders")
	queued(t, client, "orders", 3)

	var busy *coordinator.BusyError
	if _, err := newCoordinator(t, client, steady).TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) ||
		busy.Holder.Key != stray || busy.Holder.Lease != 0 || !strings.Contains(err.Error(), stray) || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("the error does not name the key in the way: %v", err)
	}
	st := statusOf(t, a, "orders")
	if st.Holder.Key != stray || st.Holder.Lease != 0 || !st.Holder.Token.IsZero() || len(st.Waiting) != 2 {
		t.Errorf("status %+v", st)
	}
	strays := st.Strays()
	if len(strays) != 2 || strays[0].Key != stray || strays[1].Key != directory("orders")+fmt.Sprintf("%x", session.Lease()) || strays[1].Lease != session.Lease() {
		t.Errorf("strays %v", strays)
	}
	// They hold the lock, whatever happens to ours.
	next.cancel()
	if err := next.failed(t); !errors.As(err, &busy) || busy.Holder.Key != stray {
		t.Errorf("the waiter is told %v", err)
	}
	if err := a.Evict(t.Context(), tokenOf(t, client, "orders", stray), "in the way"); !errors.As(err, &busy) {
		t.Errorf("evict a key that is no grant: %v", err)
	}
	queued(t, client, "orders", 2)
	stop()
	<-locked
	queued(t, client, "orders", 1)
}

func TestStatusIsPagedAtOneRevision(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	// All of one transaction have one create revision, and the edges of pages
	// fall among them.
	const each, txns = 128, 10
	var keys []string
	for i := range each * txns {
		keys = append(keys, fmt.Sprintf("%skey-%05d", directory("orders"), each*txns-i))
	}
	foreign(t, etcd.Client(), each, keys...)

	var requests int
	var once sync.Once
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		requests++
		err := call.Send(ctx)
		once.Do(func() { // between the pages
			if _, err := etcd.Client().Delete(t.Context(), directory("orders"), clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
			if _, err := etcd.Client().Put(t.Context(), directory("orders")+"new", ""); err != nil {
				t.Error(err)
			}
		})
		return err
	})
	st := statusOf(t, c, "orders")
	var got []string
	for _, h := range append([]coordinator.Holder{st.Holder}, st.Waiting...) {
		got = append(got, h.Key)
	}
	if len(got) != len(keys) {
		t.Errorf("%d keys of %d", len(got), len(keys))
	}
	slices.Sort(got)
	slices.Sort(keys)
	if diff := cmp.Diff(keys, got); diff != "" {
		t.Errorf("keys (-want +got):\n%.500s", diff)
	}
	// A page holds three whole transactions, and what remains fills a fourth.
	if want := 4; requests != want {
		t.Errorf("%d requests for %d keys, want %d", requests, len(keys), want)
	}
	if _, err := etcd.Client().Delete(t.Context(), directory("orders")+"new"); err != nil {
		t.Fatal(err)
	}
}

// A server can be told to allow transactions that fill a page with keys of one
// create revision.
func TestStatusOfMoreKeysOfOneRevisionThanAPageHolds(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, &embedded.Options{Config: func(c *embed.Config) { c.MaxTxnOps = 2000 }})
	c := newCoordinator(t, etcd.Client(), steady)
	var keys []string
	for i := range 2*perPage + 100 {
		keys = append(keys, fmt.Sprintf("%skey-%05d", directory("orders"), i))
	}
	foreign(t, etcd.Client(), 1, keys[0])
	foreign(t, etcd.Client(), len(keys), keys[1:]...)
	if st := statusOf(t, c, "orders"); len(st.Waiting)+1 != len(keys) || st.Holder.Key != keys[0] {
		t.Errorf("%d keys of %d, first %s", len(st.Waiting)+1, len(keys), st.Holder.Key)
	}
}

func TestListTellsNamesApart(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client := etcd.Client()
	a := newCoordinator(t, client, identified("a"))
	b := newCoordinator(t, client, identified("b"))
	names := []string{"a", "a/b", "ab", "a%2Fb", "a b", "b", "é", "..", "a//"}
	held := make(map[string]*coordinator.Grant)
	for _, name := range names {
		held[name] = acquire(t, a, name)
	}
	waits := ask(t, b, "a/b")
	// Keys where no lock can have them, and beside the queues.
	locks := coordinator.DefaultPrefix + "locks/"
	foreign(t, client, 1, locks+"a", locks+"/key", locks+"%zz/key", locks+"%61/key", locks+"aa%ff/key")
	queuedIn(t, client, locks+"a%2Fb/", 2)

	got := make(map[string]int)
	var order, odd []string
	for _, st := range list(t, a, "") {
		order = append(order, st.Directory)
		if st.Lock == "" {
			odd = append(odd, st.Directory)
			if len(st.Strays()) != 1 || len(st.Waiting) != 0 {
				t.Errorf("%s: %+v", st.Directory, st)
			}
			continue
		}
		got[st.Lock]++
		want := 0
		if st.Lock == "a/b" {
			want = 1
		}
		if g := held[st.Lock]; g == nil || st.Holder.Token != g.Token() || len(st.Waiting) != want || len(st.Strays()) != 0 {
			t.Errorf("%q: %+v", st.Lock, st)
		}
	}
	for _, name := range names {
		if got[name] != 1 {
			t.Errorf("%q was listed %d times", name, got[name])
		}
	}
	wantOdd := []string{locks + "%61/", locks + "%zz/", locks + "/", locks + "a", locks + "aa%ff/"}
	slices.Sort(odd)
	if diff := cmp.Diff(wantOdd, odd); diff != "" {
		t.Errorf("directories of no lock (-want +got):\n%s", diff)
	}
	if !slices.IsSorted(order) {
		t.Errorf("order %q", order)
	}

	for prefix, want := range map[string][]string{
		"a":    {"a b", "a%2Fb", "a//", "a/b", "ab", "a"},
		"a/":   {"a//", "a/b"},
		"a/b":  {"a/b"},
		"b":    {"b"},
		"\xc3": {"é"}, // a prefix may end anywhere
		".":    {".."},
		"none": nil,
	} {
		var got []string
		for _, st := range list(t, b, prefix) {
			if st.Lock != "" {
				got = append(got, st.Lock)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("prefix %q (-want +got):\n%s", prefix, diff)
		}
	}
	for st, err := range a.List(t.Context(), "") { // left at once
		if err != nil || st.Directory == "" {
			t.Errorf("%+v, %v", st, err)
		}
		break
	}
	waits.cancel()
	_ = waits.failed(t)
}

func TestListIsPagedAcrossQueuesAtOneRevision(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	// The queues of three locks: the first reaches over a page, the second ends
	// with one, the third is short.
	sizes := map[string]int{"a": perPage + 10, "b": perPage - 10, "c": 7}
	total := 0
	for name, each := range map[string]int{"a": 100, "b": 100, "c": 1} {
		var keys []string
		for i := range sizes[name] {
			// The order of names is not the order of queueing.
			keys = append(keys, fmt.Sprintf("%skey-%05d", directory(name), sizes[name]-i))
		}
		foreign(t, etcd.Client(), each, keys...)
		total += len(keys)
	}
	requests := 0
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if requests++; requests == 1 {
			if _, err := etcd.Client().Delete(t.Context(), coordinator.DefaultPrefix+"locks/", clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
		}
		return err
	})
	got := make(map[string]int)
	var revision int64
	for _, st := range list(t, c, "") {
		got[st.Lock] += 1 + len(st.Waiting)
		if revision == 0 {
			revision = st.Revision
		}
		if st.Revision != revision {
			t.Errorf("%s at revision %d, the first at %d", st.Lock, st.Revision, revision)
		}
		if first, last := st.Holder.Key, st.Waiting[len(st.Waiting)-1].Key; st.Lock == "c" && (first != directory("c")+"key-00007" || last != directory("c")+"key-00001") {
			t.Errorf("the queue of c goes from %s to %s", first, last)
		}
	}
	if diff := cmp.Diff(sizes, got); diff != "" {
		t.Errorf("keys of each lock (-want +got):\n%s", diff)
	}
	if want := (total + perPage - 1) / perPage; requests != want {
		t.Errorf("%d requests for %d keys, want %d", requests, total, want)
	}
}

func TestListAcrossACompactionFails(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	var keys []string
	for i := range 2 * perPage {
		keys = append(keys, fmt.Sprintf("%s%d/key", coordinator.DefaultPrefix+"locks/", i))
	}
	foreign(t, etcd.Client(), 100, keys...)
	compact := func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if resp, ok := call.Reply.(*pb.TxnResponse); ok && err == nil {
			if _, err := etcd.Client().Put(ctx, "moves the revision", ""); err != nil {
				t.Error(err)
			}
			if _, err := etcd.Client().Compact(ctx, resp.Header.Revision+1); err != nil {
				t.Error(err)
			}
		}
		return err
	}
	w.OnUnary(compact)
	n, failed := 0, 0
	for _, err := range c.List(within(t, patience), "") {
		switch {
		case failed > 0:
			t.Error("it went on after the error")
		case errors.Is(err, rpctypes.ErrCompacted):
			failed++
		case err != nil:
			t.Error(err)
		default:
			n++
		}
	}
	if failed != 1 || n == 0 || n >= 2*perPage {
		t.Errorf("%d locks, %d errors", n, failed)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(over, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// brisk is for tests in which a session has to notice something within a proof
// interval, and to live on.
var brisk = coordinator.Options{TTL: 3 * time.Second}
