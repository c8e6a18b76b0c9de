package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func (c *Cluster) start(ctx context.Context) error {
	n := max(c.opts.Members, 1)
	for i := range n {
		c.members = append(c.members, &Member{cluster: c, opts: c.opts, index: i, dir: filepath.Join(c.dir, memberName(i))})
	}
	old, err := c.layout.load(c.dir, n)
	if err != nil {
		return err
	}
	if err := c.secure(); err != nil {
		return err
	}
	if err := c.startMembers(ctx, old); err != nil {
		return err
	}
	if err := c.layout.Save(c.dir); err != nil {
		return err
	}
	if c.opts.Auth != nil {
		if err := c.enableAuth(ctx); err != nil {
			return err
		}
	}
	if c.control, err = clientv3.New(c.ClientConfig()); err != nil {
		return err
	}
	if c.client, err = clientv3.New(c.ClientConfig()); err != nil {
		return err
	}
	// The connections are made by the first request, so this is where the client
	// becomes ready too. A member serves only shortly after it says it is ready.
	if err := errors.Join(ready(ctx, c.control), ready(ctx, c.client)); err != nil || n == 1 {
		return err
	}
	return c.together(func(m *Member) error { return m.probe(ctx) })
}

// secure makes what Options.TLS and Options.Auth need before the start.
func (c *Cluster) secure() (err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if c.opts.TLS {
		c.certs = certs{filepath.Join(c.dir, "certs")}
		if err := c.certs.make(); err != nil {
			return err
		}
		if c.tls, err = c.certs.client().config(); err != nil {
			return err
		}
	}
	if c.opts.Auth != nil {
		c.authToken, err = c.opts.Auth.prepare(c.dir)
	}
	return err
}

func (c *Cluster) enableAuth(ctx context.Context) error {
	client, err := clientv3.New(c.ClientConfig())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := ready(ctx, client); err != nil {
		return err
	}
	return c.opts.Auth.enable(ctx, client)
}

// startMembers starts all members. Ports are found before they are used, so
// somebody else may be faster.
func (c *Cluster) startMembers(ctx context.Context, old bool) error {
	for {
		err := c.choosePorts(old)
		if err == nil {
			err = c.startOnce(ctx)
		}
		if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return err
		}
		if err := c.together(func(m *Member) error { return m.reset(ctx, old) }); err != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// startOnce starts one member after the other. A new member asks the others
// whether it is known, and one that listens but does not answer yet would cost
// it a second.
func (c *Cluster) startOnce(ctx context.Context) error {
	for _, m := range c.members {
		if err := m.start(ctx, true); err != nil {
			return err
		}
	}
	return c.together(func(m *Member) error { return m.ready(ctx) })
}

func (c *Cluster) choosePorts(old bool) error {
	n := len(c.members)
	peers := 0
	if n > 1 && !old {
		peers = n
	}
	ports, err := freePorts(n + peers)
	if err != nil {
		return err
	}
	for i, m := range c.members {
		m.endpoint.Store(&ports[i])
	}
	if peers > 0 {
		c.layout.Peers = ports[n:]
	}
	if n == 1 || c.opts.Process || c.opts.Binary != "" {
		return nil
	}
	for i, m := range c.members {
		p, err := newProxy(c.layout.Peers[i])
		if err != nil {
			if portTaken(err) {
				err = fmt.Errorf("%w: %w", errPortTaken, err)
			}
			return err
		}
		m.peers = p
	}
	return nil
}

// together does something with all members at once.
func (c *Cluster) together(do func(*Member) error) error {
	errs := make([]error, len(c.members))
	var group sync.WaitGroup
	for i, m := range c.members {
		group.Go(func() { errs[i] = do(m) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// ready waits for a linearizable answer: there is a leader, and it serves.
func ready(ctx context.Context, client *clientv3.Client) error {
	if _, err := client.Get(ctx, "ready", clientv3.WithCountOnly()); err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	return nil
}
