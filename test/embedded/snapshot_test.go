package embedded_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func TestASnapshotIsCompleteAndProven(t *testing.T) {
	etcd := startThree(t, &embedded.Options{TLS: true, Auth: &embedded.Auth{}})
	ctx, path := bounded(t), filepath.Join(t.TempDir(), "snapshot.db")
	value := string(bytes.Repeat([]byte("x"), 100<<10)) // more than one message of the stream
	if _, err := etcd.Client().Put(ctx, "key", value); err != nil {
		t.Fatal(err)
	}
	etcd.Kill(t, etcd.Leader(t))
	etcd.Snapshot(t, path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A database is whole pages, and what comes after it is its sum.
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if want := sha256.Sum256(body); len(body)%512 != 0 || !bytes.Equal(sum, want[:]) {
		t.Errorf("%d bytes end with %x, want %x", len(data), sum, want)
	}
	if !bytes.Contains(body, []byte(value[:1000])) {
		t.Error("what was written before is not in it")
	}
	etcd.Snapshot(t, path) // replaces it
	wantOnly(t, path)
}

func TestAnUnfinishedSnapshotIsNotThere(t *testing.T) {
	etcd := embedded.Start(t, nil)
	path := filepath.Join(t.TempDir(), "snapshot.db")
	etcd.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := etcd.SaveSnapshot(ctx, path); err == nil {
		t.Error("a snapshot of nobody")
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func wantOnly(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("beside %s there is %v, %v", path, entries, err)
	}
}

func TestALayoutIsOfSomeMembers(t *testing.T) {
	for _, n := range []int{-1, 0, 2, 9} {
		if l, err := embedded.NewLayout(n); err == nil {
			t.Errorf("%d members: %+v", n, l)
		}
	}
	a, errA := embedded.NewLayout(3)
	b, errB := embedded.NewLayout(3)
	if errA != nil || errB != nil || a.Members() != 3 || a.Token == b.Token {
		t.Errorf("%+v, %v; %+v, %v", a, errA, b, errB)
	}
}
