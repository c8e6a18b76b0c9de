package etcdonce_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

func TestDefinite(t *testing.T) {
	definite := []error{
		rpctypes.ErrGRPCEmptyKey, rpctypes.ErrGRPCKeyNotFound, rpctypes.ErrGRPCValueProvided,
		rpctypes.ErrGRPCLeaseProvided, rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCDuplicateKey,
		rpctypes.ErrGRPCInvalidSortOption, rpctypes.ErrGRPCCompacted, rpctypes.ErrGRPCFutureRev,
		rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCLeaseExist,
		rpctypes.ErrGRPCLeaseTTLTooLarge, rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCUserNotFound, rpctypes.ErrGRPCAuthFailed,
		rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCPermissionNotGiven, rpctypes.ErrGRPCRoleNotGranted,
		rpctypes.ErrGRPCAuthNotEnabled, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCInvalidAuthMgmt,
		rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCNotSupportedForLearner,
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCInvalidClientAPIVersion,
		// As servers up to 3.5 send them.
		status.Error(codes.Unavailable, "etcdserver: not capable"),
		status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"),
		// Of a server that is no etcd, or of a proxy that lets nobody through.
		status.Error(codes.Unimplemented, "unknown service etcdserverpb.KV"),
		status.Error(codes.PermissionDenied, "unexpected HTTP status code received from server: 403 (Forbidden)"),
		status.Error(codes.Unauthenticated, "transport: per-RPC creds failed"),
	}
	open := []error{
		rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCTimeout,
		rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCTimeoutWaitAppliedIndex, rpctypes.ErrGRPCUnhealthy, rpctypes.ErrGRPCCorrupt,
		rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded,
		status.Error(codes.Unavailable, "error reading from server: EOF"),
		status.Error(codes.Unavailable, "transport is closing"),
		status.Error(codes.Unavailable, "connection error: desc = \"transport: Error while dialing\""),
		status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2048 vs. 1024)"),
		status.Error(codes.ResourceExhausted, "trying to send message larger than max (2048 vs. 1024)"),
		status.Error(codes.Canceled, "context canceled"),
		status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		status.Error(codes.Unknown, "OK: HTTP status code 200"),
		status.Error(codes.DataLoss, "?"), status.Error(codes.Aborted, "?"),
		status.Error(codes.Canceled, "grpc: the client connection is closing"), context.Canceled, context.DeadlineExceeded, io.ErrUnexpectedEOF,
		errors.New("something else"), nil,
	}
	check := func(err error, want bool) {
		t.Helper()
		if got := etcdonce.Definite(err); got != want {
			t.Errorf("Definite(%v) = %v", err, got)
		}
	}
	for want, errs := range map[bool][]error{true: definite, false: open} {
		for _, err := range errs {
			check(err, want)
			if err == nil {
				continue
			}
			check(rpctypes.Error(err), want) // as clientv3 returns it
			check(fmt.Errorf("put %q: %w", "k", err), want)
			check(fmt.Errorf("put %q: %w", "k", rpctypes.Error(err)), want)
		}
	}
}
