package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// local is a member inside this process.
type local struct {
	etcd *embed.Etcd

	mu      sync.Mutex
	servers []*grpc.Server
	ended   chan struct{} // set by the first stop or kill, closed when it is done
}

func startLocal(config *embed.Config, logger *zap.Logger) (*local, error) {
	l := new(local)
	register := config.ServiceRegister
	config.ServiceRegister = func(s *grpc.Server) {
		if register != nil {
			register(s)
		}
		l.mu.Lock()
		l.servers = append(l.servers, s)
		l.mu.Unlock()
	}
	if config.ZapLoggerBuilder == nil {
		config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	}
	var err error
	if l.etcd, err = embed.StartEtcd(config); err != nil {
		if portTaken(err) {
			return nil, fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return nil, err
	}
	return l, nil
}

func (l *local) ready(ctx context.Context) error {
	select {
	case <-l.etcd.Server.ReadyNotify():
		return nil
	case err := <-l.etcd.Err():
		return err
	case <-l.etcd.Server.StopNotify():
		return errors.New("the server stopped while it started")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *local) stop(ctx context.Context) error {
	return l.end(ctx, func() {
		l.cutClients()
		l.etcd.Close()
	})
}

func (l *local) kill(ctx context.Context) error {
	return l.end(ctx, func() {
		l.etcd.Server.HardStop()
		l.cutClients()
		l.etcd.Close()
	})
}

// cutClients closes the connections. Left alone, the server would first wait for
// watches and keepalives to end by themselves, which takes it five seconds.
func (l *local) cutClients() {
	l.mu.Lock()
	servers := l.servers
	l.mu.Unlock()
	for _, s := range servers {
		s.Stop()
	}
}

// end runs f once, however often it is asked, and waits for it until ctx ends.
func (l *local) end(ctx context.Context, f func()) error {
	l.mu.Lock()
	ended := l.ended
	if ended == nil {
		ended = make(chan struct{})
		l.ended = ended
		go func() {
			defer close(ended)
			f()
		}()
	}
	l.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("still shutting down: %w", context.Cause(ctx))
	}
}

func (l *local) pause() error {
	return fmt.Errorf("%w: a member can be paused only with Options.Process", ErrUnsupported)
}

func (l *local) resume() error {
	return fmt.Errorf("%w: a member can be resumed only with Options.Process", ErrUnsupported)
}

func (l *local) id() uint64 { return uint64(l.etcd.Server.MemberID()) }

func (l *local) cut(_ context.Context, peer uint64, on bool) error {
	if on {
		withID(l.etcd.Server.CutPeer, peer)
	} else {
		withID(l.etcd.Server.MendPeer, peer)
	}
	return nil
}

// withID spares the import of etcd's type of IDs, which is in a package for
// etcd's own use.
func withID[ID ~uint64](f func(ID), id uint64) { f(ID(id)) }
