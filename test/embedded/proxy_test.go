package embedded_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// echo returns the address of a server that sends every line back.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

type lineConn struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *embedded.Proxy) *lineConn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &lineConn{conn, bufio.NewReader(conn)}
}

func (c *lineConn) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (c *lineConn) hear(t *testing.T, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := c.lines.ReadString('\n'); got != want+"\n" {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

func (c *lineConn) hearNothing(t *testing.T) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if got, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v; want silence and an open connection", got, err)
	}
}

func newProxy(t *testing.T) *embedded.Proxy {
	t.Helper()
	p, err := embedded.NewProxy(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestCutIsSilentAndHealDelivers(t *testing.T) {
	p := newProxy(t)
	old := dial(t, p)
	old.say(t, "one")
	old.hear(t, "one")
	p.Cut()
	old.say(t, "two")
	old.hearNothing(t)
	young := dial(t, p)
	young.say(t, "three")
	young.hearNothing(t)
	p.Heal()
	old.hear(t, "two")
	young.hear(t, "three")
}

func TestCutDoesNotWaitForASlowReader(t *testing.T) {
	p := newProxy(t)
	conn := dial(t, p)
	// The sender goes on until all buffers on the way are full: nobody reads.
	text := strings.Repeat("x", 32<<10)
	var chunks atomic.Int64
	stop, sent := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				_, err := io.WriteString(conn, "\n")
				sent <- err
				return
			default:
			}
			if _, err := io.WriteString(conn, text); err != nil {
				sent <- err
				return
			}
			chunks.Add(1)
		}
	}()
	// Nothing tells that a write is stuck, except that it stays so.
	for before := int64(-1); chunks.Load() != before; time.Sleep(200 * time.Millisecond) {
		before = chunks.Load()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Cut()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Cut hangs")
	}
	p.Heal()
	close(stop)
	heard, err := conn.lines.ReadString('\n')
	if err := <-sent; err != nil {
		t.Error(err)
	}
	// Nothing was lost where a write was interrupted.
	if want := int(chunks.Load())*len(text) + 1; err != nil || len(heard) != want {
		t.Errorf("heard %d bytes, %v; want %d", len(heard), err, want)
	}
}

func TestCutHidesTheEndOfAConnection(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p, err := embedded.NewProxy(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client := dial(t, p)
	conn, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	served := &lineConn{conn, bufio.NewReader(conn)}
	p.Cut()
	_ = client.Close()
	served.hearNothing(t)
	p.Heal()
	_ = served.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := served.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after Heal: %v", err)
	}
}

func TestResetEndsConnectionsAndTakesNewOnes(t *testing.T) {
	p := newProxy(t)
	conn := dial(t, p)
	conn.say(t, "one")
	conn.hear(t, "one")
	p.Reset()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after Reset: %v", err)
	}
	conn = dial(t, p)
	conn.say(t, "two")
	conn.hear(t, "two")
}

func TestProxyClosesWhileCut(t *testing.T) {
	p := newProxy(t)
	old := dial(t, p)
	old.say(t, "one")
	old.hear(t, "one")
	p.Cut()
	old.say(t, "two")
	dial(t, p)
	p.Close()
	p.Close()
}

func TestProxyBeforeTheMember(t *testing.T) {
	etcd := embedded.Start(t, nil)
	proxy, ctx := etcd.Proxy(t), bounded(t)
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = []string{proxy.Endpoint()} })
	if _, err := client.Put(ctx, "key", "before"); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	result := make(chan error, 1)
	go func() {
		_, err := client.Put(ctx, "key", "after")
		result <- err
	}()
	select {
	case err := <-result:
		t.Errorf("a put through a cut proxy: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	proxy.Heal()
	if err := <-result; err != nil {
		t.Error(err)
	}
	resp, err := etcd.Client().Get(ctx, "key")
	if err != nil || string(resp.Kvs[0].Value) != "after" {
		t.Errorf("after Heal: %v, %v", resp, err)
	}
}

func listening(endpoint string) bool {
	conn, err := net.DialTimeout("tcp", endpoint, 5*time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
