package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	if err := g.reach(ctx); err != nil {
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
	return fmt.Sprintf("Kept: the keys under %s, in the data directory %s", g.prefix, g.data())
}

// data is the directory of an etcd of our own, if that is kept.
func (g *ground) data() string {
	if g.dir == "" {
		return ""
	}
	return filepath.Join(g.dir, "member0")
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
