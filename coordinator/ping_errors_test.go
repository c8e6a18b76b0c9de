package coordinator_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// Ping is what a service calls when it starts: what it says has to be enough to
// put right what is wrong.
func TestPingSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	epoch := coordinator.DefaultPrefix + "epoch"
	ping := func(t *testing.T, client *clientv3.Client, ctx context.Context, want error, says ...string) {
		t.Helper()
		c := newCoordinator(t, client, steady)
		err := c.Ping(ctx)
		if !errors.Is(err, want) {
			t.Errorf("%v, want that it is %v", err, want)
		}
		for _, what := range says {
			if err != nil && !strings.Contains(err.Error(), what) {
				t.Errorf("%v does not say %q", err, what)
			}
		}
	}
	nowhere := func(t *testing.T) (*clientv3.Client, string) {
		t.Helper()
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{l.Addr().String()}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client, l.Addr().String()
	}

	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		client, addr := nowhere(t)
		ping(t, client, within(t, patience), coordinator.ErrNoAnswer, "epoch record "+epoch, addr, "connection refused")
	})
	t.Run("nobody listens, and the caller has less patience", func(t *testing.T) {
		t.Parallel()
		client, _ := nowhere(t)
		ping(t, client, within(t, 100*time.Millisecond), context.DeadlineExceeded, "no answer yet")
	})
	t.Run("damaged", func(t *testing.T) {
		t.Parallel()
		etcd := cluster(t, nil)
		for _, value := range []string{"{}", "null", "[", `"text"`} {
			if _, err := etcd.Client().Put(t.Context(), epoch, value); err != nil {
				t.Fatal(err)
			}
			ping(t, etcd.Client(), within(t, patience), coordinator.ErrFormat, epoch)
		}
		if _, err := etcd.Client().Put(t.Context(), epoch, "{}"); err != nil {
			t.Fatal(err)
		}
		ping(t, etcd.Client(), within(t, patience), coordinator.ErrFormat, "damaged")
		if _, err := etcd.Client().Put(t.Context(), epoch, `{"format":99}`); err != nil {
			t.Fatal(err)
		}
		ping(t, etcd.Client(), within(t, patience), coordinator.ErrFormat, "use a newer version")
	})
	t.Run("not permitted", func(t *testing.T) {
		t.Parallel()
		etcd := cluster(t, nil)
		root, ctx := etcd.Client(), within(t, patience)
		grant := func(key, end string, permission clientv3.PermissionType) {
			t.Helper()
			if _, err := root.RoleGrantPermission(ctx, "worker", key, end, permission); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := root.RoleAdd(ctx, "worker"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserAdd(ctx, "root", "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserAdd(ctx, "worker", "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserGrantRole(ctx, "root", "root"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.UserGrantRole(ctx, "worker", "worker"); err != nil {
			t.Fatal(err)
		}
		if _, err := root.AuthEnable(ctx); err != nil {
			t.Fatal(err)
		}
		admin := etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = "root", "secret" })
		t.Cleanup(func() {
			if _, err := admin.AuthDisable(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
			}
		})
		root = admin
		worker := etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = "worker", "secret" })
		ping(t, worker, ctx, rpctypes.ErrPermissionDenied, "read the epoch record "+epoch)
		grant(coordinator.DefaultPrefix, clientv3.GetPrefixRangeEnd(coordinator.DefaultPrefix), clientv3.PermissionType(clientv3.PermRead))
		ping(t, worker, ctx, rpctypes.ErrPermissionDenied, "create the epoch record "+epoch, "has to call Ping once")
	})
}
