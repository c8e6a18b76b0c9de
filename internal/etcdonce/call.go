package etcdonce

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// onceConn makes unary calls whose first attempt ends them, unless that attempt
// was certainly refused.
type onceConn struct{ client *clientv3.Client }

func (c onceConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	// Every interceptor below, clientv3's and the user's, works under this
	// context: once it has ended, none of them can send anything more.
	attempt, end := context.WithCancel(ctx)
	defer end()

	r := newRecord(end)
	opts = append(opts, grpc.Peer(&r.peer), grpc.OnFinish(r.finish))
	err := c.client.ActiveConnection().Invoke(attempt, method, args, reply, opts...)
	if err == nil {
		return nil
	}
	return r.describe(ctx, args, err)
}

func (c onceConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.client.ActiveConnection().NewStream(ctx, desc, method, opts...)
}

// record is what gRPC tells about the attempts of one call.
type record struct {
	end context.CancelFunc
	// peer is written by gRPC just before finish is called, if the attempt had a
	// stream, and left alone if it never got one.
	peer peer.Peer

	mu       sync.Mutex // an interceptor may finish an attempt in a goroutine of its own
	finished bool       // an attempt has ended
	sent     bool       // an attempt had a stream: something may have left
	first    error      // how the attempt that ended the call ended
}

// nowhere is a peer's address before gRPC has written one.
type nowhere struct{ net.Addr }

func newRecord(end context.CancelFunc) *record {
	return &record{end: end, peer: peer.Peer{Addr: nowhere{}}}
}

// finish is called by gRPC at the end of each attempt.
func (r *record) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	if r.peer.Addr != (nowhere{}) {
		r.sent = true
	}
	if Definite(err) {
		return // refused: clientv3 may renew its token, or ask another member
	}
	// Success ends the call too. An interceptor that turns it into an error of
	// its own must not make the one above it send again.
	if r.first == nil {
		r.first = err
	}
	r.end()
}

// describe turns the error of a call into one that says what became of the
// request. A plain context error stays one.
func (r *record) describe(ctx context.Context, args any, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.finished && !r.sent || tooLarge(args, err) {
		return &unsentError{err: err, ctx: ctx.Err()}
	}
	if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
		return err
	}
	if ctx.Err() != nil {
		return err // clientv3 puts the context's own error in its place
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		// The server counts the same deadline and can be a little faster than
		// the timer of ctx. To the caller it is the same thing.
		return context.DeadlineExceeded
	}
	if r.first != nil {
		err = r.first // and not "canceled", which would be our own doing
	}
	return &unansweredError{err: err}
}

// tooLarge reports whether gRPC refused to send args. A server that may not send
// its answer says the same thing about another size, after it did its work.
func tooLarge(args any, err error) bool {
	m, ok := args.(proto.Message)
	if !ok || status.Code(err) != codes.ResourceExhausted {
		return false
	}
	prefix := fmt.Sprintf("trying to send message larger than max (%d vs. ", proto.Size(m))
	return strings.HasPrefix(status.Convert(err).Message(), prefix)
}
