package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// state is what a client sees of a cluster.
type state struct {
	cluster, member uint64 // IDs
	revision        int64
	value           string
}

func see(t *testing.T, etcd *embedded.Cluster) state {
	t.Helper()
	// One member is asked, whose ID stays the same if any does.
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = etcd.Endpoints()[:1] })
	resp, err := client.Get(bounded(t), "key")
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	return state{resp.Header.ClusterId, resp.Header.MemberId, resp.Header.Revision, string(resp.Kvs[0].Value)}
}

func write(t *testing.T, etcd *embedded.Cluster, value string) {
	t.Helper()
	if _, err := etcd.Client().Put(bounded(t), "key", value); err != nil {
		t.Fatal(err)
	}
}

// forget starts a cluster, saves a snapshot and writes what is not in it.
func forget(t *testing.T, members int, process bool) (etcd *embedded.Cluster, path string, saved, last state) {
	t.Helper()
	etcd = embedded.Start(t, &embedded.Options{Members: members, Process: process})
	path = filepath.Join(t.TempDir(), "snapshot.db")
	write(t, etcd, "saved")
	etcd.Snapshot(t, path)
	saved = see(t, etcd)
	for range 10 {
		write(t, etcd, "forgotten")
	}
	return etcd, path, saved, see(t, etcd)
}

func all(etcd *embedded.Cluster) []int {
	members := make([]int, len(etcd.Endpoints()))
	for i := range members {
		members[i] = i
	}
	return members
}

// kinds runs a test for one member and for three, in this process and in others.
func kinds(t *testing.T, f func(t *testing.T, members int, process bool)) {
	t.Helper()
	for _, members := range []int{1, 3} {
		for _, process := range []bool{false, true} {
			t.Run(fmt.Sprintf("members=%d/process=%v", members, process), func(t *testing.T) { f(t, members, process) })
		}
	}
}

func TestARestoreTakesRevisionsBackAndShowsNowhere(t *testing.T) {
	kinds(t, func(t *testing.T, members int, process bool) {
		etcd, path, saved, last := forget(t, members, process)
		etcd.Stop(t, all(etcd)...)
		if err := snapshot.Restore(etcd, path, nil); err != nil {
			t.Fatal(err)
		}
		etcd.Restart(t, all(etcd)...)
		now := see(t, etcd)
		if now != saved {
			t.Errorf("after the restore %+v, want %+v as in the snapshot", now, saved)
		}
		// The old client goes on, and is given a revision that it has seen.
		resp, err := etcd.Client().Put(bounded(t), "key", "again")
		if err != nil || resp.Header.Revision > last.revision {
			t.Errorf("revision %v, %v; before the restore it was %d", resp, err, last.revision)
		}
	})
}

func TestNewIDsTellTheClusterApart(t *testing.T) {
	kinds(t, func(t *testing.T, members int, process bool) {
		etcd, path, saved, _ := forget(t, members, process)
		etcd.Stop(t, all(etcd)...)
		if err := snapshot.Restore(etcd, path, &snapshot.Options{NewIDs: true}); err != nil {
			t.Fatal(err)
		}
		etcd.Restart(t, all(etcd)...)
		now := see(t, etcd)
		if now.cluster == saved.cluster || now.member == saved.member {
			t.Errorf("the IDs are still %x and %x", now.cluster, now.member)
		}
		if now.revision != saved.revision || now.value != saved.value {
			t.Errorf("after the restore %+v, want the data of %+v", now, saved)
		}
	})
}

func TestABumpedRevisionIsNotGivenTwice(t *testing.T) {
	etcd, path, saved, last := forget(t, 1, false)
	etcd.Stop(t)
	const bump = 1_000_000
	if err := snapshot.Restore(etcd, path, &snapshot.Options{BumpRevision: bump}); err != nil {
		t.Fatal(err)
	}
	etcd.Restart(t)
	now := see(t, etcd)
	if now.revision != saved.revision+bump || now.revision <= last.revision || now.value != saved.value {
		t.Errorf("after the restore %+v, want the data of %+v, bumped", now, saved)
	}
	resp := <-etcd.Client().Watch(bounded(t), "key", clientv3.WithRev(saved.revision))
	if !errors.Is(resp.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from before: %v", resp.Err())
	}
}

func TestADirectoryIsRestored(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("members=%d", members), func(t *testing.T) {
			old, path, saved, _ := forget(t, members, false)
			if err := old.Close(); err != nil { // its ports are wanted
				t.Fatal(err)
			}
			other, err := embedded.NewLayout(members)
			if err != nil {
				t.Fatal(err)
			}
			for name, layout := range map[string]embedded.Layout{"same": old.Layout(), "other": other} {
				dir := filepath.Join(t.TempDir(), name)
				if err := snapshot.RestoreTo(path, dir, layout, nil); err != nil {
					t.Fatal(err)
				}
				now := see(t, embedded.Start(t, &embedded.Options{Dir: dir, Members: members}))
				if same := now.cluster == saved.cluster && now.member == saved.member; same != (name == "same") {
					t.Errorf("%s layout: IDs %x and %x, in the snapshot %x and %x", name, now.cluster, now.member, saved.cluster, saved.member)
				}
				if now.revision != saved.revision || now.value != saved.value {
					t.Errorf("after the restore %+v, want the data of %+v", now, saved)
				}
			}
		})
	}
}

func TestWhatCannotBeRestoredIsRefused(t *testing.T) {
	etcd, path, _, last := forget(t, 1, false)
	if err := snapshot.Restore(etcd, path, nil); !errors.Is(err, snapshot.ErrRunning) {
		t.Errorf("under a running member: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	broken := filepath.Join(t.TempDir(), "broken.db")
	if err := os.WriteFile(broken, data, 0o600); err != nil {
		t.Fatal(err)
	}
	etcd.Stop(t)
	for _, path := range []string{broken, broken + ".missing"} {
		if err := snapshot.Restore(etcd, path, nil); err == nil {
			t.Errorf("%s: restored", path)
		}
	}
	etcd.Restart(t)
	if now := see(t, etcd); now != last {
		t.Errorf("after refused restores %+v, want %+v", now, last)
	}
	if err := snapshot.RestoreTo(path, filepath.Dir(path), etcd.Layout(), nil); err == nil {
		t.Error("into a directory with files in it: restored")
	}
	if err := snapshot.RestoreTo(path, t.TempDir(), etcd.Layout(), &snapshot.Options{NewIDs: true}); err == nil {
		t.Error("Options.NewIDs with a layout: restored")
	}
}
