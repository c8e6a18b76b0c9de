package coordinator_test

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// A watch that etcd refuses ends as one that broke does. The observer is told,
// and does not try for ever.
func TestObserverWithoutPermissionIsToldSo(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, &embedded.Options{Config: func(c *embed.Config) { c.BcryptCost = 4 }})
	root, ctx := etcd.Client(), within(t, patience)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.UserAdd(ctx, "root", "secret"))
	must(root.UserGrantRole(ctx, "root", "root"))
	must(root.RoleAdd(ctx, "partial"))
	must(root.RoleGrantPermission(ctx, "partial", coordinator.DefaultPrefix+"epoch", "", clientv3.PermissionType(clientv3.PermRead)))
	must(root.RoleGrantPermission(ctx, "partial", directory("seen"), clientv3.GetPrefixRangeEnd(directory("seen")), clientv3.PermissionType(clientv3.PermRead)))
	must(root.UserAdd(ctx, "partial", "secret"))
	must(root.UserGrantRole(ctx, "partial", "partial"))
	must(root.AuthEnable(ctx))
	as := func(name string) func(*clientv3.Config) {
		return func(c *clientv3.Config) { c.Username, c.Password = name, "secret" }
	}
	admin := etcd.NewClient(t, as("root"))
	t.Cleanup(func() { // what looks for leftovers has no name
		if _, err := admin.AuthDisable(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c := newCoordinator(t, etcd.NewClient(t, as("partial")), steady)
	for lock, want := range map[string]error{"seen": nil, "hidden": rpctypes.ErrPermissionDenied} {
		for h, err := range c.Observe(ctx, lock) {
			if !errors.Is(err, want) || !h.IsZero() {
				t.Errorf("lock %q: %v, %v; want %v", lock, h, err, want)
			}
			break
		}
	}
}
