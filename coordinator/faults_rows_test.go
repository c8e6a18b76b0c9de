package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// unclear is what somebody may be told who asked at the wrong moment: that etcd
// could not say, or has not said.
func unclear(err error) bool {
	var etcd rpctypes.EtcdError
	var grpc interface{ GRPCStatus() *status.Status }
	code := codes.OK
	if errors.As(err, &etcd) {
		code = etcd.Code()
	} else if errors.As(err, &grpc) {
		code = grpc.GRPCStatus().Code()
	}
	if code == codes.Unavailable || code == codes.Unknown { // such as "raft proposal dropped"
		return true
	}
	return errors.Is(err, coordinator.ErrUnsettled) || errors.Is(err, coordinator.ErrNoAnswer)
}

// Whoever looks first at a lease that was revoked sees that, or that its keys are
// gone.
var (
	revoked  = []coordinator.LostReason{coordinator.LostRevoked, coordinator.LostKeyDeleted}
	deleted  = []coordinator.LostReason{coordinator.LostKeyDeleted}
	unproven = []coordinator.LostReason{coordinator.LostUnproven}
)

var maybe = answer{with: unclear}

// endedMeanwhile is what somebody is told who asked on what was just ending.
var endedMeanwhile = answer{with: is(coordinator.ErrLost)}

// unanswered is what somebody is told whom etcd does not answer at all.
var unanswered = answer{must: true, with: is(context.DeadlineExceeded, coordinator.ErrNoAnswer, coordinator.ErrUnsettled, coordinator.ErrLost)}

// leasesOfJudged are those of the process that is judged.
func leasesOfJudged(t *testing.T, s *scene) map[int64]string {
	t.Helper()
	sessions, err := s.truth.Get(t.Context(), sessionsPrefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	leases := make(map[int64]string)
	for _, kv := range sessions.Kvs {
		news := strings.Contains(string(kv.Key)[len(sessionsPrefix):], "/") // of an eviction
		if !news && strings.Contains(string(kv.Value), `"judged"`) {
			leases[kv.Lease] = string(kv.Key)
		}
	}
	return leases
}

func revokeLeases(t *testing.T, s *scene) {
	for lease := range leasesOfJudged(t, s) {
		if _, err := s.truth.Revoke(t.Context(), clientv3.LeaseID(lease)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // of the one that is closing
			t.Error(err)
		}
	}
}

func deleteSessions(t *testing.T, s *scene) {
	for _, key := range leasesOfJudged(t, s) {
		if _, err := s.truth.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

func deleteLockKeys(t *testing.T, s *scene) {
	leases := leasesOfJudged(t, s)
	for _, place := range []string{locksPrefix, elsewhere("")[:len("/elsewhere/")]} {
		keys, err := s.truth.Get(t.Context(), place, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range keys.Kvs {
			if _, judged := leases[kv.Lease]; !judged {
				continue
			}

			if _, err := s.truth.Delete(t.Context(), string(kv.Key)); err != nil {
				t.Error(err)
			}
		}
	}
}

// compact has other keys move on and takes all history away, over and over.
func compact(t *testing.T, s *scene) {
	for range 5 {
		var last int64
		for i := range 10 {
			resp, err := s.truth.Put(t.Context(), "unrelated", fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			last = resp.Header.Revision
		}
		if _, err := s.truth.Compact(t.Context(), last, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
	}
}

func moveLeader(t *testing.T, s *scene) {
	first := s.etcd.Leader(t)
	for i := 1; i <= 3; i++ {
		s.etcd.MoveLeader(t, (first+i)%3)
	}
}

// cut cuts the process that is judged off until a proof is overdue. The
// connections stay open, and what was sent arrives.
func cut(t *testing.T, s *scene) {
	s.path.Cut()
	eventually(t, "a proof is overdue", func() bool { return s.c.Health().ProofAge > s.ttl/3 })
	s.path.Heal()
}

func cutAndReset(t *testing.T, s *scene) {
	s.path.Cut()
	eventually(t, "a proof is overdue", func() bool { return s.c.Health().ProofAge > s.ttl/3 })
	s.path.Reset()
	s.path.Heal()
}

// cutForLong cuts it off until its leases have run out, and connects it again.
var cutForLong = fault{
	name: "cut off for longer than the lease", ttl: 3 * time.Second, given: 2 * time.Second,
	cause: func(_ *testing.T, s *scene) { s.path.Cut() },
	over: func(t *testing.T, s *scene) {
		// What was sent before is carried out now, if etcd would.
		eventually(t, "the window has closed", func() bool { return s.c.Health().Lease == clientv3.NoLease })
		s.path.Reset()
		s.path.Heal()
	},
	lost: unproven, reads: unanswered, writes: unanswered,
}

func TestFaultsThatCanBeUndone(t *testing.T) {
	long(t)
	etcd := embedded.Start(t, &embedded.Options{Members: 3})
	s := struckFrom(t, etcd)
	for _, f := range []fault{
		{name: "leader moved", ttl: 6 * time.Second, cause: moveLeader, reads: maybe, writes: maybe},
		{name: "compaction", cause: compact},
		{name: "lease revoked", ttl: 6 * time.Second, cause: revokeLeases, lost: revoked, reads: endedMeanwhile, writes: endedMeanwhile},
		{name: "lock keys deleted", ttl: 6 * time.Second, cause: deleteLockKeys, lost: deleted, reads: endedMeanwhile, writes: endedMeanwhile},
		{name: "session key deleted", ttl: 6 * time.Second, cause: deleteSessions, lost: deleted, reads: endedMeanwhile, writes: endedMeanwhile},
		{name: "cut off for less than the lease", ttl: 6 * time.Second, cause: cut},
		{name: "cut off and reset", ttl: 6 * time.Second, cause: cutAndReset, reads: maybe, writes: maybe},
		cutForLong,
		{name: "holder killed", cause: killHolders, holderDies: true},
	} {
		f.strike(t, s)
	}
}

// struckFrom is a scene whose process reaches etcd through proxies.
func struckFrom(t *testing.T, etcd *embedded.Cluster) *scene {
	t.Helper()
	s := &scene{etcd: etcd, truth: etcd.Client(), path: etcd.Proxies(t)}
	s.client, s.wire = tapped(t, etcd, func(c *clientv3.Config) { c.Endpoints = s.path.Endpoints() })
	return s
}
