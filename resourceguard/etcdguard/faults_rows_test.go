package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// unclear is what somebody may be told who asked at the wrong moment.
func unclear(err error) bool {
	var etcd rpctypes.EtcdError
	var grpc interface{ GRPCStatus() *status.Status }
	code := codes.OK
	if errors.As(err, &etcd) {
		code = etcd.Code()
	} else if errors.As(err, &grpc) {
		code = grpc.GRPCStatus().Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown: // the last is "raft proposal dropped"
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

func isOneOf(kinds ...error) func(error) bool {
	return func(err error) bool {
		for _, kind := range kinds {
			if errors.Is(err, kind) {
				return true
			}
		}
		return false
	}
}

func moveLeader(t *testing.T, s *stage) {
	first := s.etcd.Leader(t)
	for i := 1; i <= 3; i++ {
		s.etcd.MoveLeader(t, (first+i)%3)
	}
}

func compact(t *testing.T, s *stage) {
	for range 5 {
		resp, err := s.truth.Put(soon(t), "unrelated", "")
		must(t, err)
		_, err = s.truth.Compact(soon(t), resp.Header.Revision, clientv3.WithCompactPhysical())
		must(t, err)
	}
}

func revokeLeases(t *testing.T, s *stage) {
	for _, w := range s.writers {
		_, err := s.truth.Revoke(soon(t), w.lease)
		must(t, err)
	}
}

func deleteKeys(t *testing.T, s *stage) {
	for _, w := range s.writers {
		resp, err := s.truth.Delete(soon(t), w.key)
		must(t, err)
		if resp.Deleted != 1 {
			t.Errorf("%s was not there", w.key)
		}
	}
}

func TestFaultsThatCanBeUndone(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as many other tests together: not in a quick run (-short)")
	}
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	s := &stage{etcd: etcd, truth: etcd.Client(), path: etcd.Proxies(t)}
	s.client = etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = s.path.Endpoints() })
	for _, f := range []fault{
		{name: "leader moved", cause: moveLeader, with: unclear},
		{name: "compaction", cause: compact},
		{name: "lease revoked", cause: revokeLeases, ends: true},
		{name: "key deleted", cause: deleteKeys, ends: true},
		{name: "cut off", with: unclear, writesFail: true,
			cause: func(_ *testing.T, s *stage) { s.path.Cut() }, over: func(_ *testing.T, s *stage) { s.path.Heal() }},
		{name: "cut off and reset", with: unclear,
			cause: func(_ *testing.T, s *stage) { s.path.Cut() },
			over: func(_ *testing.T, s *stage) {
				s.path.Reset()
				s.path.Heal()
			}},
	} {
		f.strike(t, s)
	}
}

func TestFaultOfFullEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as many other tests together: not in a quick run (-short)")
	}
	etcd := embedded.Start(t, &embedded.Options{Members: 3, Config: func(c *embed.Config) { c.QuotaBackendBytes = 8 << 20 }})
	fault{
		name: "no space", with: isOneOf(rpctypes.ErrNoSpace), writesFail: true,
		cause: func(t *testing.T, s *stage) {
			for err := error(nil); !errors.Is(err, rpctypes.ErrNoSpace); {
				if _, err = s.truth.Put(soon(t), "filler", strings.Repeat("x", 1<<20)); err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
					t.Fatal(err)
				}
			}
			for refused := 0; refused < 6; { // each member learns of the alarm by itself
				if _, err := s.truth.Put(soon(t), "more", ""); errors.Is(err, rpctypes.ErrNoSpace) {
					refused++
				} else {
					refused = 0
				}
			}
		},
		over: func(t *testing.T, s *stage) {
			resp, err := s.truth.Delete(soon(t), "filler")
			must(t, err)
			_, err = s.truth.Compact(soon(t), resp.Header.Revision, clientv3.WithCompactPhysical())
			must(t, err)
			for _, endpoint := range etcd.Endpoints() {
				_, err := s.truth.Defragment(soon(t), endpoint)
				must(t, err)
			}
			_, err = s.truth.AlarmDisarm(soon(t), &clientv3.AlarmMember{})
			must(t, err)
		},
	}.strike(t, &stage{etcd: etcd, truth: etcd.Client(), client: etcd.NewClient(t)})
}

// The password of the user is changed, and changed back.
func TestFaultOfAChangedPassword(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as many other tests together: not in a quick run (-short)")
	}
	etcd := embedded.Start(t, &embedded.Options{Members: 3, Config: func(c *embed.Config) { c.BcryptCost = 4 }})
	c, ctx := etcd.Client(), soon(t)
	for _, user := range []string{"root", "writer"} {
		_, err := c.UserAdd(ctx, user, "secret")
		must(t, err)
		_, err = c.UserGrantRole(ctx, user, "root")
		must(t, err)
	}
	_, err := c.AuthEnable(ctx)
	must(t, err)
	as := func(name string) func(*clientv3.Config) {
		return func(c *clientv3.Config) { c.Username, c.Password = name, "secret" }
	}
	change := func(to string) func(*testing.T, *stage) {
		return func(t *testing.T, s *stage) {
			_, err := s.truth.UserChangePassword(soon(t), "writer", to)
			must(t, err)
		}
	}
	denied := isOneOf(rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision)
	fault{
		name: "password changed", with: denied, writesFail: true, cause: change("another"), over: change("secret"),
	}.strike(t, &stage{etcd: etcd, truth: etcd.NewClient(t, as("root")), client: etcd.NewClient(t, as("writer"))})
}

// A member that finds at the last moment that there is no space applies the write
// and says so all the same.
func TestNoSpaceMayHaveBeenApplied(t *testing.T) {
	s := start(t, nil)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	s.wire.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if err := call.Send(ctx); err != nil {
			return err
		}
		return rpctypes.ErrGRPCNoSpace
	})
	_, err := kv.Put(soon(t), "k", "v")
	if o := resourceguard.OutcomeOf(err); o != resourceguard.Unknown || !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("%v with outcome %v, want unknown", err, o)
	}
	s.wantValue(t, "k", "v")
	if _, err = kv.Get(soon(t), "k"); resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		t.Errorf("a read: %v with outcome %v", err, resourceguard.OutcomeOf(err))
	}
}
