package etcdonce_test

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// authCluster starts an etcd whose user "root" has the password "secret" and
// whose tokens live for the shortest time there is.
func authCluster(t *testing.T) (root, user *clientv3.Client) {
	t.Helper()
	etcd := embedded.Start(t, &embedded.Options{Config: func(c *embed.Config) {
		c.AuthToken = "simple"
		c.AuthTokenTTL = 1
		c.BcryptCost = 4 // the lowest: hashing is not what is tested
	}})
	bare := etcd.Client()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	must(bare.UserAdd(ctx, "root", "secret"))
	must(bare.UserGrantRole(ctx, "root", "root"))
	must(bare.RoleAdd(ctx, "writer"))
	must(bare.RoleGrantPermission(ctx, "writer", "k", "", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(bare.UserAdd(ctx, "user", "secret"))
	must(bare.UserGrantRole(ctx, "user", "writer"))
	must(bare.AuthEnable(ctx))
	as := func(name string) func(*clientv3.Config) {
		return func(c *clientv3.Config) { c.Username, c.Password = name, "secret" }
	}
	return etcd.NewClient(t, as("root")), etcd.NewClient(t, as("user"))
}

func TestInvalidatedTokenIsRenewed(t *testing.T) {
	root, user := authCluster(t)
	kv := etcdonce.New(user)
	for n := range int64(3) {
		// Any change to a user makes its tokens invalid at once, and those of
		// everybody else old.
		if _, err := root.UserChangePassword(t.Context(), "user", "secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
			t.Fatalf("put %d with an invalidated token: %v", n, err)
		}
		got, err := kv.Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if v := got.Kvs[0].Version; v != n+1 {
			t.Fatalf("put %d made version %d", n, v)
		}
	}
}

func TestExpiredTokenIsRenewed(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a token to expire")
	}
	t.Parallel()
	_, user := authCluster(t)
	kv := etcdonce.New(user)
	if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	// Tokens are looked at once a second, and asking whether one still lives
	// would prolong it.
	time.Sleep(2500 * time.Millisecond)
	if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("put with an expired token: %v", err)
	}
}

func TestForbiddenIsDefinite(t *testing.T) {
	_, user := authCluster(t)
	_, err := etcdonce.New(user).Put(t.Context(), "other", "v")
	if !errors.Is(err, rpctypes.ErrPermissionDenied) || !etcdonce.Definite(err) {
		t.Errorf("got %v, want a definite permission error", err)
	}
}
