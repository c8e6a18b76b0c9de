// Package etcdonce sends writes to etcd once.
//
// clientv3 promises that a write is not repeated once it may have been applied,
// and keeps that promise for the code Unavailable. For the codes Canceled and
// DeadlineExceeded it does not: its interceptor takes them for the end of a
// single attempt and, as long as the caller's context lives, sends the same Put
// or Txn again, up to a hundred times. Servers do answer with these codes: a
// member without a leader gives up on a proposal after about seven seconds, and
// proxies have time-outs of their own. The first copy may be applied all the
// same, now or later, so that one call changes the store twice, at two times,
// and returns no error. See etcd-io/etcd#18424 and #14890.
//
// For a fenced write that is a wrong order within one tenure: the late copy of an
// owner's first write lands on its second. For a lock key it is a ghost: the late
// copy of an acquire puts the key back after the release.
//
// Here the first answer ends the call, and what etcd did with the request is told
// as well as it can be known: see [Definite].
package etcdonce

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

var (
	// ErrNoConnection is a client that is nil or has no connection, such as one of
	// clientv3.NewCtxClient.
	ErrNoConnection = errors.New("etcd client without a connection")
	// ErrReplacedKV is a client whose KV is not the one that clientv3 gave it.
	ErrReplacedKV = errors.New("etcd client whose KV has been replaced")
)

// New returns a KV on the client's connection whose Put, Delete, Txn and Compact
// are sent once, except that a request which was certainly refused may be sent
// again: so an expired auth token is renewed as ever. Get is what it is in
// clientv3, repetitions included, since a read may be repeated.
//
// It goes by the connection, past client.KV. The calls on a client that has no
// connection fail with [ErrNoConnection].
func New(client *clientv3.Client) clientv3.KV {
	if client == nil || client.ActiveConnection() == nil {
		return clientv3.NewKVFromKVClient(pb.NewKVClient(unconnected{}), client)
	}
	return clientv3.NewKVFromKVClient(&remote{
		KVClient: clientv3.RetryKVClient(client),
		once:     pb.NewKVClient(onceConn{client}),
	}, client)
}

// Check reports a client that [New] is of no use for: one without a connection,
// and one whose KV has been replaced, by a namespace for example. What the
// replacement does would silently not be done.
func Check(client *clientv3.Client) error {
	if client == nil || client.ActiveConnection() == nil {
		return ErrNoConnection
	}
	if own := reflect.TypeOf(clientv3.NewKV(client)); reflect.TypeOf(client.KV) != own {
		return fmt.Errorf("%w by a %T", ErrReplacedKV, client.KV)
	}
	return nil
}

// remote reads through clientv3's own client, because only clientv3 can mark a
// call as one that may be repeated.
type remote struct {
	pb.KVClient
	once pb.KVClient
}

func (r *remote) Put(ctx context.Context, in *pb.PutRequest, opts ...grpc.CallOption) (*pb.PutResponse, error) {
	return r.once.Put(ctx, in, opts...)
}

func (r *remote) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, opts ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return r.once.DeleteRange(ctx, in, opts...)
}

func (r *remote) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	return r.once.Txn(ctx, in, opts...)
}

func (r *remote) Compact(ctx context.Context, in *pb.CompactionRequest, opts ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return r.once.Compact(ctx, in, opts...)
}

// unconnected fails where a missing connection would panic.
type unconnected struct{}

func (unconnected) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return &unsentError{err: ErrNoConnection}
}

func (unconnected) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, &unsentError{err: ErrNoConnection}
}
