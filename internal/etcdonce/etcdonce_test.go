package etcdonce_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// firstTwo answers the first two requests with err.
func firstTwo(err error) func(context.Context, int64) error {
	return func(_ context.Context, n int64) error {
		if n <= 2 {
			return err
		}
		return nil
	}
}

// TestClientRepeatsWrites is the reason for the package. If it fails, clientv3
// has been mended and the package can go.
func TestClientRepeatsWrites(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		t.Run(code.String(), func(t *testing.T) {
			m := newMiddle(t, firstTwo(status.Error(code, "gave up")))
			if _, err := m.client(t).Put(t.Context(), "k", "v"); err != nil {
				t.Fatal(err)
			}
			if got := m.version(t, "k"); got != 3 {
				t.Errorf("one Put of clientv3 was applied %d times, it used to be 3", got)
			}
		})
	}
}

func TestWriteIsSentOnce(t *testing.T) {
	writes := []struct {
		name string
		do   func(context.Context, clientv3.KV) error
	}{
		{"Put", func(ctx context.Context, kv clientv3.KV) error {
			_, err := kv.Put(ctx, "k", "v")
			return err
		}},
		{"Delete", func(ctx context.Context, kv clientv3.KV) error {
			_, err := kv.Delete(ctx, "k")
			return err
		}},
		{"Txn", func(ctx context.Context, kv clientv3.KV) error {
			_, err := kv.Txn(ctx).Then(clientv3.OpPut("k", "v")).Commit()
			return err
		}},
		{"Do", func(ctx context.Context, kv clientv3.KV) error {
			_, err := kv.Do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("k", "v")}, nil))
			return err
		}},
		{"Compact", func(ctx context.Context, kv clientv3.KV) error {
			_, err := kv.Compact(ctx, 1)
			return err
		}},
	}
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Internal, codes.Unknown} {
		for _, write := range writes {
			t.Run(code.String()+"/"+write.name, func(t *testing.T) {
				m := newMiddle(t, firstTwo(status.Error(code, "gave up")))
				err := write.do(t.Context(), etcdonce.New(m.client(t)))
				if status.Code(err) != code {
					t.Errorf("got %v, want the server's error with code %v", err, code)
				}
				if etcdonce.Definite(err) {
					t.Errorf("%v: definite, although the write was applied", err)
				}
				if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					t.Errorf("%v: an error of the caller's context, which lives", err)
				}
				if n := m.writes.Load(); n != 1 {
					t.Errorf("sent %d times", n)
				}
			})
		}
	}
}

// TestNextWriteIsUnaffected: what ends a call must not end the connection.
func TestNextWriteIsUnaffected(t *testing.T) {
	m := newMiddle(t, firstTwo(status.Error(codes.DeadlineExceeded, "gave up")))
	kv := etcdonce.New(m.client(t))
	for range 2 {
		if _, err := kv.Put(t.Context(), "k", "v"); err == nil {
			t.Fatal("no error")
		}
	}
	if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	if got := m.version(t, "k"); got != 3 {
		t.Errorf("three Puts made %d versions", got)
	}
}

// TestReadIsRepeated: reads keep clientv3's behaviour, which is to repeat them
// also on Unavailable.
func TestReadIsRepeated(t *testing.T) {
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Unavailable} {
		m := newMiddle(t, firstTwo(status.Error(code, "gave up")))
		if _, err := etcdonce.New(m.client(t)).Get(t.Context(), "k"); err != nil {
			t.Errorf("%v: %v", code, err)
		}
		if n := m.reads.Load(); n != 3 {
			t.Errorf("%v: read %d times, want 3", code, n)
		}
	}
}

// TestInterceptorsCannotRepeat: those of the user stand between clientv3's and
// the connection, and some of them retry, or make errors of their own.
func TestInterceptorsCannotRepeat(t *testing.T) {
	retry := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if status.Code(err) == codes.Unavailable {
			err = invoke(ctx, method, req, reply, cc, opts...)
		}
		return err
	}
	timeout := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		_ = invoke(ctx, method, req, reply, cc, opts...)
		return status.Error(codes.DeadlineExceeded, "too slow for my taste")
	}
	for _, test := range []struct {
		name      string
		answer    error
		intercept grpc.UnaryClientInterceptor
		code      codes.Code
	}{
		{"retry", status.Error(codes.Unavailable, "gone"), retry, codes.Unavailable},
		{"timeout", nil, timeout, codes.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMiddle(t, firstTwo(test.answer))
			kv := etcdonce.New(m.client(t, grpc.WithChainUnaryInterceptor(test.intercept)))
			_, err := kv.Put(t.Context(), "k", "v")
			if status.Code(err) != test.code {
				t.Errorf("got %v, want code %v", err, test.code)
			}
			if etcdonce.Definite(err) {
				t.Errorf("%v: definite, although the write was applied", err)
			}
			if n := m.writes.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

func TestCallerGivesUp(t *testing.T) {
	arrived := make(chan struct{})
	m := newMiddle(t, func(ctx context.Context, _ int64) error {
		close(arrived)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := etcdonce.New(m.client(t)).Put(ctx, "k", "v")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if etcdonce.Definite(err) {
		t.Errorf("%v: definite, although the write was applied", err)
	}
}

// TestServerCountsTheCallersDeadline: the caller's deadline travels with the
// request, and the server's timer may be the faster one.
func TestServerCountsTheCallersDeadline(t *testing.T) {
	m := newMiddle(t, func(ctx context.Context, _ int64) error {
		<-ctx.Done()
		return ctx.Err()
	})
	kv := etcdonce.New(m.client(t))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := kv.Put(ctx, "k", "v")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || etcdonce.Definite(err) {
			t.Fatalf("got %v, want an open deadline error", err)
		}
	}
}

func TestUnsentIsDefinite(t *testing.T) {
	// A listener that accepts and says nothing: there is no HTTP/2 connection, so
	// nothing can be written on it.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing.Close()

	for name, endpoint := range map[string]string{"silent": silent.Addr().String(), "refusing": refusing.Addr().String()} {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err = etcdonce.New(client).Put(ctx, "k", "v")
		cancel()
		if !etcdonce.Definite(err) {
			t.Errorf("%s: %v is not definite", name, err)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v is not the context's error", name, err)
		}
		client.Close()

		_, err = etcdonce.New(client).Put(t.Context(), "k", "v")
		if !etcdonce.Definite(err) {
			t.Errorf("%s: closed client: %v is not definite", name, err)
		}
	}
}

func TestEndedContextIsDefinite(t *testing.T) {
	m := newMiddle(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := etcdonce.New(m.client(t)).Put(ctx, "k", "v")
	if !errors.Is(err, context.Canceled) || !etcdonce.Definite(err) {
		t.Errorf("got %v, want a definite context.Canceled", err)
	}
	if n := m.writes.Load(); n != 0 {
		t.Errorf("sent %d times", n)
	}
}

// TestTooLarge: gRPC says the same of a request that the client may not send and
// of an answer that the server may not send, and nearly the same of an answer
// that the client may not receive.
func TestTooLarge(t *testing.T) {
	large := strings.Repeat("x", 3<<20)

	m := newMiddle(t, nil)
	_, err := etcdonce.New(m.client(t)).Put(t.Context(), "k", large)
	if status.Code(err) != codes.ResourceExhausted || !etcdonce.Definite(err) {
		t.Errorf("too large to send: got %v, want it definite", err)
	}
	if n := m.writes.Load(); n != 0 {
		t.Errorf("sent %d times", n)
	}

	get := func(kv clientv3.KV) error {
		_, err := kv.Txn(t.Context()).Then(clientv3.OpPut("j", "w"), clientv3.OpGet("k")).Commit()
		return err
	}
	m = newMiddle(t, nil)
	if _, err := m.client(t).Put(t.Context(), "k", large[:1<<20]); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.endpoint}, MaxCallSendMsgSize: 1 << 9, MaxCallRecvMsgSize: 1 << 10, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = get(etcdonce.New(client))
	if status.Code(err) != codes.ResourceExhausted || etcdonce.Definite(err) {
		t.Errorf("too large to receive: got %v, want it open", err)
	}
	if got := m.version(t, "j"); got != 1 {
		t.Errorf("the write whose answer was too large made version %d, want 1", got)
	}

	limited := newMiddle(t, nil, grpc.MaxSendMsgSize(1<<10))
	if _, err := limited.client(t).Put(t.Context(), "k", large[:1<<20]); err != nil {
		t.Fatal(err)
	}
	err = get(etcdonce.New(limited.client(t)))
	if status.Code(err) != codes.ResourceExhausted || etcdonce.Definite(err) {
		t.Errorf("too large to answer: got %v, want it open", err)
	}
}

func TestRealRefusalsAreDefinite(t *testing.T) {
	etcd := embedded.Start(t, nil)
	kv := etcdonce.New(etcd.Client())
	many := make([]clientv3.Op, 129)
	for i := range many {
		many[i] = clientv3.OpGet("k")
	}
	for name, op := range map[string]clientv3.Op{
		"empty key":        clientv3.OpPut("", "v"),
		"no such lease":    clientv3.OpPut("k", "v", clientv3.WithLease(0x1234)),
		"no such key":      clientv3.OpPut("missing", "", clientv3.WithIgnoreValue()),
		"too large":        clientv3.OpPut("k", strings.Repeat("x", 1800<<10)),
		"too many":         clientv3.OpTxn(nil, many, nil),
		"twice":            clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("k", "1"), clientv3.OpPut("k", "2")}, nil),
		"future revision":  clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("k", "1"), clientv3.OpGet("k", clientv3.WithRev(1<<40))}, nil),
		"value is ignored": clientv3.OpPut("k", "v", clientv3.WithIgnoreValue()),
	} {
		_, err := kv.Do(t.Context(), op)
		if err == nil || !etcdonce.Definite(err) {
			t.Errorf("%s: %v is not definite", name, err)
		}
	}
	out, err := kv.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	if out.Count != 0 {
		t.Errorf("%d keys were written", out.Count)
	}
}

func TestCheck(t *testing.T) {
	etcd := embedded.Start(t, nil)
	if err := etcdonce.Check(etcd.Client()); err != nil {
		t.Error(err)
	}
	namespaced := etcd.NewClient(t)
	namespaced.KV = namespace.NewKV(namespaced.KV, "app/")
	if err := etcdonce.Check(namespaced); !errors.Is(err, etcdonce.ErrReplacedKV) {
		t.Errorf("namespaced client: %v", err)
	}
	for name, client := range map[string]*clientv3.Client{"nil": nil, "unconnected": clientv3.NewCtxClient(t.Context())} {
		if err := etcdonce.Check(client); !errors.Is(err, etcdonce.ErrNoConnection) {
			t.Errorf("%s: %v", name, err)
		}
		kv := etcdonce.New(client)
		if _, err := kv.Put(t.Context(), "k", "v"); !errors.Is(err, etcdonce.ErrNoConnection) || !etcdonce.Definite(err) {
			t.Errorf("%s: put: %v", name, err)
		}
		if _, err := kv.Get(t.Context(), "k"); !errors.Is(err, etcdonce.ErrNoConnection) {
			t.Errorf("%s: get: %v", name, err)
		}
		if _, err := kv.GetStream(t.Context(), "k"); !errors.Is(err, etcdonce.ErrNoConnection) {
			t.Errorf("%s: get stream: %v", name, err)
		}
	}
}

func TestGetStream(t *testing.T) {
	etcd := embedded.Start(t, nil)
	member, err := etcd.Client().Status(t.Context(), etcd.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(member.Version, "3.5.") || strings.HasPrefix(member.Version, "3.6.") {
		t.Skipf("etcd %s does not stream a range: 3.7 was the first to do so", member.Version)
	}
	kv := etcdonce.New(etcd.Client())
	if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	stream, err := kv.GetStream(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	out, err := clientv3.GetStreamToGetResponse(stream)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Kvs) != 1 || string(out.Kvs[0].Value) != "v" {
		t.Errorf("streamed %v", out.Kvs)
	}
}
