package embedded_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func TestMain(m *testing.M) {
	_ = os.Unsetenv(embedded.BinaryEnv) // these are the tests of all kinds of members
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeProgram()
		os.Exit(code)
	}))
}

// bounded returns a context that ends long before the test binary would.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// modes are the two ways in which a member can run.
func modes(t *testing.T, f func(t *testing.T, opts *embedded.Options)) {
	t.Helper()
	t.Run("local", func(t *testing.T) { f(t, &embedded.Options{}) })
	t.Run("process", func(t *testing.T) {
		needsProcess(t)
		f(t, &embedded.Options{Process: true})
	})
}

func TestIsReadyWhenStartReturns(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		began := time.Now()
		etcd := embedded.Start(t, opts)
		t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
		began = time.Now()
		if _, err := etcd.Client().Put(bounded(t), "key", "value"); err != nil {
			t.Fatal(err)
		}
		t.Logf("first put after %v more", time.Since(began).Round(10*time.Microsecond))
	})
}

func TestRestartKeepsDataPortAndClients(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		etcd := embedded.Start(t, opts)
		client, ctx, endpoints := etcd.Client(), bounded(t), etcd.Endpoints()
		if _, err := client.Put(ctx, "key", "value"); err != nil {
			t.Fatal(err)
		}
		for name, end := range map[string]func(embedded.TB, ...int){"stop": etcd.Stop, "kill": etcd.Kill} {
			began := time.Now()
			end(t)
			t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			if _, err := client.Get(short, "key"); err == nil {
				t.Errorf("a member answers after %s", name)
			}
			cancel()
			began = time.Now()
			etcd.Restart(t)
			if got := etcd.Endpoints(); got[0] != endpoints[0] {
				t.Errorf("endpoint %v became %v", endpoints, got)
			}
			resp, err := client.Get(ctx, "key")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("old client has an answer %v after restart was called", time.Since(began).Round(time.Millisecond))
			if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "value" {
				t.Errorf("after %s and restart: %v", name, resp.Kvs)
			}
		}
	})
}

func TestRestartWaitsForItsPort(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) { restartWaitsForItsPort(t, opts) })
}

func restartWaitsForItsPort(t *testing.T, opts *embedded.Options) {
	t.Helper()
	etcd := embedded.Start(t, opts)
	ctx := bounded(t)
	etcd.Stop(t)
	thief, err := net.Listen("tcp", etcd.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- etcd.Member(0).Restart(ctx) }()
	select {
	case err := <-done:
		t.Errorf("restarted on a port that is taken: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	_ = thief.Close()
	if err := <-done; err != nil {
		t.Errorf("after the port was given back: %v", err)
	}
}

func TestStopDoesNotWaitForStreams(t *testing.T) {
	// A server that has the port for itself would wait five seconds for them.
	etcd := embedded.Start(t, &embedded.Options{Config: func(c *embed.Config) {
		c.ListenClientHttpUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	}})
	watch := etcd.Client().Watch(bounded(t), "key", clientv3.WithCreatedNotify())
	<-watch
	began := time.Now()
	etcd.Stop(t)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("stop took %v", took)
	}
}

func TestExpireEndsTheLeaseAndItsKeys(t *testing.T) {
	etcd := embedded.Start(t, nil)
	client, ctx := etcd.Client(), bounded(t)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Orphan()
	if _, err := client.Put(ctx, "key", "", clientv3.WithLease(session.Lease())); err != nil {
		t.Fatal(err)
	}
	etcd.Expire(t, session)
	resp, err := client.Get(ctx, "key")
	if err != nil || len(resp.Kvs) != 0 {
		t.Errorf("key after Expire: %v, %v", resp, err)
	}
	etcd.Expire(t, session) // gone already: fine

	if err := etcd.ExpireLease(ctx, clientv3.NoLease); err == nil {
		t.Error("lease 0 has ended")
	}
	etcd.Stop(t)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := etcd.ExpireLease(short, session.Lease()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expire without a member: %v", err)
	}
}

func TestGrantsLeasesOfOneSecond(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		lease, err := embedded.Start(t, opts).Client().Grant(bounded(t), 1)
		if err != nil || lease.TTL != 1 {
			t.Errorf("asked for 1 s: %v, %v", lease, err)
		}
	})
}

func TestConfigReachesTheMember(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		opts.Config = func(c *embed.Config) { c.MaxTxnOps = 1 }
		_, err := embedded.Start(t, opts).Client().Txn(bounded(t)).Then(clientv3.OpPut("a", ""), clientv3.OpPut("b", "")).Commit()
		if err == nil || !strings.Contains(err.Error(), "too many operations") {
			t.Errorf("two operations with MaxTxnOps 1: %v", err)
		}
	})
}

func TestNewClientTakesAdjustments(t *testing.T) {
	etcd := embedded.Start(t, nil)
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{etcd.Proxy(t).Endpoint()} })
	if got := client.Endpoints(); got[0] == etcd.Endpoints()[0] {
		t.Errorf("endpoints %v are the member's", got)
	}
	if _, err := client.Get(bounded(t), "key"); err != nil {
		t.Error(err)
	}
}

func TestRunKeepsAGivenDirectory(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		etcd, err := embedded.Run(bounded(t), &embedded.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := etcd.Client().Get(bounded(t), "key")
		if err != nil || len(resp.Kvs) != i {
			t.Errorf("run %d: %v, %v", i, resp, err)
		}
		if _, err := etcd.Client().Put(bounded(t), "key", ""); err != nil {
			t.Error(err)
		}
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
		if err := etcd.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	}
}
