package docs

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// patience bounds what should take no time, on a machine that does much else.
const patience = 20 * time.Second

// TestMain puts the real etcdctl on the PATH: it is this binary under another
// name.
func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){"etcdctl": ctlv3.MustStart})
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

// cluster starts an etcd for a test. Hashing passwords is not what is tested.
func cluster(t *testing.T, adjust ...func(*embed.Config)) *embedded.Cluster {
	t.Helper()
	return embedded.Start(t, &embedded.Options{Config: func(c *embed.Config) {
		c.BcryptCost = 4
		for _, f := range adjust {
			f(c)
		}
	}})
}

// newCoordinator is closed at the end of the test, before its client is.
func newCoordinator(t *testing.T, client *clientv3.Client, opts *coordinator.Options) *coordinator.Coordinator {
	t.Helper()
	c, err := coordinator.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // a test may have taken its permissions away
	})
	return c
}

// keep keeps a grant from becoming garbage, which would release it.
func keep(t *testing.T, grant *coordinator.Grant) {
	t.Cleanup(func() { runtime.KeepAlive(grant) })
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
