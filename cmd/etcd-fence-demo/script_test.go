package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// TestMain makes the program itself available to the tests: as a command in
// scripts, and through the PATH. Its workers are that command again.
func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){program: main})
}

// checked looks for goroutines that the tests have left.
type checked struct{ m *testing.M }

func (c checked) Run() int {
	code := c.m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScripts runs what a user types and looks at what it prints. Besides the
// commands of testscript there are
//
//	etcd               start an etcd and set $ENDPOINT
//	etcd slow          the same with the timing of a real member
//	etcd tls           the same with TLS and client certificates, in cert.pem and
//	                   key.pem
//	keys N PREFIX      want so many keys under the prefix
//	leases N           want so many leases
//	noprocesses        want no process that this script has started
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv(markName, newMark())
			env.Values["etcd"] = new(*embedded.Cluster)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"etcd": func(ts *testscript.TestScript, _ bool, args []string) {
				opts, endpoint := new(embedded.Options), ""
				switch strings.Join(args, " ") {
				case "slow":
					opts.Config = func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }
				case "tls":
					cert, key, err := newCertificate(ts.MkAbs("."))
					ts.Check(err)
					endpoint, err = freeAddress()
					ts.Check(err)
					opts.Config = secured(cert, key, endpoint)
				}
				etcd, err := embedded.Run(t.Context(), opts)
				ts.Check(err)
				ts.Defer(func() { ts.Check(etcd.Close()) })
				*etcdOf(ts) = etcd
				if endpoint == "" {
					endpoint = etcd.Endpoints()[0]
				}
				ts.Setenv("ENDPOINT", endpoint)
			},
			"keys": func(ts *testscript.TestScript, _ bool, args []string) {
				got, err := keysUnder(t.Context(), *etcdOf(ts), args[1])
				ts.Check(err)
				if args[0] != fmt.Sprint(len(got)) {
					ts.Fatalf("want %s keys under %s, got %q", args[0], args[1], got)
				}
			},
			"leases": func(ts *testscript.TestScript, _ bool, args []string) {
				got, err := leases(t.Context(), *etcdOf(ts))
				ts.Check(err)
				if args[0] != fmt.Sprint(got) {
					ts.Fatalf("want %s leases, got %d", args[0], got)
				}
			},
			"noprocesses": func(ts *testscript.TestScript, _ bool, _ []string) {
				if left := processes(ts.Getenv(markName)); len(left) > 0 {
					ts.Fatalf("left: %q", left)
				}
			},
		},
	})
}

func etcdOf(ts *testscript.TestScript) **embedded.Cluster {
	return ts.Value("etcd").(**embedded.Cluster)
}

func keysUnder(ctx context.Context, etcd *embedded.Cluster, prefix string) (keys []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := etcd.Client().Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys, nil
}

func leases(ctx context.Context, etcd *embedded.Cluster) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := etcd.Client().Leases(ctx)
	if err != nil {
		return 0, err
	}
	return len(resp.Leases), nil
}

// markName is a variable in the environment of the demo, which its workers
// inherit: by it a test finds the processes that are its own.
const markName = "ETCD_FENCE_DEMO_TEST"

func newMark() string { return fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()) }

// processes lists the processes that carry a mark, by their command lines. It
// needs /proc, so elsewhere it finds none.
func processes(mark string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		environ, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !strings.Contains(string(environ), markName+"="+mark+"\x00") {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		found = append(found, e.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
	}
	return found
}
