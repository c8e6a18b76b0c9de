package etcdonce_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// A port that nobody listens at, and one where somebody speaks something else: the
// end of the time alone says nothing about either.
func TestReadThatIsNotAnsweredSaysWhy(t *testing.T) {
	t.Parallel()
	closed, other := listen(t), listen(t)
	closed.Close()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write([]byte("SSH-2.0-something else\r\n"))
				_, _ = io.Copy(io.Discard, conn) // until the client has read that
			}()
		}
	}()
	for name, tt := range map[string]struct{ endpoint, want string }{
		"nobody listens":      {closed.Addr().String(), closed.Addr().String() + ": connect: connection refused"},
		"something else":      {other.Addr().String(), "error reading server preface"},
		"TLS is spoken to it": {"https://" + other.Addr().String(), "authentication handshake failed"},
	} {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{tt.endpoint}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = etcdonce.New(client).Get(ctx, "k")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want the end of the context and %q", name, err, tt.want)
		}
		if etcdonce.Definite(err) {
			t.Errorf("%s: %v is definite", name, err)
		}
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
