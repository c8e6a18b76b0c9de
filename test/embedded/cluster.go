package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A loaded machine may take a hundred times what an idle one takes. These
// bounds only end what would otherwise hang for ever.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
	callTimeout  = 15 * time.Second
)

// pause is the time between two attempts of what fails at once, such as to have
// a port that is taken.
const pause = 20 * time.Millisecond

// Cluster is a running etcd. Its methods may be called from several goroutines;
// those that take a TB end the test when they fail, so they belong into the
// goroutine that runs the test. [Cluster.Member] has the same with errors.
type Cluster struct {
	members []*Member
	layout  Layout
	opts    Options
	certs   certs       // zero without TLS
	tls     *tls.Config // nil without TLS
	// authToken is etcd's flag of that name; empty without authentication.
	authToken string
	logs      *logBuffer
	dir       string
	isTemp    bool // dir is removed by Close

	client *clientv3.Client
	// control is for the cluster's own requests. A test may replace the KV of
	// the client that it is given, or close it; Expire must work all the same.
	control *clientv3.Client

	mu     sync.Mutex
	closed bool
}

// Start runs an etcd for the length of a test. It is ready when Start returns,
// and the test fails at once if it cannot be had. Nil options are fine.
func Start(t TB, opts *Options) *Cluster {
	t.Helper()
	ctx, cancel := boundStart(context.Background())
	defer cancel()
	c, err := run(ctx, opts)
	if err != nil {
		if c != nil {
			t.Logf("etcd says:\n%s", c.Logs())
		}
		t.Fatalf("%v", err)
		return nil
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Logf("%v", err)
		}
		if t.Failed() {
			t.Logf("etcd says:\n%s", c.Logs())
		}
	})
	return c
}

// Run starts an etcd for a program, which closes it. The ctx bounds the start
// and nothing else; one without a deadline gets that of [Start], 60 seconds. Nil
// options are fine.
func Run(ctx context.Context, opts *Options) (*Cluster, error) {
	ctx, cancel := boundStart(ctx)
	defer cancel()
	c, err := run(ctx, opts)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// boundStart keeps the caller's deadline.
func boundStart(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, startTimeout)
}

// run returns a closed cluster beside the error when there are logs to show.
func run(ctx context.Context, opts *Options) (*Cluster, error) {
	if opts == nil {
		opts = new(Options)
	}
	o := *opts
	if o.Binary == "" {
		o.Binary = os.Getenv(BinaryEnv)
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, logs: new(logBuffer)}
	if c.dir = o.Dir; c.dir == "" {
		var err error
		if c.dir, err = os.MkdirTemp("", "embedded-etcd-"); err != nil {
			return nil, fmt.Errorf("embedded: %w", err)
		}
		c.isTemp = true
	}
	if err := c.start(ctx); err != nil {
		return c, errors.Join(fmt.Errorf("embedded: start: %w", err), c.Close())
	}
	return c, nil
}

// Client returns a connected client that all callers share. The cluster closes
// it.
func (c *Cluster) Client() *clientv3.Client { return c.client }

// Endpoints returns the addresses of the members, as host:port. They stay the
// same for the life of the cluster.
func (c *Cluster) Endpoints() []string {
	endpoints := make([]string, len(c.members))
	for i, m := range c.members {
		endpoints[i] = m.Endpoint()
	}
	return endpoints
}

// ClientConfig returns a configuration for a client of one's own, who also
// closes it. It reconnects within a quarter of a second, where etcd's default
// would back off for seconds after a restart, and its logs go where the
// server's go. It has a certificate with Options.TLS and is root with
// Options.Auth.
func (c *Cluster) ClientConfig() clientv3.Config {
	retry := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}
	config := clientv3.Config{
		Endpoints: c.Endpoints(),
		Logger:    c.logs.logger("client"),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		},
	}
	if c.tls != nil {
		config.TLS = c.tls.Clone()
	}
	if c.opts.Auth != nil {
		config.Username, config.Password = rootUser, c.opts.Auth.password()
		config.DialTimeout = callTimeout // a new client gets its token at once, from whoever is up
	}
	return config
}

// CertFiles returns the paths of a client's certificate, its key and the
// authority. They are empty without Options.TLS, and the files are there until
// Close.
func (c *Cluster) CertFiles() CertFiles {
	if !c.opts.TLS {
		return CertFiles{}
	}
	return c.certs.client()
}

// NewClient returns a further client for the length of the test. Each function
// may change its configuration before it is made; append to DialOptions rather
// than setting it.
func (c *Cluster) NewClient(t TB, adjust ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	config := c.ClientConfig()
	for _, f := range adjust {
		f(&config)
	}
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatalf("embedded: new client: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = client.Close() }) // a second Close is harmless
	return client
}

// Member returns a member by its index, which is 0 for the only one. It panics if
// there is none, since it has no test to fail.
func (c *Cluster) Member(i int) *Member {
	if err := c.exists(i); err != nil {
		panic(err)
	}
	return c.members[i]
}

// Dir returns the directory of the data: that of member 0 is in its member0, and
// so on.
func (c *Cluster) Dir() string { return c.dir }

// Logs returns what the members and the clients have logged so far, the newest
// last. The oldest lines of a very long log are left out.
func (c *Cluster) Logs() string { return c.logs.String() }

// Lease is what Expire ends: a grant, a concurrency.Session, anything that lives
// on a lease.
type Lease interface{ Lease() clientv3.LeaseID }

// Expire ends a lease as its expiry would, now: the server does with a revoked
// lease exactly what it does with one that has run out, and its client learns
// of it no earlier. All keys of the lease are gone when Expire returns, so
// everything else that shares the lease has ended too. A lease that is gone
// already is fine.
func (c *Cluster) Expire(t TB, lease Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := c.ExpireLease(ctx, lease.Lease()); err != nil {
		t.Fatalf("%v", err)
	}
}

// ExpireLease is Expire for a program, by the ID of the lease.
func (c *Cluster) ExpireLease(ctx context.Context, id clientv3.LeaseID) error {
	if id == clientv3.NoLease {
		return errors.New("embedded: expire: no lease given")
	}
	if err := c.revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("embedded: expire lease %x: %w", id, err)
	}
	// A revoke is answered by one member after it has applied it. The keys are
	// gone everywhere for whoever reads linearizably; the lease itself is asked
	// for as a check of this very promise.
	left, err := c.control.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
	if err != nil {
		return fmt.Errorf("embedded: expire lease %x: %w", id, err)
	}
	if left.TTL != -1 || len(left.Keys) != 0 {
		return fmt.Errorf("embedded: expire lease %x: still there with TTL %d and %d keys", id, left.TTL, len(left.Keys))
	}
	return nil
}

// revoke asks until it is answered. A client does not repeat a write whose
// connection broke, and a member waits seconds for the answer of a leader that
// was killed; here a second request would only find that it is done.
func (c *Cluster) revoke(ctx context.Context, id clientv3.LeaseID) error {
	for wait := 500 * time.Millisecond; ; wait *= 2 {
		attempt, cancel := context.WithTimeout(ctx, wait)
		_, err := c.control.Revoke(attempt, id)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case status.Code(err) == codes.Unavailable || errors.Is(err, context.DeadlineExceeded):
			time.Sleep(pause)
		default:
			return err
		}
	}
}

// Close ends the shared client and the members and removes the data, unless
// Options.Dir said where to keep it. A second Close does nothing.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()

	for _, client := range []*clientv3.Client{c.client, c.control} {
		if client != nil {
			_ = client.Close() // its only error is that it was closed already
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	errs := []error{c.together(func(m *Member) error { return m.close(ctx) })}
	if c.isTemp {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	return nil
}
