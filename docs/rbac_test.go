package docs

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// guarded is an etcd that was set up as rbac.md says.
type guarded struct {
	*embedded.Cluster
	root *clientv3.Client
}

// setup is what the commands of rbac.md make: roles and users by name.
type setup struct {
	roles map[string][]*authpb.Permission
	users map[string][]string
}

// asThePageSays runs the commands of rbac.md, and reads what they have made. Once
// is enough: a process for each command takes its time.
var asThePageSays = sync.OnceValues(func() (s setup, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	etcd, err := embedded.Run(ctx, &embedded.Options{Config: func(c *embed.Config) { c.BcryptCost = 4 }})
	if err != nil {
		return s, err
	}
	defer etcd.Close()
	if err := runPage(ctx, "rbac.md", etcd); err != nil {
		return s, err
	}
	config := etcd.ClientConfig()
	config.Username, config.Password = "root", password("root")
	root, err := clientv3.New(config)
	if err != nil {
		return s, err
	}
	defer root.Close()
	s = setup{make(map[string][]*authpb.Permission), make(map[string][]string)}
	roles, err := root.RoleList(ctx)
	if err != nil {
		return s, err
	}
	for _, name := range roles.Roles {
		role, err := root.RoleGet(ctx, name)
		if err != nil {
			return s, err
		}
		s.roles[name] = role.Perm
	}
	users, err := root.UserList(ctx)
	if err != nil {
		return s, err
	}
	for _, name := range users.Users {
		user, err := root.UserGet(ctx, name)
		if err != nil {
			return s, err
		}
		s.users[name] = user.Roles
		if _, err := root.Authenticate(ctx, name, password(name)); err != nil {
			return s, err
		}
	}
	return s, nil
})

// password is that of a user of rbac.md.
func password(user string) string {
	if user == "root" {
		return "change-me"
	}
	return user + "-secret"
}

// newGuarded sets an etcd up as the commands of rbac.md do, and has an operator
// set the prefix up.
func newGuarded(t *testing.T, adjust ...func(*embed.Config)) guarded {
	t.Helper()
	s, err := asThePageSays()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no sh to run the commands with")
	}
	if err != nil {
		t.Fatal(err)
	}
	g := guarded{Cluster: cluster(t, adjust...)}
	bare, ctx := g.Client(), within(t, patience)
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, permissions := range s.roles {
		check(bare.RoleAdd(ctx, name))
		for _, p := range permissions {
			check(bare.RoleGrantPermission(ctx, name, string(p.Key), string(p.RangeEnd), clientv3.PermissionType(p.PermType)))
		}
	}
	for name, roles := range s.users {
		check(bare.UserAdd(ctx, name, password(name)))
		for _, role := range roles {
			check(bare.UserGrantRole(ctx, name, role))
		}
	}
	check(bare.AuthEnable(ctx))
	g.root = g.user(t, "root")
	operator := newCoordinator(t, g.user(t, "operator"), nil)
	ping(t, operator)
	if err := operator.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return g
}

func ping(t *testing.T, c *coordinator.Coordinator) {
	t.Helper()
	if err := c.Ping(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}

// TestOperatorSetsThePrefixUp: with the program of rbac.md, and nobody else does.
func TestOperatorSetsThePrefixUp(t *testing.T) {
	g, ctx := newGuarded(t), within(t, patience)
	endpoints := g.Endpoints()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := g.root.Delete(ctx, "/etcd-fence/", clientv3.WithPrefix())
	check(err)
	if err := newCoordinator(t, g.user(t, "worker"), nil).Ping(ctx); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a worker under a prefix that nobody has set up: %v", err)
	}
	func() {
		// docs begin
		client, err := clientv3.New(clientv3.Config{
			Endpoints: endpoints,
			Username:  "operator",
			Password:  "operator-secret",
		})
		check(err)
		defer client.Close()
		c, err := coordinator.New(client, nil) // or with the Options.Prefix that the workers use
		check(err)
		defer c.Close(ctx)
		check(c.Ping(ctx)) // makes the epoch record, if there is none
		// docs end
	}()
	ping(t, newCoordinator(t, g.user(t, "worker"), nil))
}

func (g guarded) as(t *testing.T, user, password string) *clientv3.Client {
	t.Helper()
	return g.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password = user, password })
}

// user is a client of one of the users of rbac.md.
func (g guarded) user(t *testing.T, name string) *clientv3.Client {
	t.Helper()
	return g.as(t, name, password(name))
}

// actor is a process of some user.
type actor struct {
	client    *clientv3.Client
	c         *coordinator.Coordinator
	guard     *etcdguard.Guard
	highWater *etcdguard.Guard
}

func newActor(t *testing.T, client *clientv3.Client, opts *coordinator.Options) actor {
	t.Helper()
	guard, err := etcdguard.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	highWater, err := etcdguard.New(client, &etcdguard.Options{Mode: etcdguard.HighWater})
	if err != nil {
		t.Fatal(err)
	}
	return actor{client, newCoordinator(t, client, opts), guard, highWater}
}

func (a actor) evict(ctx context.Context, lock string) error {
	st, err := a.c.Status(ctx, lock)
	if err != nil {
		return err
	}
	return a.c.Evict(ctx, st.Holder.Token, "maintenance")
}

func (a actor) list(ctx context.Context) error {
	for _, err := range a.c.List(ctx, "") {
		if err != nil {
			return err
		}
	}
	return nil
}

func (a actor) observe(ctx context.Context, lock string) error {
	for _, err := range a.c.Observe(ctx, lock) {
		return err
	}
	return nil
}

func (a actor) acquire(ctx context.Context, lock string) error {
	grant, err := a.c.Acquire(ctx, lock)
	if err != nil {
		return err
	}
	return grant.Release(ctx)
}

// TestWorkerRoleIsEnough: what a worker does in its life.
func TestWorkerRoleIsEnough(t *testing.T) {
	g := newGuarded(t)
	var failures []string
	hooks := coordinator.Hooks{Lost: func(l *coordinator.LostError) { failures = append(failures, l.Error()) }}
	a := newActor(t, g.user(t, "worker"), &coordinator.Options{TTL: time.Second, Hooks: hooks})
	b := newActor(t, g.user(t, "worker"), nil)
	ctx := within(t, 2*patience)
	ping(t, a.c)

	err := a.c.Do(ctx, "stock", func(ctx context.Context, grant *coordinator.Grant) error {
		kv, err := a.guard.KV(grant)
		if err != nil {
			return err
		}
		if _, err := kv.Put(ctx, "/app/stock", "8"); err != nil {
			return err
		}
		if _, err := kv.Get(ctx, "/app/", clientv3.WithPrefix()); err != nil {
			return err
		}
		_, err = kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("/app/stock"), "=", "8")).
			Then(clientv3.OpDelete("/app/stock")).Else(clientv3.OpGet("/app/stock")).Commit()
		return err
	}, coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		return a.guard.Advance(ctx, "/app/stock", token)
	}))
	if err != nil {
		t.Fatal(err)
	}

	// The same with marks, and an operation that is repeated.
	err = a.c.Do(ctx, "stock", func(ctx context.Context, grant *coordinator.Grant) error {
		kv, err := a.highWater.KV(grant)
		if err != nil {
			return err
		}
		once := resourceguard.WithOperation(ctx, resourceguard.Operation{ID: "1"})
		for range 2 {
			if _, err := kv.Put(once, "/app/stock", "8"); err != nil {
				return err
			}
		}
		got, err := kv.Get(ctx, "/app/stock")
		if err == nil && (len(got.Kvs) != 1 || got.Kvs[0].Version != 1) {
			err = fmt.Errorf("a repeated operation made %v", got.Kvs)
		}
		return err
	}, coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		return a.highWater.Advance(ctx, "stock", token)
	}))
	if err != nil {
		t.Fatal(err)
	}

	// Waiting, renewing for longer than a lease, publishing, handing on.
	first, err := a.c.Acquire(ctx, "stock", coordinator.Reason("test"))
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 2)
	for _, x := range []actor{a, b} {
		go func() { waited <- x.acquire(ctx, "stock") }()
	}
	for {
		st, err := b.c.Status(ctx, "stock")
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Waiting) > 0 && a.c.Health().Waiting > 0 {
			break
		}
	}
	if err := first.SetValue(ctx, []byte("here")); err != nil {
		t.Error(err)
	}
	for age := time.Duration(0); age < 1500*time.Millisecond; age += 50 * time.Millisecond {
		time.Sleep(50 * time.Millisecond) // time has to pass
		if err := first.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-waited; err != nil {
			t.Error(err)
		}
	}

	job, err := a.c.TryAcquireAny(ctx, slices.Values([]string{"job-1", "job-2"}))
	if err != nil {
		t.Fatal(err)
	}
	var busy *coordinator.BusyError
	if _, err := b.c.TryAcquire(ctx, job.Lock()); !errors.As(err, &busy) {
		t.Errorf("try of a held lock: %v", err)
	}
	both, err := b.c.AcquireAll(ctx, []string{"from", "to"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(job.Release(ctx), both.Release(ctx), b.list(ctx), b.observe(ctx, "stock")); err != nil {
		t.Error(err)
	}
	if err := errors.Join(a.c.Close(ctx), b.c.Close(ctx)); err != nil {
		t.Error(err)
	}
	left, err := g.root.Get(ctx, "/etcd-fence/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(left.Kvs) != 3 {
		t.Errorf("left of two closed workers: %v, %v; want the epoch record, a mark and the record of an operation", left.Kvs, err)
	}
	if len(failures) > 0 {
		t.Errorf("lost: %v", failures)
	}
}

// TestObserverWritesNothing: neither by way of this library nor of etcd's own.
func TestObserverWritesNothing(t *testing.T) {
	g := newGuarded(t)
	worker := newActor(t, g.user(t, "worker"), nil)
	ctx := within(t, 2*patience)
	grant, err := worker.c.Acquire(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	keep(t, grant)
	o := newActor(t, g.user(t, "observer"), nil)
	before, err := g.root.Get(ctx, "", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := o.guard.KV(grant)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Ping":          func() error { return o.c.Ping(ctx) },
		"acquire":       func() error { return o.acquire(ctx, "free") },
		"TryAcquire":    func() error { _, err := o.c.TryAcquire(ctx, "free"); return err },
		"Evict":         func() error { return o.evict(ctx, "held") },
		"guarded write": func() error { _, err := kv.Put(ctx, "/app/stock", "5"); return err },
		"put":           func() error { _, err := o.client.Put(ctx, "/etcd-fence/locks/held/x", ""); return err },
		"delete":        func() error { _, err := o.client.Delete(ctx, grant.Key()); return err },
		"revoke":        func() error { _, err := o.client.Revoke(ctx, grant.Lease()); return err },
		"renew":         func() error { _, err := o.client.KeepAliveOnce(ctx, grant.Lease()); return err },
	} {
		if err := f(); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v, want %v", name, err, rpctypes.ErrPermissionDenied)
		}
	}
	if err := errors.Join(o.list(ctx), o.observe(ctx, "held"), grant.Err()); err != nil {
		t.Error(err)
	}
	after, err := g.root.Get(ctx, "", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keysOf(before), keysOf(after)); diff != "" {
		t.Errorf("what etcd holds changed (-before +after):\n%s", diff)
	}
	if _, err := o.client.Grant(ctx, 5); err != nil {
		t.Errorf("grant a lease: %v", err)
	}
}

func keysOf(resp *clientv3.GetResponse) []string {
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, fmt.Sprintf("%s@%d", kv.Key, kv.ModRevision))
	}
	return keys
}
