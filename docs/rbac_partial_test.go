package docs

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// TestPartOfAQueueIsNoQueue: whoever cannot see all of a directory is refused, by
// Ping and by the acquire, and never takes itself for the first.
func TestPartOfAQueueIsNoQueue(t *testing.T) {
	const locks = "/etcd-fence/locks/"
	g := newGuarded(t)
	worker := newActor(t, g.user(t, "worker"), nil)
	ctx := within(t, 2*patience)
	held, err := worker.c.Acquire(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	key := held.Key()
	type span struct{ from, end string }
	prefix := func(p string) span { return span{p, clientv3.GetPrefixRangeEnd(p)} }
	for name, c := range map[string]struct {
		reads, writes []span
		directory     bool // sees all of that of the lock
		ping          bool
	}{
		"nothing":                     {writes: []span{prefix(locks)}},
		"all but the holder's key":    {reads: []span{{locks, key}, {key + "\x00", "/etcd-fence/locks0"}}, writes: []span{prefix(locks)}},
		"what comes after the holder": {reads: []span{{key + "\x00", "/etcd-fence/locks0"}}, writes: []span{prefix(locks)}},
		"what comes before it":        {reads: []span{{locks, key}}, writes: []span{prefix(locks)}},
		"half of the names":           {reads: []span{{locks, locks + "held/5"}}, writes: []span{prefix(locks)}},
		"its own keys":                {reads: []span{prefix(locks + "held/0")}, writes: []span{prefix(locks)}},
		"single keys":                 {reads: []span{{locks, ""}, {locks + "held/", ""}, {key, ""}}, writes: []span{prefix(locks)}},
		"another lock":                {reads: []span{prefix(locks + "other/")}, writes: []span{prefix(locks)}},
		"the end is one key short":    {reads: []span{{locks, "/etcd-fence/locks/\xff"}}, writes: []span{prefix(locks)}, directory: true},
		"whole directory of one lock": {reads: []span{prefix(locks + "held/")}, writes: []span{prefix(locks + "held/")}, directory: true},
		"only Ping's place to write":  {reads: []span{prefix(locks)}, writes: []span{{locks + "ping", ""}, {locks + "ping/", ""}}, directory: true, ping: true},
		"everything":                  {reads: []span{prefix(locks)}, writes: []span{prefix(locks)}, directory: true, ping: true},
	} {
		t.Run(name, func(t *testing.T) {
			must := func(_ any, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			user := strings.ReplaceAll(name, " ", "-")
			must(g.root.RoleAdd(ctx, user))
			must(g.root.RoleGrantPermission(ctx, user, "/etcd-fence/epoch", "", read))
			p := prefix("/etcd-fence/sessions/")
			must(g.root.RoleGrantPermission(ctx, user, p.from, p.end, clientv3.PermissionType(clientv3.PermReadWrite)))
			for _, s := range c.reads {
				kind := read
				if slices.Contains(c.writes, s) {
					kind = clientv3.PermissionType(clientv3.PermReadWrite)
				}
				must(g.root.RoleGrantPermission(ctx, user, s.from, s.end, kind))
			}
			for _, s := range c.writes {
				if !slices.Contains(c.reads, s) {
					must(g.root.RoleGrantPermission(ctx, user, s.from, s.end, write))
				}
			}
			must(g.root.UserAdd(ctx, user, "secret"))
			must(g.root.UserGrantRole(ctx, user, user))

			a := newActor(t, g.as(t, user, "secret"), nil)
			switch err := a.c.Ping(ctx); {
			case c.ping && err != nil:
				t.Errorf("ping: %v", err)
			case !c.ping && !errors.Is(err, rpctypes.ErrPermissionDenied):
				t.Errorf("ping: %v, want %v", err, rpctypes.ErrPermissionDenied)
			}
			want := rpctypes.ErrPermissionDenied
			if c.directory {
				want = coordinator.ErrBusy
			}
			for what, f := range map[string]func() (*coordinator.Grant, error){
				"TryAcquire":    func() (*coordinator.Grant, error) { return a.c.TryAcquire(ctx, "held") },
				"TryAcquireAny": func() (*coordinator.Grant, error) { return a.c.TryAcquireAny(ctx, slices.Values([]string{"held"})) },
				"Acquire": func() (*coordinator.Grant, error) {
					return a.c.Acquire(ctx, "held", coordinator.WaitAtMost(200*time.Millisecond))
				},
			} {
				grant, err := f()
				if grant != nil || !errors.Is(err, want) && !(c.directory && errors.Is(err, rpctypes.ErrPermissionDenied)) {
					t.Errorf("%s: %v, %v; want %v", what, grant, err, want)
				}
			}
			if err := held.Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPartOfADirectoryIsNoQueue is the same where Ping cannot know.
func TestPartOfADirectoryIsNoQueue(t *testing.T) {
	g := newGuarded(t)
	ctx := within(t, 2*patience)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.root.Put(ctx, "/jobs/report/5", "of another program"))
	must(g.root.RoleAdd(ctx, "half"))
	for _, p := range [][2]string{{"/etcd-fence/", "/etcd-fence0"}, {"/jobs/report/6", "/jobs/report0"}, {"/jobs/other/", "/jobs/other0"}} {
		must(g.root.RoleGrantPermission(ctx, "half", p[0], p[1], clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	must(g.root.UserAdd(ctx, "half", "secret"))
	must(g.root.UserGrantRole(ctx, "half", "half"))
	a := newActor(t, g.as(t, "half", "secret"), &coordinator.Options{Directory: func(lock string) string { return "/jobs/" + lock + "/" }})
	ping(t, a.c)
	for _, f := range []func() error{
		func() error { return a.acquire(ctx, "report") },
		func() error { _, err := a.c.TryAcquire(ctx, "report"); return err },
	} {
		if err := f(); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%v, want %v", err, rpctypes.ErrPermissionDenied)
		}
	}
	if err := a.acquire(ctx, "other"); err != nil {
		t.Error(err)
	}
}
