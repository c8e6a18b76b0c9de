package coordinator_test

import (
	"fmt"
	"sync"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// BenchmarkAcquireRelease compares with concurrency.Mutex in the same run, as
// its documentation uses it: one session, one mutex for each lock.
func BenchmarkAcquireRelease(b *testing.B) {
	etcd := embedded.Start(b, nil)
	b.Run("mutex", func(b *testing.B) {
		s, err := concurrency.NewSession(etcd.Client())
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		for b.Loop() {
			m := concurrency.NewMutex(s, "/bench/orders")
			if err := m.Lock(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := m.Unlock(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("coordinator", func(b *testing.B) {
		c, err := coordinator.New(etcd.Client(), nil)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close(b.Context())
		b.ReportAllocs()
		for b.Loop() {
			g, err := c.Acquire(b.Context(), "orders")
			if err != nil {
				b.Fatal(err)
			}
			if err := g.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkHandOff is one lock that goes from goroutine to goroutine, without
// time in between. concurrency.Mutex needs a session for each of them.
func BenchmarkHandOff(b *testing.B) {
	etcd := embedded.Start(b, nil)
	for _, n := range []int{2, 16, 128} {
		b.Run(fmt.Sprintf("mutex/%d", n), func(b *testing.B) {
			var all sync.WaitGroup
			turns := make(chan struct{})
			for range n {
				s, err := concurrency.NewSession(etcd.Client())
				if err != nil {
					b.Fatal(err)
				}
				all.Go(func() {
					defer s.Close()
					m := concurrency.NewMutex(s, "/bench/orders")
					for range turns {
						if m.Lock(b.Context()) != nil || m.Unlock(b.Context()) != nil {
							b.Error("mutex")
						}
					}
				})
			}
			for b.Loop() {
				turns <- struct{}{}
			}
			close(turns)
			all.Wait()
		})
		b.Run(fmt.Sprintf("coordinator/%d", n), func(b *testing.B) {
			c, err := coordinator.New(etcd.Client(), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close(b.Context())
			var all sync.WaitGroup
			turns := make(chan struct{})
			for range n {
				all.Go(func() {
					for range turns {
						g, err := c.Acquire(b.Context(), "orders")
						if err != nil {
							b.Error(err)
							continue
						}
						if err := g.Release(b.Context()); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				turns <- struct{}{}
			}
			close(turns)
			all.Wait()
		})
	}
}
