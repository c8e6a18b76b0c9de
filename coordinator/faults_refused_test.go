package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// etcd has no room: what puts a key is refused at once and says why, what only
// deletes goes on, and leases are renewed.
func TestFaultOfFullEtcd(t *testing.T) {
	long(t)
	etcd := embedded.Start(t, &embedded.Options{Members: 3, Config: func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 }})
	full := answer{must: true, with: is(rpctypes.ErrNoSpace)}
	fault{
		name: "no space", writes: full, full: true,
		cause: func(t *testing.T, s *scene) {
			for err := error(nil); !errors.Is(err, rpctypes.ErrNoSpace); {
				if _, err = s.truth.Put(t.Context(), "filler", strings.Repeat("x", 1<<20)); err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
					t.Fatal(err)
				}
			}
			// A member that has room itself learns of the alarm from the log.
			eventually(t, "every member refuses", func() bool {
				for range 10 {
					if _, err := s.truth.Put(t.Context(), "more", ""); !errors.Is(err, rpctypes.ErrNoSpace) {
						return false
					}
				}
				return true
			})
		},
		over: func(t *testing.T, s *scene) {
			ctx := within(t, patience)
			resp, err := s.truth.Delete(ctx, "filler")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.truth.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
				t.Fatal(err)
			}
			for _, endpoint := range etcd.Endpoints() {
				if _, err := s.truth.Defragment(ctx, endpoint); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.truth.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
				t.Fatal(err)
			}
		},
	}.strike(t, struckFrom(t, etcd))
}

// guarded is a cluster of which every client needs a name, and one that may use
// locks.
func guarded(t *testing.T, auth embedded.Auth) (etcd *embedded.Cluster, asUser func(*clientv3.Config)) {
	t.Helper()
	etcd = embedded.Start(t, &embedded.Options{Members: 3, Auth: &auth})
	root, ctx := etcd.Client(), within(t, patience)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.RoleAdd(ctx, "locks"))
	for _, place := range []string{coordinator.DefaultPrefix, "/elsewhere/"} {
		must(root.RoleGrantPermission(ctx, "locks", place, clientv3.GetPrefixRangeEnd(place), clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	must(root.UserAdd(ctx, "locks", "secret"))
	must(root.UserGrantRole(ctx, "locks", "locks"))
	return etcd, func(c *clientv3.Config) { c.Username, c.Password = "locks", "secret" }
}

// The password of the user is changed: nothing is permitted any more, all are
// told so, and with the old password everything works again.
func TestFaultOfAChangedPassword(t *testing.T) {
	long(t)
	etcd, asUser := guarded(t, embedded.Auth{})
	s := &scene{etcd: etcd, truth: etcd.Client()}
	s.client, s.wire = tapped(t, etcd, asUser)
	denied := answer{must: true, with: is(rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, coordinator.ErrLost, coordinator.ErrUnsettled)}
	change := func(to string) func(t *testing.T, s *scene) {
		return func(t *testing.T, s *scene) {
			if _, err := s.truth.UserChangePassword(context.WithoutCancel(t.Context()), "locks", to); err != nil {
				t.Fatal(err)
			}
		}
	}
	fault{
		name: "password changed", ttl: 4 * time.Second, given: 5 * time.Second,
		lost: unproven, reads: denied, writes: denied, waits: denied.with,
		cause: change("another"), over: change("secret"),
	}.strike(t, s)
}
