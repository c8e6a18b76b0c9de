package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

const (
	// prefixes is what every run has its own prefix under.
	prefixes = "/etcd-fence-demo/"
	// reachTimeout bounds the first request: long enough for an election.
	reachTimeout = 5 * time.Second
	// eraseTimeout bounds the removal of the keys.
	eraseTimeout = 10 * time.Second
)

// ground is the etcd that the story happens on, and the prefix that it keeps to.
type ground struct {
	client  *clientv3.Client
	target  target
	prefix  string
	version string
	own     *embedded.Cluster // nil on somebody's cluster
	dir     string            // of its data, if that is to be kept
}

// prepare reaches the cluster, or starts one.
func prepare(ctx context.Context, o options) (*ground, error) {
	g := &ground{target: o.target, prefix: prefixes + strings.ToLower(rand.Text()[:10]) + "/"}
	if len(o.target.Endpoints) == 0 {
		if err := g.startOwn(ctx, o.keep); err != nil {
			return nil, err
		}
	}
	var err error
	if g.client, err = g.target.dial(); err == nil {
		err = g.reach(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// startOwn starts an etcd in this process. The workers reach it over TCP like any
// other: what they see is a real cluster of one member.
func (g *ground) startOwn(ctx context.Context, keep bool) error {
	opts := new(embedded.Options)
	if keep {
		dir, err := os.MkdirTemp("", program+"-")
		if err != nil {
			return err
		}
		// What is to be read after the run has to have reached the disk.
		g.dir, opts.Dir, opts.Fsync = dir, dir, true
	}
	own, err := embedded.Run(ctx, opts)
	if err != nil {
		return fmt.Errorf("start an etcd: %w", err)
	}
	g.own, g.target.Endpoints = own, own.Endpoints()
	return nil
}

// reach makes sure that there is an etcd with a quorum, and that nobody else uses
// the prefix.
func (g *ground) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	// A linearizable read, so the answer is also the proof of a quorum.
	found, err := g.client.Get(ctx, g.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no etcd answers within %v: %s; check --endpoints", reachTimeout, strings.Join(g.whyNot(), "; "))
	case err != nil:
		return fmt.Errorf("etcd at %s: %w", g.target, err)
	case found.Count != 0:
		return fmt.Errorf("%s is in use: it has %d keys", g.prefix, found.Count)
	}
	g.version = g.askVersion(ctx)
	return nil
}

// whyNot looks at each endpoint by itself, since the client only says that it has
// waited long enough.
func (g *ground) whyNot() []string {
	var reasons []string
	for _, endpoint := range g.target.Endpoints {
		conn, err := net.DialTimeout("tcp", address(endpoint), time.Second)
		switch op := (*net.OpError)(nil); {
		case errors.As(err, &op):
			reasons = append(reasons, fmt.Sprintf("%s: %v", endpoint, op.Err))
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("%s: %v", endpoint, err))
		default:
			_ = conn.Close()
			reasons = append(reasons, endpoint+": accepts connections, but there is no leader, or it wants TLS, or it is no etcd")
		}
	}
	return reasons
}

// askVersion returns the versions of the members that answer.
func (g *ground) askVersion(ctx context.Context) string {
	// For the reader only: a member that does not answer is no reason to stop.
	var versions []string
	for _, endpoint := range g.target.Endpoints {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := g.client.Status(ctx, endpoint)
		cancel()
		if err == nil && !slices.Contains(versions, status.Version) {
			versions = append(versions, status.Version)
		}
	}
	if len(versions) == 0 {
		return "of unknown version"
	}
	return strings.Join(versions, " and ")
}

// describe names the cluster in a line.
func (g *ground) describe() string {
	where := g.target.String()
	if g.own != nil {
		where += " (started for this run)"
	}
	return fmt.Sprintf("%s at %s", g.version, where)
}

// leftError is what the demo could not clean up.
type leftError struct {
	what string // is left, and how to remove it
	err  error
}

func (e *leftError) Error() string { return fmt.Sprintf("left behind: %s: %v", e.what, e.err) }

func (e *leftError) Unwrap() error { return e.err }

// erase removes all that the run has put into etcd. The workers have ended, so
// nothing is added behind its back.
func (g *ground) erase() error {
	ctx, cancel := context.WithTimeout(context.Background(), eraseTimeout)
	defer cancel()
	if err := g.eraseAll(ctx); err != nil {
		return &leftError{"keys, which can be removed with: " + g.removal(), err}
	}
	return nil
}

// eraseAll goes by what is there, not by what the workers have said: one of them
// may have died before it could say anything.
func (g *ground) eraseAll(ctx context.Context) error {
	// A worker that was killed has left its lease, which would end by itself.
	left, err := g.client.Get(ctx, g.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range left.Kvs {
		if kv.Lease == 0 {
			continue
		}
		_, err := g.client.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
	}
	_, err = g.client.Delete(ctx, g.prefix, clientv3.WithPrefix())
	return err
}

// removal is the command that does what erase does.
func (g *ground) removal() string {
	return fmt.Sprintf("%s del --prefix %s", g.target.etcdctl(), g.prefix)
}

// kept says where the keys are that were to be kept.
func (g *ground) kept() string {
	if g.own == nil {
		return fmt.Sprintf("Kept: the keys under %s\nRemove them with: %s", g.prefix, g.removal())
	}
	return fmt.Sprintf("Kept: the keys under %s, in the data directory %s", g.prefix, filepath.Join(g.dir, "member0"))
}

// close ends what this process has opened. Closing an etcd of our own removes its
// data, unless that is to be kept.
func (g *ground) close() error {
	var errs []error
	if g.client != nil {
		errs = append(errs, g.client.Close())
	}
	if g.own != nil {
		errs = append(errs, g.own.Close())
	}
	return errors.Join(errs...)
}
