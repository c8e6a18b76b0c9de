package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/memguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// must is for examples of which every step but one has to work.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// example starts an etcd for an example, and what most of them use.
func example() (ctx context.Context, client *clientv3.Client, stop func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	etcd := must(embedded.Run(ctx, nil))
	return ctx, etcd.Client(), func() {
		_ = etcd.Close()
		cancel()
	}
}

func Example_order() {
	// docs begin
	older, _ := revisionfence.Parse("9@stock/42")
	newer, _ := revisionfence.Parse("10@stock/42")
	other, _ := revisionfence.Parse("11@stock/43")

	fmt.Println(older.Compare(newer)) // as numbers: as text, 9 would be the larger
	fmt.Println(older.Compare(other))
	// docs end

	// Output:
	// -1 <nil>
	// 0 compare "9@stock/42" with "11@stock/43": tokens of different locks have no order
}

func Example_grantRaiseReadAct() {
	ctx, client, stop := example()
	defer stop()
	c := must(coordinator.New(client, nil))
	defer c.Close(ctx)
	guard := must(etcdguard.New(client, nil))
	must(client.Put(ctx, "stock/42", "10"))

	// docs begin
	sell := func(ctx context.Context, grant *coordinator.Grant) error {
		kv, err := guard.KV(grant) // a clientv3.KV that carries the token
		if err != nil {
			return err
		}
		stock, err := kv.Get(ctx, "stock/42") // read
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(stock.Kvs[0].Value))
		if err != nil {
			return err
		}
		_, err = kv.Put(ctx, "stock/42", strconv.Itoa(n-1)) // act
		return err
	}
	raise := func(ctx context.Context, token revisionfence.Token) error {
		return guard.Advance(ctx, token.Lock(), token)
	}
	err := c.Do(ctx, "stock/42", sell, coordinator.Raise(raise)) // grant
	// docs end
	if err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%s\n", must(client.Get(ctx, "stock/42")).Kvs[0].Value)
	// Output: 9
}

// TestWhatIsNoToken: of all numbers that come with a lock, the create revision
// alone rises with each grant and stays the same under one.
func TestWhatIsNoToken(t *testing.T) {
	etcd := cluster(t)
	client, ctx := etcd.Client(), within(t, patience)
	session := func() *concurrency.Session {
		s, err := concurrency.NewSession(client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	m1, m2 := concurrency.NewMutex(session(), "/jobs/report"), concurrency.NewMutex(session(), "/jobs/report")
	if err := m1.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() { locked <- m2.Lock(ctx) }()
	for {
		queue, err := client.Get(ctx, "/jobs/report/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if len(queue.Kvs) == 2 {
			break
		}
	}
	first, err := etcdguard.FromMutex("report", m1)
	if err != nil {
		t.Fatal(err)
	}
	if err := m1.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	second, err := etcdguard.FromMutex("report", m2)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := second.Token().Compare(first.Token()); err != nil || n <= 0 {
		t.Errorf("token %s after %s", second.Token(), first.Token())
	}
	if header := m2.Header().Revision; header == second.Token().Revision() {
		t.Error("the revision of the header of a contended lock is the create revision")
	}

	// The key of a Mutex is used again; the lease serves many grants.
	if err := m2.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m2.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	third, err := etcdguard.FromMutex("report", m2)
	if err != nil {
		t.Fatal(err)
	}
	if third.Key() != second.Key() || third.Token() == second.Token() {
		t.Errorf("key %q token %s, and then key %q token %s", second.Key(), second.Token(), third.Key(), third.Token())
	}
	c := newCoordinator(t, client, nil)
	var last *coordinator.Grant
	for range 3 {
		g, err := c.Acquire(ctx, "stock/42")
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && (g.Lease() != last.Lease() || g.Token().Int64() <= last.Token().Int64()) {
			t.Errorf("lease %x token %s, and then lease %x token %s", last.Lease(), last.Token(), g.Lease(), g.Token())
		}
		if err := g.SetValue(ctx, []byte("here")); err != nil { // changes the mod revision
			t.Fatal(err)
		}
		kv, err := client.Get(ctx, g.Key())
		if err != nil {
			t.Fatal(err)
		}
		if kv.Kvs[0].CreateRevision != g.Token().Revision() || kv.Kvs[0].ModRevision == g.Token().Revision() {
			t.Errorf("token %s of key %v", g.Token(), kv.Kvs[0])
		}
		if err := g.Release(ctx); err != nil {
			t.Fatal(err)
		}
		last = g
	}
}

// TestWhenAnOldTokenIsRefused: a guard that asks refuses from the end of the
// lease, one that keeps a mark from the first call of a newer owner.
func TestWhenAnOldTokenIsRefused(t *testing.T) {
	etcd := cluster(t)
	client, ctx := etcd.Client(), within(t, patience)
	held, err := etcdguard.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	marks, err := memguard.New(&memguard.Options{LockOf: func(string) (string, error) { return "stock", nil }})
	if err != nil {
		t.Fatal(err)
	}
	set := func(token revisionfence.Token, value string) error {
		_, err := marks.Do(ctx, resourceguard.Write{Resource: "stock", Token: token}, func(cell *memguard.Cell) ([]byte, error) {
			cell.Put([]byte(value))
			return nil, nil
		})
		return err
	}
	highWater, err := etcdguard.New(client, &etcdguard.Options{Mode: etcdguard.HighWater})
	if err != nil {
		t.Fatal(err)
	}
	old, err := newCoordinator(t, client, nil).Acquire(ctx, "stock")
	if err != nil {
		t.Fatal(err)
	}
	kv, err := held.KV(old)
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) error { _, err := kv.Put(ctx, "stock", value); return err }
	highKV, err := highWater.KV(old)
	if err != nil {
		t.Fatal(err)
	}
	highPut := func(value string) error { _, err := highKV.Put(ctx, "stock of HighWater", value); return err }
	for name, err := range map[string]error{"Held": put("1"), "HighWater": highPut("1"), "mark": set(old.Token(), "1")} {
		if err != nil {
			t.Errorf("%s: write of the holder: %v", name, err)
		}
	}
	etcd.Expire(t, old)
	if err := put("2"); !errors.Is(err, resourceguard.ErrStale) {
		t.Errorf("Held: write after the end of the lease: %v", err)
	}
	for name, err := range map[string]error{"HighWater": highPut("2"), "mark": set(old.Token(), "2")} {
		if err != nil {
			t.Errorf("%s: write after the end of the lease, and before a newer owner: %v", name, err)
		}
	}
	next, err := newCoordinator(t, client, nil).Acquire(ctx, "stock", coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		return errors.Join(marks.Advance(ctx, "stock", token), highWater.Advance(ctx, "stock", token))
	}))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"HighWater": highPut("3"), "mark": set(old.Token(), "3")} {
		if !errors.Is(err, resourceguard.ErrStale) {
			t.Errorf("%s: write after a newer owner has raised the mark: %v", name, err)
		}
	}
	if err := set(next.Token(), "4"); err != nil {
		t.Error(err)
	}
}

// TestRestoreRepeatsTokens: what concepts.md says of restores. The cluster keeps
// its ID, so nothing tells the coordinator.
func TestRestoreRepeatsTokens(t *testing.T) {
	dir, ctx := t.TempDir(), within(t, 2*patience)
	tokens := func(prefix, lock string) (granted revisionfence.Token) {
		etcd, err := embedded.Run(ctx, &embedded.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer etcd.Close()
		c, err := coordinator.New(etcd.Client(), &coordinator.Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		g, err := c.Acquire(ctx, lock)
		if err != nil {
			t.Fatal(err)
		}
		return g.Token()
	}
	tokens("", "stock")
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	before := tokens("", "stock")
	dir = backup
	after := tokens("", "stock")
	if n, err := after.Compare(before); err != nil || n > 0 {
		t.Errorf("token %s after a restore, %s before: they rise", after, before)
	}
	// The way out: another prefix, and another name where a mark is kept elsewhere.
	fresh := tokens("/etcd-fence-2/", "stock-2")
	if _, err := (resourceguard.Rule{Lock: "stock-2"}).Admit(resourceguard.NoMark(), fresh); err != nil {
		t.Error(err)
	}
}

// TestLeaseIDsDoNotRise: of three leases that two members grant in turn, one has a
// smaller ID than the one before it.
func TestLeaseIDsDoNotRise(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	ctx := within(t, patience)
	var ids []clientv3.LeaseID
	for _, endpoint := range []int{0, 1, 0} {
		client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = etcd.Endpoints()[endpoint : endpoint+1] })
		lease, err := client.Grant(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, lease.ID)
	}
	if slices.IsSorted(ids) {
		t.Errorf("lease IDs rise: %x", ids)
	}
}

// TestWhatAdvanceIsGiven: the table of concepts.md, a row and a mode after the
// other.
func TestWhatAdvanceIsGiven(t *testing.T) {
	client, ctx := cluster(t).Client(), within(t, patience)
	c := newCoordinator(t, client, nil)
	lockOf := func(resource string) (string, error) { return "lock of " + resource, nil }
	same := func(key string) (string, error) { return key, nil }
	for name, x := range map[string]struct {
		opts    etcdguard.Options
		right   string
		refused string // unless it is empty
	}{
		"Held":                    {etcdguard.Options{}, "lock of stock", ""},
		"Held, does not look":     {etcdguard.Options{}, "stock", ""},
		"HighWater":               {etcdguard.Options{Mode: etcdguard.HighWater}, "lock of stock", "stock"},
		"Held with LockOf":        {etcdguard.Options{LockOf: lockOf}, "stock", "lock of stock"},
		"HighWater with Resource": {etcdguard.Options{Mode: etcdguard.HighWater, LockOf: lockOf, Resource: same}, "stock", "lock of stock"},
	} {
		guard, err := etcdguard.New(client, &x.opts)
		if err != nil {
			t.Fatal(err)
		}
		work := func(ctx context.Context, grant *coordinator.Grant) error {
			if x.refused != "" {
				if err := guard.Advance(ctx, x.refused, grant.Token()); !errors.Is(err, resourceguard.ErrWrongLock) {
					t.Errorf("%s: %q: %v", name, x.refused, err)
				}
			}
			kv, err := guard.KV(grant)
			if err != nil {
				return err
			}
			_, err = kv.Put(ctx, "stock", "8")
			return err
		}
		raise := func(ctx context.Context, token revisionfence.Token) error {
			return guard.Advance(ctx, x.right, token)
		}
		if err := c.Do(ctx, "lock of stock", work, coordinator.Raise(raise)); err != nil {
			t.Errorf("%s: %q: %v", name, x.right, err)
		}
	}
}
