package wire

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Option narrows a ready-made fault down, or changes its error.
type Option func(*Fault)

// When restricts a fault to the requests for which f is true.
func When(f func(*Call) bool) Option { return func(fault *Fault) { fault.when = f } }

// Code sets the gRPC code that the client gets.
// Defaults to codes.Unavailable, as for a connection that broke.
func Code(code codes.Code) Option { return func(fault *Fault) { fault.code = code } }

// Fault is a ready-made hook.
type Fault struct {
	hook   *UnaryHook
	method string
	when   func(*Call) bool
	code   codes.Code

	mu   sync.Mutex
	left int // how often it still strikes; below zero: for ever
	hits int
}

// Hits returns how many requests the fault has struck.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Remove ends the fault. Requests that it holds stay held.
func (f *Fault) Remove() { f.hook.Remove() }

// DropReply has the next n requests of a method carried out by the server and
// then answered with an error. With n < 1 it goes on until it is removed.
func (w *Wire) DropReply(method string, n int, opts ...Option) *Fault {
	return w.fault(method, n, opts, func(ctx context.Context, f *Fault, call *Call) error {
		if err := call.Send(ctx); err != nil {
			return err
		}
		return f.err("the reply was dropped")
	})
}

// FailBefore answers the next n requests of a method with an error and does not
// send them. With n < 1 it goes on until it is removed.
func (w *Wire) FailBefore(method string, n int, opts ...Option) *Fault {
	return w.fault(method, n, opts, func(_ context.Context, f *Fault, _ *Call) error {
		return f.err("the request was not sent")
	})
}

// SendTwice has the next n requests of a method carried out twice, one after the
// other; the client gets the second answer. With n < 1 it goes on until it is
// removed.
func (w *Wire) SendTwice(method string, n int, opts ...Option) *Fault {
	return w.fault(method, n, opts, func(ctx context.Context, _ *Fault, call *Call) error {
		if _, err := call.SendCopy(ctx); err != nil {
			return err
		}
		return call.Send(ctx)
	})
}

// Hold keeps the next request of a method from being sent until it is released.
func (w *Wire) Hold(method string, opts ...Option) *Latch {
	l := newLatch()
	l.Fault = w.fault(method, 1, opts, func(ctx context.Context, _ *Fault, call *Call) error {
		if err := l.wait(ctx, call); err != nil {
			return err
		}
		return call.Send(ctx)
	})
	return l
}

// HoldReply lets the next request of a method through, which the server carries
// out, and keeps the answer from the client until it is released.
func (w *Wire) HoldReply(method string, opts ...Option) *Latch {
	l := newLatch()
	l.Fault = w.fault(method, 1, opts, func(ctx context.Context, _ *Fault, call *Call) error {
		if err := call.Send(ctx); err != nil {
			return err
		}
		return l.wait(ctx, call)
	})
	return l
}

// Postpone answers the next request of a method with an error at once and keeps
// the request. It is still on its way, for all that anybody knows: Late.Send
// lets it arrive.
func (w *Wire) Postpone(method string, opts ...Option) *Late {
	l := &Late{arrived: make(chan struct{})}
	l.Fault = w.fault(method, 1, opts, func(_ context.Context, f *Fault, call *Call) error {
		kept := *call
		kept.Request = proto.Clone(call.Request) // the client may use it again
		l.call = &kept
		close(l.arrived)
		return f.err("the request is late")
	})
	return l
}

func (w *Wire) fault(method string, n int, opts []Option, strike func(context.Context, *Fault, *Call) error) *Fault {
	f := &Fault{method: method, left: n, code: codes.Unavailable}
	if n < 1 {
		f.left = -1
	}
	for _, o := range opts {
		o(f)
	}
	hook := &UnaryHook{wire: w}
	f.hook = hook
	hook.f = func(ctx context.Context, call *Call) error {
		if !f.take(call) {
			return call.Send(ctx)
		}
		return strike(ctx, f, call)
	}
	w.add(hook)
	return f
}

func (f *Fault) take(call *Call) bool {
	if f.method != "" && f.method != call.Method || f.when != nil && !f.when(call) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return false
	}
	if f.left > 0 {
		f.left--
	}
	f.hits++
	return true
}

func (f *Fault) err(what string) error { return status.Error(f.code, "wire: "+what) }

// Latch holds one request.
type Latch struct {
	*Fault
	arrived  chan struct{}
	released chan struct{}
	once     sync.Once
	err      error
	call     *Call
}

func newLatch() *Latch {
	return &Latch{arrived: make(chan struct{}), released: make(chan struct{})}
}

// Arrived is closed when a request is held.
func (l *Latch) Arrived() <-chan struct{} { return l.arrived }

// Call returns the request that is held. It is valid once Arrived is closed.
func (l *Latch) Call() *Call { return l.call }

// Release lets the request, or the answer, go on. Only the first Release or Fail
// counts, and it may come before the request does.
func (l *Latch) Release() { l.Fail(nil) }

// Fail ends the wait with an error for the client instead.
func (l *Latch) Fail(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.released)
	})
}

func (l *Latch) wait(ctx context.Context, call *Call) error {
	l.call = call
	close(l.arrived)
	select {
	case <-l.released:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Late is a request whose client was told that it had failed, and that has not
// reached the server yet.
type Late struct {
	*Fault
	arrived chan struct{}
	call    *Call
}

// Arrived is closed when there is a request to send.
func (l *Late) Arrived() <-chan struct{} { return l.arrived }

// Call returns the request. It is valid once Arrived is closed.
func (l *Late) Call() *Call { return l.call }

// Send waits until there is a request and lets the server have it. It may be
// called again, for a request that arrives twice.
func (l *Late) Send(ctx context.Context) (proto.Message, error) {
	select {
	case <-l.arrived:
		return l.call.SendCopy(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
