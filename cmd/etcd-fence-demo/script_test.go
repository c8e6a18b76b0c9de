package main

import (
	"context"
	"errors"
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
//	etcd https         the same with TLS, by the certificate in cert.pem
//	etcd tls           the same with certificates on both sides, and set $CACERT,
//	                   $CERT and $KEY
//	etcd auth          the same without TLS and with authentication, and the users
//	                   worker and reader of the password "secret:1"
//	etcd cluster       three members with both
//	certificate DIR    make a cert.pem and a key.pem that nobody trusts
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
			env.Values["client"] = new(*clientv3.Client)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"etcd": func(ts *testscript.TestScript, _ bool, args []string) {
				opts, endpoint := new(embedded.Options), ""
				kind := strings.Join(args, " ")
				switch kind {
				case "slow":
					opts.Config = func(c *embed.Config) { c.TickMs, c.ElectionMs = 100, 1000 }
				case "tls":
					opts.TLS = true
				case "auth":
					opts.Auth = new(embedded.Auth)
				case "cluster":
					opts = &embedded.Options{Members: 3, TLS: true, Auth: new(embedded.Auth)}
				case "https":
					cert, key, err := newCertificate(ts.MkAbs("."))
					ts.Check(err)
					endpoint, err = freeAddress()
					ts.Check(err)
					opts.Config = secured(cert, key, endpoint)
				}
				etcd, err := embedded.Run(t.Context(), opts)
				ts.Check(err)
				ts.Defer(func() { ts.Check(etcd.Close()) })
				if opts.Auth != nil {
					ts.Check(addUsers(t.Context(), etcd.Client()))
				}
				*clientOf(ts) = etcd.Client()
				if endpoint == "" {
					endpoint = strings.Join(etcd.Endpoints(), ",")
				}
				ts.Setenv("ENDPOINT", endpoint)
				files := etcd.CertFiles()
				ts.Setenv("CACERT", files.CA)
				ts.Setenv("CERT", files.Cert)
				ts.Setenv("KEY", files.Key)
			},
			"certificate": func(ts *testscript.TestScript, _ bool, args []string) {
				_, _, err := newCertificate(ts.MkAbs(args[0]))
				ts.Check(err)
			},
			"keys": func(ts *testscript.TestScript, _ bool, args []string) {
				got, err := keysUnder(t.Context(), *clientOf(ts), args[1])
				ts.Check(err)
				if args[0] != fmt.Sprint(len(got)) {
					ts.Fatalf("want %s keys under %s, got %q", args[0], args[1], got)
				}
			},
			"leases": func(ts *testscript.TestScript, _ bool, args []string) {
				got, err := leases(t.Context(), *clientOf(ts))
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

func clientOf(ts *testscript.TestScript) **clientv3.Client {
	return ts.Value("client").(**clientv3.Client)
}

// addUsers adds those who may write below the demo's prefix, and who may not.
func addUsers(ctx context.Context, root *clientv3.Client) error {
	var errs []error
	for user, may := range map[string]clientv3.PermissionType{
		"worker": clientv3.PermissionType(clientv3.PermReadWrite), "reader": clientv3.PermissionType(clientv3.PermRead),
	} {
		_, err := root.RoleAdd(ctx, user)
		errs = append(errs, err)
		_, err = root.RoleGrantPermission(ctx, user, prefixes, clientv3.GetPrefixRangeEnd(prefixes), may)
		errs = append(errs, err)
		_, err = root.UserAdd(ctx, user, "secret:1")
		errs = append(errs, err)
		_, err = root.UserGrantRole(ctx, user, user)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func keysUnder(ctx context.Context, client *clientv3.Client, prefix string) (keys []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys, nil
}

// leases counts those that live. The list is what one member has heard of so far;
// whether a lease lives is what the leader says.
func leases(ctx context.Context, client *clientv3.Client) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := client.Leases(ctx)
	if err != nil {
		return 0, err
	}
	for _, l := range resp.Leases {
		now, err := client.TimeToLive(ctx, l.ID)
		if err != nil {
			return 0, err
		}
		if now.TTL > 0 {
			n++
		}
	}
	return n, nil
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
