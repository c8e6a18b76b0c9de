package docs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func Example_join() {
	ctx, client, stop := example()
	defer stop()
	session := must(concurrency.NewSession(client))
	defer session.Close()

	// docs begin
	mutex := concurrency.NewMutex(session, "/jobs/report") // an old program
	if err := mutex.Lock(ctx); err != nil {
		fmt.Println(err)
	}

	c, err := coordinator.New(client, &coordinator.Options{ // a new one
		Directory: func(lock string) string { return "/jobs/" + lock + "/" },
	})
	if err != nil {
		fmt.Println(err)
	}
	defer c.Close(ctx)
	_, err = c.TryAcquire(ctx, "report")
	fmt.Println(errors.Is(err, coordinator.ErrBusy))
	// docs end

	// Output: true
}

func Example_firstTheFence() {
	ctx, client, stop := example()
	defer stop()
	session := must(concurrency.NewSession(client))
	defer session.Close()
	const key = "/reports/today"

	// docs begin
	guard, err := etcdguard.New(client, &etcdguard.Options{
		Directory: func(lock string) string { return "/jobs/" + lock + "/" },
	})
	if err != nil {
		fmt.Println(err)
	}

	work := func(mutex *concurrency.Mutex) error {
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		defer mutex.Unlock(ctx)
		tenure, err := etcdguard.FromMutex("report", mutex) // after each Lock
		if err != nil {
			return err
		}
		if err := guard.Advance(ctx, tenure.Token().Lock(), tenure.Token()); err != nil { // before the first read
			return err
		}
		kv, err := guard.KV(tenure)
		if err != nil {
			return err
		}
		_, err = kv.Put(ctx, key, "done") // was client.Put
		return err
	}
	fmt.Println(work(concurrency.NewMutex(session, "/jobs/report")))
	// docs end

	// Output: <nil>
}

func Example_thenTheLock() {
	ctx, client, stop := example()
	defer stop()
	const key = "/reports/today"
	directory := func(lock string) string { return "/jobs/" + lock + "/" }
	guard := must(etcdguard.New(client, &etcdguard.Options{Directory: directory}))
	c := must(coordinator.New(client, &coordinator.Options{Directory: directory}))
	defer c.Close(ctx)

	// docs begin
	work := func(ctx context.Context, grant *coordinator.Grant) error {
		if err := guard.Advance(ctx, grant.Lock(), grant.Token()); err != nil {
			return err
		}
		kv, err := guard.KV(grant)
		if err != nil {
			return err
		}
		_, err = kv.Put(ctx, key, "done")
		return err
	}
	fmt.Println(c.Do(ctx, "report", work))
	// docs end

	// Output: <nil>
}

func Example_lead() {
	ctx, client, stop := example()
	defer stop()
	guard := must(etcdguard.New(client, nil))
	c := must(coordinator.New(client, nil))
	defer c.Close(ctx)

	// docs begin
	tenures := 0
	work := func(ctx context.Context, grant *coordinator.Grant) error {
		tenures++
		kv, err := guard.KV(grant) // of this tenure: an older one is refused
		if err != nil {
			return err
		}
		if _, err := kv.Get(ctx, "controller/state"); err != nil { // read anew in each tenure
			return err
		}
		if tenures == 1 { // what a pause past the lease comes to
			if _, err := client.Revoke(ctx, grant.Lease()); err != nil {
				return err
			}
		}
		_, err = kv.Put(ctx, "controller/state", fmt.Sprintf("of tenure %d", tenures))
		return err
	}
	raise := func(ctx context.Context, token revisionfence.Token) error {
		return guard.Advance(ctx, token.Lock(), token)
	}
	err := c.Lead(ctx, "controller", work, coordinator.Raise(raise))
	fmt.Println("led", tenures, "times:", err)
	// docs end

	// Output: led 2 times: <nil>
}

func Example_scope() {
	ctx, client, stop := example()
	defer stop()
	c := must(coordinator.New(client, nil))
	defer c.Close(ctx)
	check := func(err error) {
		if err != nil {
			fmt.Println(err)
		}
	}

	// docs begin
	jobs := []string{"jobs/1", "jobs/2", "jobs/3"}
	job, err := c.TryAcquireAny(ctx, slices.Values(jobs)) // whichever is free
	check(err)
	fmt.Println(job.Lock())

	accounts, err := c.AcquireAll(ctx, []string{"account/7", "account/3"}) // both or none
	check(err)
	fmt.Println(accounts.Grant("account/7").Err())
	// docs end
	check(errors.Join(job.Release(ctx), accounts.Release(ctx)))

	// Output:
	// jobs/1
	// <nil>
}

func Example_names() {
	ctx, client, stop := example()
	defer stop()
	c := must(coordinator.New(client, nil))
	defer c.Close(ctx)

	// docs begin
	for _, name := range []string{"orders", "orders/42", "a b", "é"} {
		status, err := c.Status(ctx, name)
		fmt.Println(status.Directory, err)
	}
	// docs end

	// Output:
	// /etcd-fence/locks/orders/ <nil>
	// /etcd-fence/locks/orders%2F42/ <nil>
	// /etcd-fence/locks/a%20b/ <nil>
	// /etcd-fence/locks/%C3%A9/ <nil>
}

// rows returns the cells of the table below a heading.
func rows(t *testing.T, page, heading string) [][]string {
	t.Helper()
	_, section, found := strings.Cut(pages(t)[page], "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var table [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "| \n"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		table = append(table, cells)
	}
	if !found || len(table) < 2 {
		t.Fatalf("%s: there is no table below %q", page, heading)
	}
	return table[1:]
}

// TestTTLTable: the numbers in the table of TTLs are those of the coordinator.
func TestTTLTable(t *testing.T) {
	client := cluster(t).Client()
	for _, row := range rows(t, "adopting.md", "Which TTL") {
		var d [4]time.Duration
		for i := range d {
			var err error
			if d[i], err = time.ParseDuration(strings.ReplaceAll(row[i], " ", "")); err != nil {
				t.Fatalf("%v: %v", row, err)
			}
		}
		ttl, trusted, proof, drain := d[0], d[1], d[2], d[3]
		c := newCoordinator(t, client, &coordinator.Options{TTL: ttl})
		ping(t, c)
		h := c.Health()
		if window := (h.TrustedFor + h.ProofAge).Round(10 * time.Millisecond); h.TTL != ttl || window != trusted {
			t.Errorf("TTL %v: granted %v, trusted for %v after a proof; the page says %v", ttl, h.TTL, window, trusted)
		}
		// What is left when the next proof is due bounds the margin for draining.
		due := trusted - proof
		if _, err := coordinator.New(client, &coordinator.Options{TTL: ttl, DrainMargin: due}); !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("TTL %v: the next proof is not due after %v", ttl, proof)
		}
		if _, err := coordinator.New(client, &coordinator.Options{TTL: ttl, DrainMargin: due - time.Millisecond}); err != nil {
			t.Errorf("TTL %v: the next proof is due before %v: %v", ttl, proof, err)
		}
		if want := (trusted - ttl/3).Round(100 * time.Millisecond); want != drain {
			t.Errorf("TTL %v: drains after %v, the page says %v", ttl, want, drain)
		}
	}
}

// TestSilentHolderKeepsTheLockForItsLease: a process that is gone without a word
// keeps its lock for the TTL, and a little.
func TestSilentHolderKeepsTheLockForItsLease(t *testing.T) {
	etcd := cluster(t)
	ctx := within(t, 2*patience)
	gone := etcd.NewClient(t)
	c := newCoordinator(t, gone, &coordinator.Options{TTL: 2 * time.Second})
	grant, err := c.Acquire(ctx, "stock")
	if err != nil {
		t.Fatal(err)
	}
	keep(t, grant)
	began := time.Now()
	if err := gone.Close(); err != nil { // no release, no revoke
		t.Fatal(err)
	}
	if _, err := newCoordinator(t, etcd.Client(), nil).Acquire(ctx, "stock"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took < time.Second || took > 2*time.Second+2*time.Second {
		t.Errorf("free after %v", took)
	}
	t.Logf("free after %v", took)
}

// TestErrorsAreListed: the table says what to do on each error that there is.
func TestErrorsAreListed(t *testing.T) {
	listed := make(map[string]bool)
	for _, row := range rows(t, "adopting.md", "What to do on each error") {
		for name := range identifiers(row[0]) {
			listed[name] = true
		}
	}
	exported := declared(t)
	for _, name := range slices.Sorted(maps.Keys(exported)) {
		pkg, id, _ := strings.Cut(name, ".")
		if !strings.HasPrefix(id, "Err") || strings.Contains(id, ".") || pkg == "embedded" {
			continue
		}
		// What one package took over from another is listed once.
		if !listed[name] && !listed["resourceguard."+id] && !listed["coordinator."+id] {
			t.Errorf("adopting.md does not say what to do on %s", name)
		}
	}
}
