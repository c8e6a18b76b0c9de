package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy is a TCP proxy in front of a member. Cut makes a network partition of
// it: connections stay open and nothing gets through.
type Proxy struct {
	listener net.Listener
	target   atomic.Pointer[string] // host:port; nil while there is none
	work     sync.WaitGroup
	ctx      context.Context // ends with the proxy
	end      context.CancelFunc

	mu      sync.Mutex
	changed *sync.Cond // of cut, done and writing
	cut     bool
	done    bool
	writing int                       // forwards that are under way
	conns   map[*net.TCPConn]struct{} // both sides of every connection
}

// Proxy returns a new proxy in front of a member, by index; member 0 when none
// is named. It ends with the test.
func (c *Cluster) Proxy(t TB, member ...int) *Proxy {
	t.Helper()
	i := 0
	if len(member) > 0 {
		i = member[0]
	}
	if !c.has(t, i) {
		return nil
	}
	p, err := NewProxy(c.members[i].Endpoint())
	if err != nil {
		t.Fatalf("%v", err)
		return nil
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy returns a proxy in front of any TCP server, given as host:port. The
// caller closes it.
func NewProxy(target string) (*Proxy, error) {
	p, err := newProxy("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.target.Store(&target)
	return p, nil
}

// newProxy returns a proxy without a target, which closes what connects to it.
func newProxy(address string) (*Proxy, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, conns: make(map[*net.TCPConn]struct{})}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.changed = sync.NewCond(&p.mu)
	p.work.Go(p.accept)
	return p, nil
}

// Endpoint returns the address of the proxy, as host:port.
func (p *Proxy) Endpoint() string { return p.listener.Addr().String() }

// Cut stops all forwarding, both ways. Nobody is told: connections stay open,
// new ones are accepted, ends of connections are not passed on. When Cut returns
// not one more byte arrives anywhere. What was sent before it was cut and after
// is kept and arrives after Heal, as TCP would have it.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	// A write to somebody who does not read would hold this up for ever.
	for c := range p.conns {
		_ = c.SetWriteDeadline(time.Unix(1, 0))
	}
	for p.writing > 0 {
		p.changed.Wait()
	}
}

// Heal ends a Cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	for c := range p.conns {
		_ = c.SetWriteDeadline(time.Time{})
	}
	p.changed.Broadcast()
}

// Reset closes all connections, so that both sides see a connection reset. New
// ones can be made at once, which come alive after Heal if it is cut.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetLocked()
}

func (p *Proxy) resetLocked() {
	for c := range p.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
		delete(p.conns, c)
	}
	p.changed.Broadcast()
}

// Close ends the proxy and its connections. Nothing of it is left when Close
// returns.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.done {
		p.done = true
		p.end()
		_ = p.listener.Close()
		p.resetLocked()
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond): // out of files, most likely
				continue
			}
		}
		client := conn.(*net.TCPConn)
		if p.add(client) {
			p.work.Go(func() { p.serve(client) })
		}
	}
}

// add takes a connection into care, unless the proxy has ended.
func (p *Proxy) add(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	if p.cut {
		_ = c.SetWriteDeadline(time.Unix(1, 0))
	}
	return true
}

func (p *Proxy) drop(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

// serve joins a client with the target, as soon as it is let.
func (p *Proxy) serve(client *net.TCPConn) {
	defer p.drop(client)
	if !p.enter(client) {
		return
	}
	p.leave()
	conn, err := p.dial()
	if err != nil {
		_ = client.SetLinger(0)
		return
	}
	server := conn.(*net.TCPConn)
	if !p.add(server) {
		return
	}
	defer p.drop(server)
	var both sync.WaitGroup
	both.Go(func() { p.pump(server, client) })
	both.Go(func() { p.pump(client, server) })
	both.Wait()
}

func (p *Proxy) dial() (net.Conn, error) {
	target := p.target.Load()
	if target == nil {
		return nil, errors.New("embedded: the proxy has no target")
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	return dialer.DialContext(p.ctx, "tcp", *target)
}

// pump forwards one direction until it ends, and then ends it at the other side.
func (p *Proxy) pump(to, from *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buf)
		if n > 0 && !p.forward(to, buf[:n]) {
			// Nobody takes it any more: the sender has to know.
			_ = from.Close()
			return
		}
		if readErr != nil {
			if p.enter(to) {
				_ = to.CloseWrite()
				p.leave()
			}
			return
		}
	}
}

func (p *Proxy) forward(to *net.TCPConn, data []byte) bool {
	for len(data) > 0 {
		if !p.enter(to) {
			return false
		}
		n, err := to.Write(data)
		p.leave()
		data = data[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // that one is Cut
			return false
		}
	}
	return true
}

// enter waits until the proxy is not cut. It is false when the connection is
// gone; else leave must follow.
func (p *Proxy) enter(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if _, ok := p.conns[c]; !ok {
			return false
		}
		if !p.cut {
			p.writing++
			return true
		}
		p.changed.Wait()
	}
}

func (p *Proxy) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing--
	p.changed.Broadcast()
}
