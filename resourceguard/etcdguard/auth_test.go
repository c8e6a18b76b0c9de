package etcdguard_test

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// TestPermissions: besides the data a role needs to read the directories of the
// locks, since etcd checks both branches whichever is taken.
func TestPermissions(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{Config: func(c *embed.Config) { c.BcryptCost = 4 }})
	root := etcd.Client()
	g := acquire(t, root, "l")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	role := func(name string, perm clientv3.PermissionType, prefix string) {
		must(root.RoleGrantPermission(ctx, name, prefix, clientv3.GetPrefixRangeEnd(prefix), perm))
	}
	must(root.UserAdd(ctx, "root", "secret"))
	must(root.UserGrantRole(ctx, "root", "root"))
	for _, name := range []string{"few", "enough"} {
		must(root.RoleAdd(ctx, name))
		role(name, clientv3.PermissionType(clientv3.PermReadWrite), "data/")
		must(root.UserAdd(ctx, name, "secret"))
		must(root.UserGrantRole(ctx, name, name))
	}
	role("enough", clientv3.PermissionType(clientv3.PermRead), "/etcd-fence/locks/")
	must(root.AuthEnable(ctx))
	asRoot := etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = "root", "secret" })
	put := func(user, key string) error {
		client := etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = user, "secret" })
		_, err := fenced(t, newGuard(t, client, nil), g).Put(ctx, key, "v")
		return err
	}
	if err := put("enough", "data/k"); err != nil {
		t.Error(err)
	}
	for user, key := range map[string]string{"enough": "other", "few": "data/k"} {
		err := put(user, key)
		if !errors.Is(err, rpctypes.ErrPermissionDenied) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("user %q, key %q: %v, want %v", user, key, err, rpctypes.ErrPermissionDenied)
		}
	}
	// The epoch record, which names the owner's epoch in a refusal, may be secret.
	must(asRoot.Delete(ctx, g.key))
	wantStale(t, put("enough", "data/k"), resourceguard.StaleError{Resource: "data/k", Presented: g.token})
}

// TestPermissionsOfHighWater: the directories of the locks and the epoch record are
// read, marks and the records of operations also written.
func TestPermissionsOfHighWater(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{Config: func(c *embed.Config) { c.BcryptCost = 4 }})
	root, ctx := etcd.Client(), t.Context()
	putEpoch(t, root)
	g := acquire(t, root, "l")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	needed := map[string]clientv3.PermissionType{
		"data/":                            clientv3.PermissionType(clientv3.PermReadWrite),
		etcdguard.DefaultPrefix + "locks/": clientv3.PermissionType(clientv3.PermRead),
		etcdguard.DefaultPrefix + "epoch":  clientv3.PermissionType(clientv3.PermRead),
		etcdguard.DefaultPrefix + "marks/": clientv3.PermissionType(clientv3.PermReadWrite),
		etcdguard.DefaultPrefix + "ops/":   clientv3.PermissionType(clientv3.PermReadWrite),
	}
	must(root.UserAdd(ctx, "root", "secret"))
	must(root.UserGrantRole(ctx, "root", "root"))
	users := []string{""}
	for prefix := range needed {
		users = append(users, prefix)
	}
	for _, without := range users {
		name := "without " + without
		must(root.RoleAdd(ctx, name))
		for prefix, perm := range needed {
			if prefix != without {
				must(root.RoleGrantPermission(ctx, name, prefix, clientv3.GetPrefixRangeEnd(prefix), perm))
			}
		}
		must(root.UserAdd(ctx, name, "secret"))
		must(root.UserGrantRole(ctx, name, name))
	}
	must(root.AuthEnable(ctx))
	for _, without := range users {
		client := etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = "without "+without, "secret" })
		kv := fenced(t, newGuard(t, client, highWater), g)
		for i := range 2 {
			_, err := kv.Put(withOperation(ctx, fmt.Sprintf("%q %d", without, i)), "data/k", "v")
			switch {
			case without == "" && err != nil:
				t.Errorf("with all permissions: %v", err)
			case without != "" && (!errors.Is(err, rpctypes.ErrPermissionDenied) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied):
				t.Errorf("without %q: %v, want %v", without, err, rpctypes.ErrPermissionDenied)
			}
		}
	}
}
