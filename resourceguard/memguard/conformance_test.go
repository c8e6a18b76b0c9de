package memguard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/resourceguard/memguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func TestConformance(t *testing.T) {
	guardtest.Run(t, newHarness)
}

// TestNothingIsSkipped keeps the reference guard complete: what it lacked would
// be tried on nothing.
func TestNothingIsSkipped(t *testing.T) {
	h := newHarness(t)
	for _, p := range guardtest.Properties() {
		if why := p.Skip(h); why != "" {
			t.Errorf("%s is skipped: %s", p.Name, why)
		}
	}
}

// subject is a memguard.Guard, which has the methods of a guardtest.Subject, and
// can be held up in the middle of a write.
type subject struct{ *memguard.Guard }

var (
	_ guardtest.Subject     = subject{}
	_ guardtest.SlowPutter  = subject{}
	_ guardtest.SlowDeleter = subject{}
)

func (s subject) PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error) {
	return s.Do(ctx, w, func(c *memguard.Cell) ([]byte, error) {
		during()
		c.Put(value)
		return nil, nil
	})
}

func (s subject) DeleteSlowly(ctx context.Context, w resourceguard.Write, during func()) (resourceguard.Result, error) {
	return s.Do(ctx, w, func(c *memguard.Cell) ([]byte, error) {
		during()
		c.Delete()
		return nil, nil
	})
}

func newHarness(*testing.T) guardtest.Harness {
	store := memguard.NewStore()
	var mu sync.Mutex
	locks := make(map[string]string) // by resource
	revision := int64(2)

	return guardtest.Harness{
		Open: func(tb guardtest.TB, c guardtest.Config) guardtest.Subject {
			opts := &memguard.Options{
				LockOf: func(resource string) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					if lock, ok := locks[resource]; ok {
						return lock, nil
					}
					return "", fmt.Errorf("no resource %q", resource)
				},
				Policy: c.Policy,
				Store:  store,
			}
			if !c.Ceiling.IsZero() {
				opts.Ceiling = func(context.Context) (revisionfence.Token, error) { return c.Ceiling, nil }
			}
			g, err := memguard.New(opts)
			if err != nil {
				tb.Fatalf("New: %v", err)
			}
			return subject{g}
		},
		Resource: func(_ guardtest.TB, name, lock string) string {
			mu.Lock()
			defer mu.Unlock()
			locks[name] = lock
			return name
		},
		Read: func(tb guardtest.TB, resource string) ([]byte, bool) {
			value, exists, err := store.Peek(tb.Context(), resource)
			if err != nil {
				tb.Fatalf("Peek: %v", err)
			}
			return value, exists
		},
		Grant: func(tb guardtest.TB, lock string) guardtest.Grant {
			mu.Lock()
			defer mu.Unlock()
			revision++
			token, err := revisionfence.New(lock, 0, revision)
			if err != nil {
				tb.Fatalf("New token: %v", err)
			}
			return guardtest.Grant{Token: token, Owner: fmt.Sprintf("locks/%s/%d", lock, revision)}
		},
		CorruptMark: func(tb guardtest.TB, resource string) {
			if err := store.CorruptMark(tb.Context(), resource); err != nil {
				tb.Fatalf("CorruptMark: %v", err)
			}
		},
		Reasons: func(tb guardtest.TB, resource string) []string {
			floors, err := store.Floors(tb.Context(), resource)
			if err != nil {
				tb.Fatalf("Floors: %v", err)
			}
			var reasons []string
			for _, f := range floors {
				reasons = append(reasons, f.Reason)
			}
			return reasons
		},
	}
}
