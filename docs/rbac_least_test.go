package docs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// lacking is a permission that is taken away, and a call that must fail then.
type lacking struct {
	key  string
	what clientv3.PermissionType
}

func (l lacking) String() string {
	return strings.ToLower(authpb.Permission_Type(l.what).String()) + " " + l.key
}

const (
	read  = clientv3.PermissionType(clientv3.PermRead)
	write = clientv3.PermissionType(clientv3.PermWrite)
)

// permissions lists what a role may do, one by one.
func (g guarded) permissions(t *testing.T, role string) map[lacking]*authpb.Permission {
	t.Helper()
	resp, err := g.root.RoleGet(within(t, patience), role)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[lacking]*authpb.Permission)
	for _, p := range resp.Perm {
		if p.PermType != authpb.Permission_WRITE {
			all[lacking{string(p.Key), read}] = p
		}
		if p.PermType != authpb.Permission_READ {
			all[lacking{string(p.Key), write}] = p
		}
	}
	return all
}

// without takes a permission away and returns how to give it back.
func (g guarded) without(t *testing.T, role string, l lacking, p *authpb.Permission) (restore func()) {
	t.Helper()
	set := func(kind authpb.Permission_Type) {
		if _, err := g.root.RoleGrantPermission(within(t, patience), role, string(p.Key), string(p.RangeEnd), clientv3.PermissionType(kind)); err != nil {
			t.Fatal(err)
		}
	}
	switch {
	case p.PermType != authpb.Permission_READWRITE:
		if _, err := g.root.RoleRevokePermission(within(t, patience), role, string(p.Key), string(p.RangeEnd)); err != nil {
			t.Fatal(err)
		}
	case l.what == read:
		set(authpb.Permission_WRITE)
	default:
		set(authpb.Permission_READ)
	}
	return func() { set(p.PermType) }
}

// TestRolesAreTheLeast: with the role of the page each call works, and without any
// one permission of it the calls that the page names are refused, at once.
func TestRolesAreTheLeast(t *testing.T) {
	g := newGuarded(t)
	var grant *coordinator.Grant // of a worker, anew for each role
	repeats := 0
	const p = "/etcd-fence/"
	calls := map[string]func(context.Context, actor) error{
		"Ping":    func(ctx context.Context, a actor) error { return a.c.Ping(ctx) },
		"acquire": func(ctx context.Context, a actor) error { return a.acquire(ctx, "free") },
		"first Ping": func(ctx context.Context, a actor) error {
			// As if nobody had used the prefix.
			for _, place := range []string{"sessions/", "marks/", "ops/", "floors/", "epoch"} {
				if _, err := g.root.Delete(ctx, p+place, clientv3.WithPrefix()); err != nil {
					return err
				}
			}
			err := a.c.Ping(ctx)
			ping(t, newCoordinator(t, g.root, nil))
			return err
		},
		"Advance": func(ctx context.Context, a actor) error { return a.guard.Advance(ctx, "/app/stock", grant.Token()) },
		"get": func(ctx context.Context, a actor) error {
			kv, err := a.guard.KV(grant)
			if err != nil {
				return err
			}
			_, err = kv.Get(ctx, "/app/stock")
			return err
		},
		"put": func(ctx context.Context, a actor) error {
			kv, err := a.guard.KV(grant)
			if err != nil {
				return err
			}
			_, err = kv.Put(ctx, "/app/stock", "2")
			return err
		},
		"raise": func(ctx context.Context, a actor) error {
			fresh, err := a.c.Acquire(ctx, "raised")
			if err != nil {
				return err
			}
			defer func() { _ = fresh.Release(ctx) }()
			return a.highWater.Advance(ctx, "raised", fresh.Token())
		},
		"raising put": func(ctx context.Context, a actor) error {
			fresh, err := a.c.Acquire(ctx, "raised")
			if err != nil {
				return err
			}
			defer func() { _ = fresh.Release(ctx) }()
			kv, err := a.highWater.KV(fresh)
			if err != nil {
				return err
			}
			_, err = kv.Put(ctx, "/app/stock", "2")
			return err
		},
		"repeatable put": func(ctx context.Context, a actor) error {
			kv, err := a.highWater.KV(grant)
			if err != nil {
				return err
			}
			repeats++
			id := resourceguard.Operation{ID: strconv.Itoa(repeats)}
			_, err = kv.Put(resourceguard.WithOperation(ctx, id), "/app/stock", "2")
			return err
		},
		"Marks": func(ctx context.Context, a actor) error {
			for _, err := range a.highWater.Marks(ctx) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"SetFloor": func(ctx context.Context, a actor) error {
			return a.highWater.SetFloor(ctx, revisionfence.Mark{Resource: "held", Token: grant.Token()}, "test")
		},
		"Status":    func(ctx context.Context, a actor) error { _, err := a.c.Status(ctx, "held"); return err },
		"IsCurrent": func(ctx context.Context, a actor) error { _, err := a.c.IsCurrent(ctx, grant.Token()); return err },
		"List":      func(ctx context.Context, a actor) error { return a.list(ctx) },
		"Observe":   func(ctx context.Context, a actor) error { return a.observe(ctx, "held") },
		"Evict":     func(ctx context.Context, a actor) error { return a.evict(ctx, "victim") },
		"delete": func(ctx context.Context, a actor) error {
			if _, err := g.root.Put(ctx, "/etcd-fence/locks/blocked/stray", ""); err != nil {
				return err
			}
			_, err := a.client.Delete(ctx, "/etcd-fence/locks/blocked/stray")
			return err
		},
	}
	for _, role := range []struct {
		name    string // of the role, after "fence-"
		lacking map[lacking][]string
	}{
		{"operator", map[lacking][]string{
			{p + "epoch", read}:      {"Evict", "Ping", "SetFloor"},
			{p + "epoch", write}:     {"first Ping"},
			{p + "sessions/", read}:  {"Ping"},
			{p + "sessions/", write}: {"Evict"},
			{p + "locks/", read}:     {"Evict", "Status", "SetFloor"},
			{p + "locks/", write}:    {"Evict", "delete"},
			{p + "marks/", read}:     {"first Ping", "SetFloor"},
			{p + "marks/", write}:    {"SetFloor"},
			{p + "ops/", read}:       {"first Ping"},
			{p + "floors/", read}:    {"first Ping", "SetFloor"},
			{p + "floors/", write}:   {"SetFloor"},
		}},
		{"worker", map[lacking][]string{
			{p + "epoch", read}:      {"Ping", "acquire", "Advance"},
			{p + "sessions/", read}:  {"Ping", "acquire"},
			{p + "sessions/", write}: {"Ping", "acquire"},
			{p + "locks/", read}:     {"Ping", "acquire", "get", "put"},
			{p + "locks/", write}:    {"Ping", "acquire"},
			{"/app/", read}:          {"get"},
			{"/app/", write}:         {"put"},
		}},
		{"worker-marks", map[lacking][]string{
			{p + "marks/", read}:  {"raise", "raising put", "repeatable put"},
			{p + "marks/", write}: {"raise", "raising put"},
			{p + "ops/", read}:    {"repeatable put"},
			{p + "ops/", write}:   {"repeatable put"},
		}},
		{"observer", map[lacking][]string{
			{p + "epoch", read}:  {"Status", "List", "Observe", "IsCurrent"},
			{p + "locks/", read}: {"Status", "List", "Observe", "IsCurrent"},
			{p + "marks/", read}: {"Marks"},
		}},
	} {
		t.Run(role.name, func(t *testing.T) {
			holder := newActor(t, g.user(t, "worker"), nil)
			var err error
			if grant, err = holder.c.Acquire(within(t, patience), "held"); err != nil {
				t.Fatal(err)
			}
			kv, err := holder.guard.KV(grant)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kv.Put(within(t, patience), "/app/stock", "1"); err != nil {
				t.Fatal(err)
			}
			call := func(name string) error {
				if name == "Evict" {
					victim, err := newCoordinator(t, g.user(t, "worker"), nil).Acquire(within(t, patience), "victim")
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = victim.Release(context.Background()) }()
				}
				return calls[name](within(t, patience), newActor(t, g.user(t, strings.TrimSuffix(role.name, "-marks")), nil))
			}
			all := g.permissions(t, "fence-"+role.name)
			named := slices.SortedFunc(maps.Keys(role.lacking), func(a, b lacking) int { return strings.Compare(a.String(), b.String()) })
			for l := range all {
				if !slices.Contains(named, l) {
					t.Errorf("nothing here needs %s", l)
				}
			}
			works := make(map[string]bool)
			for _, l := range named {
				perm, ok := all[l]
				if !ok {
					t.Errorf("the role has no %s", l)
					continue
				}
				for _, name := range role.lacking[l] {
					if !works[name] {
						if err := call(name); err != nil {
							t.Errorf("%s with the whole role: %v", name, err)
						}
						works[name] = true
					}
				}
				restore := g.without(t, "fence-"+role.name, l, perm)
				for _, name := range role.lacking[l] {
					began := time.Now()
					err := call(name)
					if !errors.Is(err, rpctypes.ErrPermissionDenied) {
						t.Errorf("%s without %s: %v, want %v", name, l, err, rpctypes.ErrPermissionDenied)
					}
					// Far below every time-out, and far above what a machine that does
					// other things needs.
					if took := time.Since(began); took > patience/2 {
						t.Errorf("%s without %s was refused after %v", name, l, took)
					}
				}
				restore()
			}
		})
	}
}
