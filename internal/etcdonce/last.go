package etcdonce

import (
	"context"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Range is clientv3's, and says of a call that ended with its context why none of
// its attempts was answered. clientv3 repeats a read until then and forgets it: a
// wrong port, a refused handshake and a slow server all are "context deadline
// exceeded".
func (r *remote) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	var last lastAttempt
	resp, err := r.KVClient.Range(ctx, in, append(opts[:len(opts):len(opts)], grpc.OnFinish(last.finish))...)
	return resp, last.describe(ctx, err)
}

// lastAttempt is why the last attempt of a call failed, if that is more than the
// end of its time. gRPC gives the code of that to an attempt that waited for a
// connection in vain, too, and says then what the connection failed with.
type lastAttempt struct {
	mu  sync.Mutex
	why string
}

func (l *lastAttempt) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := status.FromError(err); ok && err != nil && s.Message() != context.DeadlineExceeded.Error() && s.Message() != context.Canceled.Error() {
		l.why = strings.TrimPrefix(s.Message(), "latest balancer error: ")
	}
}

func (l *lastAttempt) describe(ctx context.Context, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || ctx.Err() == nil || l.why == "" {
		return err
	}
	return &endedError{ctx: ctx.Err(), last: l.why}
}

// endedError is the end of a call's context, and what had kept it from an answer.
// It is no more than the former to errors.Is and [Definite].
type endedError struct {
	ctx  error
	last string
}

func (e *endedError) Error() string {
	return e.ctx.Error() + "; the last attempt: " + e.last
}

func (e *endedError) Unwrap() error { return e.ctx }
