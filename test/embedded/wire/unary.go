package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is one attempt of a request on its way to the server.
type Call struct {
	Method     string        // the last part of FullMethod: "Txn"
	FullMethod string        // "/etcdserverpb.KV/Txn"
	Request    proto.Message // an *etcdserverpb.TxnRequest and so on; clone it before changing it
	Reply      proto.Message // filled in once Send has returned nil; may be changed then

	send func(context.Context) error
	copy func(context.Context, proto.Message, proto.Message) error
	ctx  context.Context
}

// Send sends the request and waits for the answer, which becomes the client's
// unless the hook returns an error.
func (c *Call) Send(ctx context.Context) error { return c.send(ctx) }

// SendCopy sends a copy of the request past all hooks and returns its answer,
// which the client does not see. It may be called at any time, also long after
// the client was told something else, as long as the client is open.
func (c *Call) SendCopy(ctx context.Context) (proto.Message, error) {
	// Authentication and require-leader travel as metadata of the first ctx.
	if md, ok := metadata.FromOutgoingContext(c.ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	reply := c.Reply.ProtoReflect().New().Interface()
	if err := c.copy(ctx, proto.Clone(c.Request), reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// UnaryHook is a hook that OnUnary has set.
type UnaryHook struct {
	wire *Wire
	f    func(ctx context.Context, call *Call) error
}

// OnUnary calls f for each request, before it is sent. f sends it, or not, and
// returns nil once Send has, or the error that the client gets instead. A later
// hook runs around the earlier ones. An error that is no gRPC status reaches the
// client as code Unknown, as it would from a server.
func (w *Wire) OnUnary(f func(ctx context.Context, call *Call) error) *UnaryHook {
	hook := &UnaryHook{wire: w, f: f}
	w.add(hook)
	return hook
}

func (w *Wire) add(hook *UnaryHook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A new slice: requests that are under way keep the one that they have.
	w.unary = append(slices.Clip(w.unary), hook)
}

// Remove takes the hook away. Requests that are in it stay in it.
func (h *UnaryHook) Remove() {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.wire.unary = slices.DeleteFunc(slices.Clone(h.wire.unary), func(other *UnaryHook) bool { return other == h })
}

var errNotSent = errors.New("wire: a hook returned nil without a successful Send")

func (w *Wire) interceptUnary(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w.mu.Lock()
	hooks := w.unary
	w.mu.Unlock()
	request, isProto := req.(proto.Message)
	answer, _ := reply.(proto.Message)
	if len(hooks) == 0 || !isProto {
		return invoke(ctx, fullMethod, req, reply, cc, opts...)
	}

	// Who asked to be told how the request ended is told what the hooks made of
	// it, since that is what stands for the network here.
	var finish []func(error)
	rest := make([]grpc.CallOption, 0, len(opts))
	for _, o := range opts {
		if f, ok := o.(grpc.OnFinishCallOption); ok {
			finish = append(finish, f.OnFinish)
		} else {
			rest = append(rest, o)
		}
	}

	forCopy := slices.DeleteFunc(slices.Clone(rest), writesToCaller)

	sent, tried := false, false
	send := func(ctx context.Context) error {
		tried = true
		err := invoke(ctx, fullMethod, req, reply, cc, rest...)
		sent = err == nil
		return err
	}
	sendCopy := func(ctx context.Context, request, reply proto.Message) error {
		return invoke(ctx, fullMethod, request, reply, cc, forCopy...)
	}
	for _, hook := range hooks {
		inner := send
		send = func(ctx context.Context) error {
			return hook.f(ctx, &Call{
				Method: shortName(fullMethod), FullMethod: fullMethod,
				Request: request, Reply: answer, send: inner, copy: sendCopy, ctx: ctx,
			})
		}
	}
	err := send(ctx)
	switch {
	case err == nil && !sent:
		err = status.Error(codes.Internal, errNotSent.Error())
	case err != nil:
		err = asStatus(err)
	}
	if !tried {
		// A request that vanished in the network had a connection to vanish on.
		// Without this it would look like one that never had any.
		for _, o := range rest {
			if p, ok := o.(grpc.PeerCallOption); ok {
				p.PeerAddr.Addr = &net.UnixAddr{Name: "wire", Net: "unix"}
			}
		}
	}
	for _, f := range finish {
		f(err)
	}
	return err
}

// writesToCaller says whether the option has gRPC write something into memory of
// the caller's when the request is over. A copy must not: the caller has been
// told the end of its own request by then and reads it.
func writesToCaller(o grpc.CallOption) bool {
	switch o.(type) {
	case grpc.PeerCallOption, grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.OnFinishCallOption:
		return true
	}
	return false
}

// asStatus makes of an error what gRPC would have made of it.
func asStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	return status.Error(codes.Unknown, fmt.Sprintf("wire: %v", err))
}
