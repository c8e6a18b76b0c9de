package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// newConfig is what every member starts with, in whichever process it runs.
func newConfig(dir, endpoint string, fsync bool) *embed.Config {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "info"

	client := url.URL{Scheme: "http", Host: endpoint}
	config.ListenClientUrls = []url.URL{client}
	config.AdvertiseClientUrls = []url.URL{client}
	// Nobody talks to the peer port of an only member, so any will do, and it
	// need not be the same after a restart.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenPeerUrls = []url.URL{peer}
	config.AdvertisePeerUrls = []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	// The shortest lease is one and a half elections, in whole seconds.
	config.TickMs = 10
	config.ElectionMs = 50
	config.UnsafeNoFsync = !fsync
	// The gateway is a client of its own, with connections and goroutines.
	config.EnableGRPCGateway = false
	return config
}

// local is a member inside this process.
type local struct {
	etcd *embed.Etcd

	mu      sync.Mutex
	servers []*grpc.Server
	ended   chan struct{} // set by the first stop or kill, closed when it is done
}

func startLocal(ctx context.Context, config *embed.Config, logger *zap.Logger) (*local, error) {
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
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		if portTaken(err) {
			return nil, fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return nil, err
	}
	l.etcd = etcd
	select {
	case <-etcd.Server.ReadyNotify():
		return l, nil
	case err = <-etcd.Err():
	case <-etcd.Server.StopNotify():
		err = errors.New("the server stopped while it started")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	etcd.Close()
	return nil, err
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
