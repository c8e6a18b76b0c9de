package etcdonce

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unsentError is a request that never left this process.
type unsentError struct {
	err error
	ctx error // of the caller's context; nil while that lives
}

func (e *unsentError) Error() string { return "request not sent to etcd: " + e.err.Error() }

func (e *unsentError) Unwrap() []error {
	if e.ctx == nil {
		return []error{e.err}
	}
	return []error{e.err, e.ctx}
}

// GRPCStatus keeps clientv3 from replacing the error by that of the context, as
// it does with the codes Canceled and DeadlineExceeded.
func (e *unsentError) GRPCStatus() *status.Status {
	code := status.Code(e.err)
	if code != codes.ResourceExhausted {
		code = codes.Unavailable
	}
	return status.New(code, e.Error())
}

// unansweredError is a request that clientv3 would have repeated, not knowing
// what had become of it.
type unansweredError struct{ err error }

func (e *unansweredError) Error() string {
	return "no answer from etcd, and not repeated since it may have been applied: " + e.err.Error()
}

func (e *unansweredError) Unwrap() error { return e.err }

// Definite reports whether err says that the request was certainly not applied,
// and will not be. It understands the errors of a KV of [New], of clientv3 and
// of a gRPC connection to etcd.
//
// That etcd has no space is not definite: the member that finds it out applies the
// write all the same, and answers with the error (etcd, server/etcdserver/apply,
// quotaApplierV3).
//
// Every other error leaves the request open: it may have been applied, or be
// applied later, and nothing bounds how much later. That holds for the end of a
// context, for a broken connection and for etcd's own time-outs, because an
// entry in the raft log outlives whoever waited for it. Nil is not definite
// either.
func Definite(err error) bool {
	if _, ok := errors.AsType[*unsentError](err); ok {
		return true
	}
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return definite(e.Code(), e.Error())
	}
	// status.FromError would mix the text of what wraps the status into its
	// message, and the message decides.
	if e, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		s := e.GRPCStatus()
		return definite(s.Code(), s.Message())
	}
	return false
}

// definite decides by the code where all of its errors mean a refusal: they come
// from the checks before a proposal, or from an apply that changed nothing.
func definite(code codes.Code, message string) bool {
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition,
		codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	case codes.ResourceExhausted, codes.Unavailable:
		return refusals[message]
	default:
		return false
	}
}

// refusals are the refusals whose codes also stand for other things: for an
// answer that is too large to be received, and for a connection that broke.
var refusals = func() map[string]bool {
	m := make(map[string]bool)
	for _, err := range []error{
		rpctypes.ErrGRPCRequestTooManyRequests,
		// For writes only of the check before everything else, and only if the
		// caller asked for it with clientv3.WithRequireLeader.
		rpctypes.ErrGRPCNoLeader,
		// These two are Unavailable in servers up to 3.5.
		rpctypes.ErrGRPCNotCapable,
		rpctypes.ErrGRPCNotSupportedForLearner,
	} {
		m[rpctypes.ErrorDesc(err)] = true
	}
	return m
}()
