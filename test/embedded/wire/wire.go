// Package wire counts and disturbs the gRPC requests of one etcd client, for
// tests that must know what was sent, and what happens when an answer is lost.
//
//	w := wire.New()
//	client := etcd.NewClient(t, func(c *clientv3.Config) {
//		c.DialOptions = append(c.DialOptions, w.DialOptions()...)
//	})
//	w.DropReply("Txn", 1) // the server applies it, the client never learns
//	...
//	if n := w.Calls("Txn"); n != 1 { ... }
//
// A Wire sits below clientv3's own retries: it sees each attempt, and an error
// that it makes up is treated as one from the network, retried or not. Requests
// are named by the last part of their gRPC method: "Range", "Put",
// "DeleteRange", "Txn", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"; streams
// likewise: "Watch", "LeaseKeepAlive". The empty name stands for all.
//
// Nothing here sleeps or has a time-out of its own: what is held is held until
// it is released, or until the ctx of the request ends.
package wire

import (
	"strings"
	"sync"

	"google.golang.org/grpc"
)

// Wire is a counting and fault device. One Wire may serve several clients, which
// it then counts together. Its methods may be called at any time from any
// goroutine; what they change holds for every request that starts afterwards.
type Wire struct {
	counter

	mu       sync.Mutex
	unary    []*UnaryHook
	messages []*MessageHook
}

// New returns a Wire that counts and lets everything pass.
func New() *Wire {
	w := new(Wire)
	w.Reset()
	return w
}

// DialOptions returns what puts the Wire into a client, through the DialOptions
// of its clientv3.Config.
func (w *Wire) DialOptions() []grpc.DialOption {
	// clientv3 sets its retrying interceptors as the plain ones, and those run
	// before the chained ones, wherever they stand among the options.
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(w.interceptUnary),
		grpc.WithChainStreamInterceptor(w.interceptStream),
		grpc.WithStatsHandler(&w.counter),
	}
}

// shortName turns "/etcdserverpb.KV/Txn" into "Txn".
func shortName(fullMethod string) string {
	return fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
}
