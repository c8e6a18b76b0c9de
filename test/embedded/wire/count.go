package wire

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/grpc/stats"
)

// counter counts at the transport: what a hook kept from being sent is not
// counted, and what gRPC or clientv3 sent twice is counted twice.
type counter struct {
	mu       sync.Mutex
	calls    map[string]int
	open     map[string]int
	messages map[string]int
}

// Calls returns how many requests of a method were sent, or how many streams
// were opened, since New or Reset. The empty name means all methods together.
func (c *counter) Calls(method string) int { return c.read(c.calls, method) }

// Messages returns how many messages of a method were sent: for a stream, the
// requests inside it.
func (c *counter) Messages(method string) int { return c.read(c.messages, method) }

// Open returns how many requests or streams of a method are under way now. A
// stream counts until both sides have let go of it, shortly after its ctx ended.
func (c *counter) Open(method string) int { return c.read(c.open, method) }

// Counts returns all counts of Calls, by method.
func (c *counter) Counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Reset sets Calls and Messages to zero. Open goes on.
func (c *counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = make(map[string]int)
		c.calls = make(map[string]int)
		c.messages = make(map[string]int)
	}
	clear(c.calls)
	clear(c.messages)
}

func (c *counter) read(counts map[string]int, method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if method != "" {
		return counts[method]
	}
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

// attempt is what the transport does for one request or stream.
type attempt struct {
	method string
	// Guarded by counter.mu. An attempt whose ctx has ended can end before its
	// header is reported.
	sent, ended bool
}

type attemptKey struct{}

// TagRPC is part of stats.Handler.
func (c *counter) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, attemptKey{}, &attempt{method: shortName(info.FullMethodName)})
}

// HandleRPC is part of stats.Handler.
func (c *counter) HandleRPC(ctx context.Context, event stats.RPCStats) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch event.(type) {
	case *stats.OutHeader: // from here it is on its way
		a.sent = true
		c.calls[a.method]++
		if !a.ended {
			c.open[a.method]++
		}
	case *stats.OutPayload:
		c.messages[a.method]++
	case *stats.End:
		if a.ended = true; a.sent {
			c.open[a.method]--
		}
	}
}

// TagConn is part of stats.Handler.
func (c *counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is part of stats.Handler.
func (c *counter) HandleConn(context.Context, stats.ConnStats) {}
