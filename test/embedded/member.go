package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Member is one server of a [Cluster].
type Member struct {
	cluster *Cluster
	opts    Options
	index   int
	dir     string

	endpoint atomic.Pointer[string] // host:port, chosen before the first start and kept

	// peers is in front of the peer port of a member inside this process that
	// has others. Its end is the end of connections between members that would
	// else outlive them both: etcd keeps idle ones for seconds.
	peers *Proxy

	mu      sync.Mutex
	running runner // nil while it is stopped
	closed  bool

	isolated bool   // Isolate has cut it off
	id       uint64 // etcd's, once it has been isolated
}

// runner is a member that runs, in this process or in a child.
type runner interface {
	// ready waits until it serves.
	ready(ctx context.Context) error
	// stop ends it in order. It has ended when stop returns nil.
	stop(ctx context.Context) error
	// kill ends it without letting it finish anything.
	kill(ctx context.Context) error
	pause() error
	resume() error
	// id is etcd's, once it is ready.
	id() uint64
	// cut has it drop all that it sends to a peer or receives, or not any more.
	cut(ctx context.Context, peer uint64, on bool) error
}

// errPortTaken says that the member's port belongs to somebody else just now.
var errPortTaken = errors.New("port taken")

// Endpoint returns the address at which clients reach the member, as host:port.
func (m *Member) Endpoint() string {
	if endpoint := m.endpoint.Load(); endpoint != nil {
		return *endpoint
	}
	return ""
}

// Running says whether the member runs, or is paused.
func (m *Member) Running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running != nil
}

// Stop shuts the member down. Its clients' connections close. A stopped member
// stays as it is; a paused one is killed, since it cannot shut down.
func (m *Member) Stop(ctx context.Context) error { return m.end(ctx, runner.stop) }

// Kill ends the member at once. In process mode that is SIGKILL. Else it is a
// server that stops in the middle of what it does, while this process, and so
// the files and sockets that it closes, goes on.
func (m *Member) Kill(ctx context.Context) error { return m.end(ctx, runner.kill) }

func (m *Member) end(ctx context.Context, how func(runner, context.Context) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.endLocked(ctx, how)
}

func (m *Member) endLocked(ctx context.Context, how func(runner, context.Context) error) error {
	if m.running == nil {
		return nil
	}
	if m.peers != nil {
		m.peers.target.Store(nil)
		m.peers.Reset()
	}
	if err := how(m.running, ctx); err != nil {
		return fmt.Errorf("embedded: end member: %w", err)
	}
	m.running = nil
	return nil
}

// Restart starts the member on its old data and its old ports, after stopping it
// if it runs. When Restart returns it answers again, with all that was written
// before. That takes a majority: to restart several members that are needed for
// one, use [Cluster.Restart], which starts them together.
func (m *Member) Restart(ctx context.Context) error {
	if err := m.restart(ctx); err != nil {
		return err
	}
	return m.answers(ctx)
}

func (m *Member) restart(ctx context.Context) error {
	if err := m.Stop(ctx); err != nil {
		return err
	}
	err := m.letBack(ctx)
	if err == nil {
		err = m.start(ctx, false)
	}
	if err != nil {
		return fmt.Errorf("embedded: restart member: %w", err)
	}
	return nil
}

func (m *Member) answers(ctx context.Context) error {
	err := m.ready(ctx)
	if err == nil {
		err = m.keepOut(ctx)
	}
	if err == nil {
		err = m.probe(ctx)
	}
	if err != nil {
		return fmt.Errorf("embedded: restart member: %w", err)
	}
	return nil
}

// Pause stops the member's process with SIGSTOP: its sockets stay open, new
// connections are made by the kernel, and nothing answers. It needs
// Options.Process or Options.Binary, else the error is [ErrUnsupported].
func (m *Member) Pause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil {
		return errors.New("embedded: pause: the member is stopped")
	}
	return m.running.pause()
}

// Resume continues a paused member with SIGCONT.
func (m *Member) Resume() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil {
		return errors.New("embedded: resume: the member is stopped")
	}
	return m.running.resume()
}

func (m *Member) close(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	defer m.closePeers()
	if len(m.cluster.members) > 1 {
		// A leader that shuts down in order first looks for a successor, and
		// they all go down.
		return m.endLocked(ctx, runner.kill)
	}
	return m.endLocked(ctx, runner.stop)
}

// start runs the member and returns when its peers can reach it, which is before
// it is ready. The first start fails at once when the port is taken, so that
// another one can be chosen; a later one waits for it.
func (m *Member) start(ctx context.Context, first bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("the cluster is closed")
	}
	if m.running != nil {
		return nil
	}
	for {
		r, err := m.run(ctx)
		if err == nil {
			m.running = r
			return nil
		}
		// Between two runs the kernel may lend the port to somebody's outgoing
		// connection, so it is worth asking again.
		if first || !errors.Is(err, errPortTaken) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

func (m *Member) run(ctx context.Context) (runner, error) {
	switch {
	case m.opts.Binary != "":
		return startBinary(ctx, m, m.cluster.logs)
	case m.opts.Process:
		return startProcess(ctx, m, m.cluster.logs)
	}
	_, config, err := m.configured()
	if err != nil {
		return nil, err
	}
	l, err := startLocal(config, m.cluster.logs.logger(config.Name))
	if err != nil {
		return nil, err // a nil *local is no nil runner
	}
	if m.peers != nil {
		target := l.etcd.Peers[0].Addr().String()
		m.peers.target.Store(&target)
	}
	return l, nil
}

func (m *Member) spec() spec {
	s := spec{
		Name: memberName(m.index), Dir: m.dir, Endpoint: m.Endpoint(), Index: m.index, Behind: m.peers != nil,
		Peers: m.cluster.layout.Peers, Token: m.cluster.layout.Token, Fsync: m.opts.Fsync,
		Certs: m.cluster.certs.dir,
	}
	if m.opts.Auth != nil {
		s.Auth, s.AuthTTL = m.cluster.authToken, uint(m.opts.Auth.ttl()/time.Second)
	}
	return s
}

func (m *Member) closePeers() {
	if m.peers != nil {
		m.peers.Close()
		m.peers = nil
	}
}

// ready waits until the member has joined the others and serves.
func (m *Member) ready(ctx context.Context) error {
	m.mu.Lock()
	running := m.running
	m.mu.Unlock()
	if running == nil {
		return errors.New("the member has stopped")
	}
	return running.ready(ctx)
}

// reset takes back a first start that failed, for another attempt.
func (m *Member) reset(ctx context.Context, keepData bool) error {
	if err := m.Kill(ctx); err != nil {
		return err
	}
	m.closePeers()
	if keepData {
		return nil
	}
	return os.RemoveAll(m.dir)
}

// probe waits until the member itself answers linearizably: it has found a
// leader, and it serves.
func (m *Member) probe(ctx context.Context) error {
	config := m.cluster.ClientConfig()
	config.Context = ctx // with a password, New asks the member already
	config.Endpoints = []string{m.Endpoint()}
	client, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return ready(ctx, client)
}

// freePorts finds ports for members before they start, because a member tells
// its clients and its peers its address, and tells them ":0" if that is what it
// was given. They are all held until the last one is found, so they differ.
func freePorts(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		addresses[i] = l.Addr().String()
	}
	return addresses, nil
}

func portTaken(err error) bool {
	const windowsAddressInUse = syscall.Errno(10048)
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windowsAddressInUse)
}
