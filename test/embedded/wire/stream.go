package wire

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Message is one message inside a stream.
type Message struct {
	Method     string // "Watch" or "LeaseKeepAlive"
	FullMethod string
	Sent       bool // towards the server; else it came from there

	// Payload is an *etcdserverpb.WatchResponse and so on. It may be changed, and
	// belongs to the hook until that returns: keep a clone.
	Payload proto.Message
}

// ErrDrop is returned by a message hook to let the message vanish.
var ErrDrop = errors.New("wire: drop this message")

// MessageHook is a hook that OnMessage has set.
type MessageHook struct {
	wire *Wire
	f    func(ctx context.Context, m *Message) error
}

// OnMessage calls f for each message of a stream, before it is sent or after it
// was received. f lets it pass with nil, swallows it with [ErrDrop], breaks the
// stream with any other error, and may hold it as long as it likes: what follows
// in the same direction waits. The ctx ends with the stream.
func (w *Wire) OnMessage(f func(ctx context.Context, m *Message) error) *MessageHook {
	hook := &MessageHook{wire: w, f: f}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages = append(slices.Clip(w.messages), hook)
	return hook
}

// Remove takes the hook away. Messages that are in it stay in it.
func (h *MessageHook) Remove() {
	h.wire.mu.Lock()
	defer h.wire.mu.Unlock()
	h.wire.messages = slices.DeleteFunc(slices.Clone(h.wire.messages), func(other *MessageHook) bool { return other == h })
}

func (w *Wire) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, fullMethod string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	// A stream that a hook breaks has to end at the server too.
	ctx, cancel := context.WithCancel(ctx)
	stream, err := streamer(ctx, desc, cc, fullMethod, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &hookedStream{ClientStream: stream, wire: w, fullMethod: fullMethod, cancel: cancel}, nil
}

type hookedStream struct {
	grpc.ClientStream
	wire       *Wire
	fullMethod string
	cancel     context.CancelFunc
}

func (s *hookedStream) SendMsg(m any) error {
	switch err := s.pass(m, true); {
	case errors.Is(err, ErrDrop):
		return nil
	case err != nil:
		s.cancel()
		return asStatus(err)
	}
	return s.ClientStream.SendMsg(m)
}

func (s *hookedStream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil {
			s.cancel() // it is over, io.EOF included
			return err
		}
		switch err := s.pass(m, false); {
		case err == nil:
			return nil
		case !errors.Is(err, ErrDrop):
			s.cancel()
			return asStatus(err)
		}
		if p, ok := m.(proto.Message); ok {
			proto.Reset(p)
		}
	}
}

func (s *hookedStream) pass(m any, sent bool) error {
	s.wire.mu.Lock()
	hooks := s.wire.messages
	s.wire.mu.Unlock()
	payload, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	for _, hook := range hooks {
		message := &Message{Method: shortName(s.fullMethod), FullMethod: s.fullMethod, Sent: sent, Payload: payload}
		if err := hook.f(s.Context(), message); err != nil {
			return err
		}
	}
	return nil
}
