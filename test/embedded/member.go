package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	dir     string

	endpoint atomic.Pointer[string] // host:port, chosen at the first start and kept

	mu      sync.Mutex
	running runner // nil while it is stopped
	closed  bool
}

// runner is a member that runs, in this process or in a child.
type runner interface {
	// stop ends it in order. It has ended when stop returns nil.
	stop(ctx context.Context) error
	// kill ends it without letting it finish anything.
	kill(ctx context.Context) error
	pause() error
	resume() error
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
	if err := how(m.running, ctx); err != nil {
		return fmt.Errorf("embedded: end member: %w", err)
	}
	m.running = nil
	return nil
}

// Restart starts the member on its old data and its old port, after stopping it
// if it runs. It answers again when Restart returns.
func (m *Member) Restart(ctx context.Context) error {
	if err := m.Stop(ctx); err != nil {
		return err
	}
	if err := m.start(ctx); err != nil {
		return fmt.Errorf("embedded: restart member: %w", err)
	}
	config := m.cluster.ClientConfig()
	config.Endpoints = []string{m.Endpoint()}
	probe, err := clientv3.New(config)
	if err != nil {
		return fmt.Errorf("embedded: restart member: %w", err)
	}
	defer func() { _ = probe.Close() }()
	if err := ready(ctx, probe); err != nil {
		return fmt.Errorf("embedded: restart member: %w", err)
	}
	return nil
}

// Pause stops the member's process with SIGSTOP: its sockets stay open, new
// connections are made by the kernel, and nothing answers. It needs
// Options.Process, else the error is [ErrUnsupported].
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
	return m.endLocked(ctx, runner.stop)
}

func (m *Member) start(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errors.New("the cluster is closed")
	}
	if m.running != nil {
		return nil
	}
	first := m.Endpoint() == ""
	for {
		if first {
			endpoint, err := freePort()
			if err != nil {
				return err
			}
			m.endpoint.Store(&endpoint)
		}
		r, err := m.run(ctx)
		if err == nil {
			m.running = r
			return nil
		}
		// Between two runs the kernel may lend the port to somebody's outgoing
		// connection, so it is worth asking again, and a new member takes
		// another one.
		if !errors.Is(err, errPortTaken) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *Member) run(ctx context.Context) (runner, error) {
	if m.opts.Process {
		return startProcess(ctx, m, m.cluster.logs)
	}
	config := newConfig(m.dir, m.Endpoint(), m.opts.Fsync)
	if m.opts.Config != nil {
		m.opts.Config(config)
	}
	return startLocal(ctx, config, m.cluster.logs.logger("member"))
}

// freePort finds a port for the member before it starts, because a member tells
// its clients its address, and tells them ":0" if that is what it was given.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	endpoint := l.Addr().String()
	return endpoint, l.Close()
}

func portTaken(err error) bool {
	const windowsAddressInUse = syscall.Errno(10048)
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windowsAddressInUse)
}
