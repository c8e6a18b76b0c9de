//go:build unix

package embedded_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// etcdMain is the main of the etcd server that everybody installs.
const etcdMain = `package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
`

// program is an etcd server program, built by the first test that needs it.
var program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func buildProgram() {
	if program.dir, program.err = os.MkdirTemp("", "embedded-program-"); program.err != nil {
		return
	}
	source := filepath.Join(program.dir, "main.go")
	if program.err = os.WriteFile(source, []byte(etcdMain), 0o600); program.err != nil {
		return
	}
	program.path = filepath.Join(program.dir, "etcd")
	if out, err := exec.Command("go", "build", "-o", program.path, source).CombinedOutput(); err != nil {
		program.err = errors.New(string(out))
	}
}

func etcdProgram(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("building an etcd server takes long")
	}
	program.once.Do(buildProgram)
	if program.err != nil && strings.Contains(program.err.Error(), "missing go.sum entry") {
		t.Skip("this module alone does not have all that an etcd server program needs; with GOWORK it has")
	}
	if program.err != nil {
		t.Fatalf("an etcd server cannot be built: %v", program.err)
	}
	return program.path
}

func removeProgram() {
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
}

func TestAProgramIsAMember(t *testing.T) {
	began := time.Now()
	path := etcdProgram(t)
	t.Logf("built in %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	etcd := embedded.Start(t, &embedded.Options{Binary: path})
	t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
	client, ctx, endpoints := etcd.Client(), bounded(t), etcd.Endpoints()
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	if lease, err := client.Grant(ctx, 1); err != nil || lease.TTL != 1 {
		t.Errorf("asked for a lease of 1 s: %v, %v", lease, err)
	}
	if !strings.Contains(etcd.Logs(), "became leader") {
		t.Error("what the program logs is lost")
	}
	<-client.Watch(ctx, "other", clientv3.WithCreatedNotify()) // it must not hold up the end
	for name, end := range map[string]func(embedded.TB, ...int){"stop": etcd.Stop, "kill": etcd.Kill} {
		began := time.Now()
		end(t)
		t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
		if listening(endpoints[0]) {
			t.Errorf("somebody listens after %s", name)
		}
		etcd.Restart(t)
		if resp, err := client.Get(ctx, "key"); err != nil || len(resp.Kvs) != 1 {
			t.Errorf("after %s: %v, %v", name, resp, err)
		}
	}
	etcd.Pause(t)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := client.Get(short, "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get from a paused member: %v", err)
	}
	etcd.Resume(t)
	if _, err := client.Get(ctx, "key"); err != nil {
		t.Error(err)
	}
}

func TestAProgramWaitsForItsPort(t *testing.T) {
	restartWaitsForItsPort(t, &embedded.Options{Binary: etcdProgram(t)})
}

func TestProgramsAreACluster(t *testing.T) {
	etcd := startThree(t, &embedded.Options{Binary: etcdProgram(t), TLS: true, Auth: &embedded.Auth{JWT: true}})
	ctx := bounded(t)
	put(ctx, t, etcd.Client(), "key")
	old := etcd.Leader(t)
	etcd.Kill(t, old)
	if leader := etcd.Leader(t); leader == old {
		t.Errorf("member %d is dead and leads", old)
	}
	put(ctx, t, etcd.Client(), "key")
	etcd.Restart(t, old)
	etcd.MoveLeader(t, old)
	// The certificate counts as a user, one without a name.
	if _, err := etcd.ClientAs(t, "", "").Get(ctx, "key"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("without a user: %v", err)
	}
}

func TestConfigBecomesFlags(t *testing.T) {
	path := etcdProgram(t)
	etcd := embedded.Start(t, &embedded.Options{Binary: path, Config: func(c *embed.Config) {
		c.MaxTxnOps, c.QuotaBackendBytes = 1, 64<<20
		c.AutoCompactionMode, c.AutoCompactionRetention = "revision", "1000"
		c.GRPCKeepAliveMinTime = 10 * time.Second
		c.PreVote = false
	}})
	_, err := etcd.Client().Txn(bounded(t)).Then(clientv3.OpPut("a", ""), clientv3.OpPut("b", "")).Commit()
	if !errors.Is(err, rpctypes.ErrTooManyOps) {
		t.Errorf("two operations with MaxTxnOps 1: %v", err)
	}
	for name, change := range map[string]func(*embed.Config){
		"ListenMetricsUrls": func(c *embed.Config) { c.ListenMetricsUrls = c.ListenClientUrls },
		"EnablePprof":       func(c *embed.Config) { c.EnablePprof = true },
	} {
		_, err := embedded.Run(bounded(t), &embedded.Options{Binary: path, Config: change})
		if !errors.Is(err, embedded.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAProgramThatDoesNotRunSaysSo(t *testing.T) {
	if _, err := embedded.Run(bounded(t), &embedded.Options{Binary: filepath.Join(t.TempDir(), "etcd")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	began := time.Now()
	if _, err := embedded.Run(bounded(t), &embedded.Options{Binary: "/bin/false"}); err == nil || !strings.Contains(err.Error(), "/bin/false has ended") {
		t.Errorf("a program that fails: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("that took %v", took)
	}
}

func TestTheEnvironmentNamesTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd")
	t.Setenv(embedded.BinaryEnv, path)
	if _, err := embedded.Run(bounded(t), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s=%s: %v", embedded.BinaryEnv, path, err)
	}
	if _, err := embedded.Run(bounded(t), &embedded.Options{Binary: "/bin/false"}); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("the option does not come first: %v", err)
	}
}
