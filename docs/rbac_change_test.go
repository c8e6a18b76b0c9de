package docs

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// TestPermissionsThatChangeUnderAHolder: who can renew no more is told so in time,
// asks for nothing in vain, and keeps the lock from nobody for longer than a lease.
func TestPermissionsThatChangeUnderAHolder(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ctx context.Context, root *clientv3.Client) error
		want   error
	}{
		"password": {func(ctx context.Context, root *clientv3.Client) error {
			_, err := root.UserChangePassword(ctx, "second", "other")
			return err
		}, rpctypes.ErrAuthFailed},
		"role of the user": {func(ctx context.Context, root *clientv3.Client) error {
			_, err := root.UserRevokeRole(ctx, "second", "second")
			return err
		}, rpctypes.ErrPermissionDenied},
		"permission of the role": {func(ctx context.Context, root *clientv3.Client) error {
			_, err := root.RoleRevokePermission(ctx, "second", "/etcd-fence/", "/etcd-fence0")
			return err
		}, rpctypes.ErrPermissionDenied},
		"user": {func(ctx context.Context, root *clientv3.Client) error {
			_, err := root.UserDelete(ctx, "second")
			return err
		}, rpctypes.ErrAuthFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for a lease, mostly
			g := newGuarded(t)
			ctx := within(t, 2*patience)
			g.addSecond(t)
			a := newActor(t, g.as(t, "second", "secret"), &coordinator.Options{TTL: 2 * time.Second})
			grant, err := a.c.Acquire(ctx, "stock")
			if err != nil {
				t.Fatal(err)
			}
			kv, err := a.guard.KV(grant)
			if err != nil {
				t.Fatal(err)
			}
			changed := time.Now()
			if err := c.change(ctx, g.root); err != nil {
				t.Fatal(err)
			}
			if _, err := kv.Put(ctx, "/app/stock", "5"); !errors.Is(err, c.want) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
				t.Errorf("write of the holder: %v, %v; want %v", err, resourceguard.OutcomeOf(err), c.want)
			}
			select {
			case <-grant.Context().Done():
			case <-ctx.Done():
				t.Fatal("the holder was not told")
			}
			told := time.Since(changed)
			var lost *coordinator.LostError
			if err := grant.Err(); !errors.As(err, &lost) || lost.Reason != coordinator.LostUnproven {
				t.Errorf("the holder was told %v", err)
			}
			if told > grant.TTL() {
				t.Errorf("the holder was told after %v, later than its lease of %v", told, grant.TTL())
			}
			began := time.Now()
			for what, err := range map[string]error{"acquire": a.acquire(ctx, "stock"), "Ping": a.c.Ping(ctx)} {
				if !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", what, err, c.want)
				}
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("refused after %v", took)
			}
			next, err := newCoordinator(t, g.user(t, "worker"), nil).Acquire(ctx, "stock")
			if err != nil {
				t.Fatal(err)
			}
			if order, err := next.Token().Compare(grant.Token()); err != nil || order <= 0 {
				t.Errorf("token %s after %s", next.Token(), grant.Token())
			}
			// Nobody can revoke the lease: it runs out.
			free := time.Since(changed)
			if free < grant.TTL()/2 {
				t.Errorf("the lock was free after %v, with a TTL of %v", free, grant.TTL())
			}
			t.Logf("told after %v, free after %v", told, free)
		})
	}
}

// TestPermissionThatComesBackInTime loses nothing.
func TestPermissionThatComesBackInTime(t *testing.T) {
	g := newGuarded(t)
	ctx := within(t, 2*patience)
	g.addSecond(t)
	a := newActor(t, g.as(t, "second", "secret"), &coordinator.Options{TTL: 6 * time.Second, DrainMargin: 3500 * time.Millisecond})
	grant, err := a.c.Acquire(ctx, "stock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.root.UserRevokeRole(ctx, "second", "second"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-grant.Draining():
	case <-ctx.Done():
		t.Fatal("the holder was not asked to stop starting work")
	}
	if _, err := g.root.UserGrantRole(ctx, "second", "second"); err != nil {
		t.Fatal(err)
	}
	for a.c.Health().Err != nil && grant.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if err := grant.Err(); err != nil {
		t.Fatal(err)
	}
	if err := grant.Release(ctx); err != nil {
		t.Error(err)
	}
}

// TestEvictionNeedsEveryKeyOfTheLease: also those that the holder's program has
// put there.
func TestEvictionNeedsEveryKeyOfTheLease(t *testing.T) {
	g := newGuarded(t)
	ctx := within(t, patience)
	worker, operator := newActor(t, g.user(t, "worker"), nil), newActor(t, g.user(t, "operator"), nil)
	grant, err := worker.c.Acquire(ctx, "stock")
	if err != nil {
		t.Fatal(err)
	}
	keep(t, grant)
	if _, err := worker.client.Put(ctx, "/app/here", "", clientv3.WithLease(grant.Lease())); err != nil {
		t.Fatal(err)
	}
	if err := operator.evict(ctx, "stock"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("evict with a key on the lease that the operator may not write: %v", err)
	}
	if err := grant.Err(); err != nil {
		t.Error(err)
	}
	if _, err := worker.client.Delete(ctx, "/app/here"); err != nil {
		t.Fatal(err)
	}
	if err := operator.evict(ctx, "stock"); err != nil {
		t.Error(err)
	}
}

// addSecond makes a second user for a worker, whose role is its own.
func (g guarded) addSecond(t *testing.T) {
	t.Helper()
	ctx := within(t, patience)
	for _, err := range []error{
		second(g.root.RoleAdd(ctx, "second")),
		second(g.root.RoleGrantPermission(ctx, "second", "/etcd-fence/", "/etcd-fence0", clientv3.PermissionType(clientv3.PermReadWrite))),
		second(g.root.RoleGrantPermission(ctx, "second", "/app/", "/app0", clientv3.PermissionType(clientv3.PermReadWrite))),
		second(g.root.UserAdd(ctx, "second", "secret")),
		second(g.root.UserGrantRole(ctx, "second", "second")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
