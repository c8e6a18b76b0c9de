// Package snapshot starts an embedded etcd from a snapshot, with the restore of
// etcd's own etcdutl. It is a module of its own because of what etcdutl brings
// along.
//
//	etcd := embedded.Start(t, nil)
//	etcd.Snapshot(t, path)
//	...                     // is forgotten
//	etcd.Stop(t)
//	if err := snapshot.Restore(etcd, path, nil); err != nil { ... }
//	etcd.Restart(t)         // the clients find the past
//
// # What a client can see of it
//
// Without [Options] the cluster and its members have the IDs that they had, and
// revisions go on from the snapshot: the same revisions are given a second time,
// to other writes. Nothing in etcd's answers tells. With Options.NewIDs the
// answers come from another cluster; with Options.BumpRevision, which etcd
// recommends since 3.6, no revision is given twice.
package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// Options changes what [Restore] and [RestoreTo] do. Nil is the same as the zero
// value: etcdutl snapshot restore without flags.
type Options struct {
	// NewIDs gives the cluster and its members other IDs, as a restore with
	// another --initial-cluster-token does. It is for Restore: RestoreTo takes
	// them from the layout that it is given.
	// Defaults to false: the IDs that the running cluster has.
	NewIDs bool

	// BumpRevision raises the revision by so much, and marks everything before as
	// compacted, so that watches from before are told: --bump-revision and
	// --mark-compacted, which etcd does only together.
	// Defaults to 0: revisions go on from the snapshot.
	BumpRevision uint64
}

// ErrRunning is returned for a cluster with a member that has not been stopped:
// it would write into the new data.
var ErrRunning = errors.New("snapshot: a member is running")

// Restore replaces the data of a cluster, whose members have been stopped all,
// with that of a snapshot. The caller restarts them, all at once: their addresses
// are the same, so that clients just see them come back. On an error the cluster
// has the data that it had.
func Restore(c *embedded.Cluster, path string, opts *Options) error {
	layout := c.Layout()
	for i := range layout.Members() {
		if c.Member(i).Running() {
			return fmt.Errorf("%w: member %d", ErrRunning, i)
		}
	}
	if opts != nil && opts.NewIDs {
		other, err := embedded.NewLayout(1)
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		// The data says what the IDs are from here on. The token is only looked
		// at when there is none.
		layout.Token = other.Token
	}
	fresh, err := os.MkdirTemp(c.Dir(), "restore-")
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := restore(path, fresh, layout, opts); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	for i := range layout.Members() {
		old := filepath.Join(c.Dir(), name(i))
		err := os.RemoveAll(old)
		if err == nil {
			err = os.Rename(filepath.Join(fresh, name(i)), old)
		}
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	return os.RemoveAll(fresh)
}

// RestoreTo makes a directory from which a cluster can be started that has the
// data of a snapshot and this layout:
//
//	layout, err := embedded.NewLayout(3) // or that of the old one, which must be closed
//	err = snapshot.RestoreTo(path, dir, layout, nil)
//	etcd := embedded.Start(t, &embedded.Options{Dir: dir, Members: 3})
//
// The directory is made if it is missing and must be empty.
func RestoreTo(path, dir string, layout embedded.Layout, opts *Options) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return errors.Join(fmt.Errorf("snapshot: the directory %s is not empty", dir), err)
	}
	if opts != nil && opts.NewIDs {
		return errors.New("snapshot: Options.NewIDs is for Restore; RestoreTo takes the IDs from the layout")
	}
	if err := restore(path, dir, layout, opts); err != nil {
		return err
	}
	return layout.Save(dir)
}

// restore makes the data of all members, each in its directory below dir.
func restore(path, dir string, layout embedded.Layout, opts *Options) error {
	if opts == nil {
		opts = new(Options)
	}
	urls := make([]string, layout.Members())
	initial := make([]string, layout.Members())
	for i := range urls {
		urls[i] = "http://" + anyPeerPort
		if len(layout.Peers) > 0 {
			urls[i] = "http://" + layout.Peers[i]
		}
		initial[i] = name(i) + "=" + urls[i]
	}
	for i, url := range urls {
		err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath:        path,
			Name:                name(i),
			OutputDataDir:       filepath.Join(dir, name(i)),
			PeerURLs:            []string{url},
			InitialCluster:      strings.Join(initial, ","),
			InitialClusterToken: layout.Token,
			RevisionBump:        opts.BumpRevision,
			MarkCompacted:       opts.BumpRevision > 0,
		})
		if err != nil {
			return fmt.Errorf("snapshot: restore member %d from %s: %w", i, path, err)
		}
	}
	return nil
}

// These are how package embedded calls its members and, since nobody talks to
// it, the peer port of an only one.
func name(i int) string { return fmt.Sprintf("member%d", i) }

const anyPeerPort = "127.0.0.1:0"
