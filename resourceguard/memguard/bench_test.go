package memguard_test

import (
	"context"
	"sync"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
)

// bareSubject has a map beside the guard, which is what the guard takes the place
// of.
type bareSubject struct {
	subject
	mu     sync.Mutex
	values map[string][]byte
}

var _ guardtest.BarePutter = (*bareSubject)(nil)

func (s *bareSubject) PutBare(_ context.Context, resource string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[resource] = append([]byte(nil), value...)
	return nil
}

func BenchmarkGuard(b *testing.B) {
	guardtest.Benchmark(b, func(b *testing.B) guardtest.Harness {
		h := newHarness(nil)
		open := h.Open
		h.Open = func(tb guardtest.TB, c guardtest.Config) guardtest.Subject {
			return &bareSubject{subject: open(tb, c).(subject), values: make(map[string][]byte)}
		}
		return h
	})
}
