package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// must is for an example of which every step but one has to work.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// What stands between the two marks is in README.md as well.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	etcd := must(embedded.Run(ctx, nil))
	defer func() { _ = etcd.Close() }()
	client := etcd.Client()

	// README begins
	guard := must(etcdguard.New(client, nil)) // client is a *clientv3.Client

	a := must(coordinator.New(client, &coordinator.Options{Identity: "worker A"})) // never closed: A hangs
	grantA := must(a.Acquire(ctx, "stock/42"))
	kvA := must(guard.KV(grantA)) // a clientv3.KV: all that goes through it carries A's token
	must(kvA.Put(ctx, "stock", "10"))

	must(client.Revoke(ctx, grantA.Lease())) // what a pause past the lease comes to

	b := must(coordinator.New(client, &coordinator.Options{Identity: "worker B"}))
	defer b.Close(ctx)
	kvB := must(guard.KV(must(b.Acquire(ctx, "stock/42"))))
	must(kvB.Put(ctx, "stock", "8"))

	_, err := kvA.Put(ctx, "stock", "5") // A wakes up and writes
	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
		fmt.Println("refused:", stale.Presented.Revision() < stale.Accepted.Revision())
	}
	fmt.Printf("stock = %s\n", must(kvB.Get(ctx, "stock")).Kvs[0].Value)
	// README ends

	// Output:
	// refused: true
	// stock = 8
}

// The code in the README is code that runs.
func TestREADMEShowsTheExample(t *testing.T) {
	code := between(t, "readme_test.go", "\t// README begins\n", "\t// README ends\n")
	var want strings.Builder
	for line := range strings.Lines(code) {
		want.WriteString(strings.TrimPrefix(line, "\t"))
	}
	got := between(t, "../../README.md", "```go\n", "```\n")
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("README.md differs from the example (-example +README):\n%s", diff)
	}
}

// between returns what stands between the first begin in a file and the next end.
func between(t *testing.T, file, begin, end string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), begin)
	code, _, ended := strings.Cut(after, end)
	if !found || !ended {
		t.Fatalf("%s: nothing between %q and %q", file, begin, end)
	}
	return code
}

// The versions that the README calls tested are those that the tests use.
func TestREADMENamesTheVersions(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]*regexp.Regexp{
		"../../go.mod":                    regexp.MustCompile(`(?m)^\s*go\.etcd\.io/etcd/server/v3 v(\S+)$`),
		"../../test/compat/etcd36/go.mod": regexp.MustCompile(`(?m)^(?:require)?\s*go\.etcd\.io/etcd/server/v3 v(\S+)$`),
		"../../test/compat/etcd35/go.mod": regexp.MustCompile(`(?m)^(?:require)?\s*go\.etcd\.io/etcd/server/v3 v(\S+)$`),
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := want.FindSubmatch(text)
		if found == nil {
			t.Errorf("%s does not require an etcd server", file)
			continue
		}
		if !regexp.MustCompile(`\| [^|]*\b` + regexp.QuoteMeta(string(found[1])) + `\b`).Match(readme) {
			t.Errorf("%s has etcd %s, which stands in no table of README.md", file, found[1])
		}
	}
}
