package embedded

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Snapshot writes a snapshot of the cluster to a file, as etcdctl snapshot save
// does. All that was acknowledged before is in it. To start from it, see package
// github.com/etcd-fence/etcd-fence/test/embedded/snapshot, a module of its own.
func (c *Cluster) Snapshot(t TB, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.SaveSnapshot(ctx, path); err != nil {
		t.Fatalf("%v", err)
	}
}

// SaveSnapshot is Snapshot for a program. The file is complete and proven, or it
// is not there; one that was there before is replaced.
func (c *Cluster) SaveSnapshot(ctx context.Context, path string) error {
	// A snapshot is what one member has, which may be behind the others.
	from, _, err := c.leader(ctx, nobody)
	if err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	config := c.ClientConfig()
	config.Context = ctx
	config.Endpoints = []string{c.members[from].Endpoint()}
	client, err := clientv3.New(config)
	if err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	defer func() { _ = client.Close() }()
	if err := ready(ctx, client); err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	data, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	defer func() { _ = data.Close() }()
	if err := writeSnapshot(path, data); err != nil {
		return fmt.Errorf("embedded: snapshot: %w", err)
	}
	return nil
}

func writeSnapshot(path string, data io.Reader) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	sum := sha256.New()
	held := &holdBack{to: io.MultiWriter(f, sum)}
	_, err = io.Copy(held, data)
	if err == nil && !bytes.Equal(held.last, sum.Sum(nil)) {
		err = fmt.Errorf("the data is not what its SHA-256 says, %x", held.last)
	}
	if err == nil {
		_, err = f.Write(held.last)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// holdBack passes on all but the last bytes, which are the sum of the others.
type holdBack struct {
	to   io.Writer
	last []byte
}

func (h *holdBack) Write(p []byte) (int, error) {
	h.last = append(h.last, p...)
	if over := len(h.last) - sha256.Size; over > 0 {
		if _, err := h.to.Write(h.last[:over]); err != nil {
			return 0, err
		}
		h.last = append(h.last[:0], h.last[over:]...)
	}
	return len(p), nil
}
