package etcdonce_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// middle is a server between a client and an etcd: every write is applied there,
// and answered as the test says.
type middle struct {
	pb.UnimplementedKVServer
	etcd pb.KVClient
	// answer is what the client gets in place of the answer to its n-th write,
	// counted from 1; nil passes the answer on.
	answer func(ctx context.Context, n int64) error

	writes, reads atomic.Int64
	endpoint      string
}

// newMiddle serves until the test ends.
func newMiddle(t *testing.T, answer func(ctx context.Context, n int64) error, opts ...grpc.ServerOption) *middle {
	t.Helper()
	etcd := embedded.Start(t, nil)
	conn, err := grpc.NewClient(etcd.Endpoints()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{etcd: pb.NewKVClient(conn), answer: answer, endpoint: listener.Addr().String()}
	server := grpc.NewServer(opts...)
	pb.RegisterKVServer(server, m)
	go func() { _ = server.Serve(listener) }() // its error is that of Stop
	t.Cleanup(server.Stop)
	return m
}

// client returns a client of the middle.
func (m *middle) client(t *testing.T, opts ...grpc.DialOption) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{m.endpoint}, DialOptions: opts, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (m *middle) count(ctx context.Context) error {
	n := m.writes.Add(1)
	if m.answer == nil {
		return nil
	}
	return m.answer(ctx, n)
}

func (m *middle) Put(ctx context.Context, in *pb.PutRequest) (*pb.PutResponse, error) {
	out, err := m.etcd.Put(context.WithoutCancel(ctx), in)
	if replaced := m.count(ctx); replaced != nil {
		return nil, replaced
	}
	return out, err
}

func (m *middle) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	out, err := m.etcd.DeleteRange(context.WithoutCancel(ctx), in)
	if replaced := m.count(ctx); replaced != nil {
		return nil, replaced
	}
	return out, err
}

func (m *middle) Txn(ctx context.Context, in *pb.TxnRequest) (*pb.TxnResponse, error) {
	out, err := m.etcd.Txn(context.WithoutCancel(ctx), in)
	if replaced := m.count(ctx); replaced != nil {
		return nil, replaced
	}
	return out, err
}

func (m *middle) Compact(ctx context.Context, in *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	out, err := m.etcd.Compact(context.WithoutCancel(ctx), in)
	if replaced := m.count(ctx); replaced != nil {
		return nil, replaced
	}
	return out, err
}

func (m *middle) Range(ctx context.Context, in *pb.RangeRequest) (*pb.RangeResponse, error) {
	n := m.reads.Add(1)
	if m.answer != nil {
		if err := m.answer(ctx, n); err != nil {
			return nil, err
		}
	}
	return m.etcd.Range(ctx, in)
}

// version reads past the middle how often a key was put.
func (m *middle) version(t *testing.T, key string) int64 {
	t.Helper()
	out, err := m.etcd.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Kvs) == 0 {
		return 0
	}
	return out.Kvs[0].Version
}
