package etcdguard_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// BenchmarkBesideBare does each operation without a guard and in each mode in turns of
// a few requests, so that what else the machine does falls on all, and reports the
// medians and their ratios. The number after "by" is how many callers there are at
// once; the times are those of a turn for each of its requests.
func BenchmarkBesideBare(b *testing.B) {
	etcd := embedded.Start(b, &embedded.Options{Fsync: true})
	client := etcd.NewClient(b)
	putEpoch(b, client)
	g := acquire(b, client, "l")
	modes := []clientv3.KV{client, fenced(b, newGuard(b, client, nil), g), fenced(b, newGuard(b, client, highWater), g)}
	names := []string{"bare", "held", "highwater"}
	value := strings.Repeat("x", 128)
	compare := clientv3.Compare(clientv3.Version("never"), "=", 0)

	for _, op := range []struct {
		name string
		do   func(kv clientv3.KV, key string) error
	}{
		{"Put", func(kv clientv3.KV, key string) error {
			_, err := kv.Put(b.Context(), key, value)
			return err
		}},
		{"Get", func(kv clientv3.KV, key string) error {
			_, err := kv.Get(b.Context(), key)
			return err
		}},
		{"Txn", func(kv clientv3.KV, key string) error {
			_, err := kv.Txn(b.Context()).If(compare).Then(clientv3.OpPut(key, value)).Commit()
			return err
		}},
	} {
		for _, callers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/by%d", op.name, callers), func(b *testing.B) {
				turn := func(kv clientv3.KV) time.Duration {
					const each = 4
					start := time.Now()
					var wg sync.WaitGroup
					for c := range callers {
						wg.Go(func() {
							for range each {
								if err := op.do(kv, fmt.Sprintf("key%d", c)); err != nil {
									b.Error(err)
								}
							}
						})
					}
					wg.Wait()
					return time.Since(start) / time.Duration(each*callers)
				}
				took := make([][]time.Duration, len(modes))
				for b.Loop() {
					for i, kv := range modes {
						took[i] = append(took[i], turn(kv))
					}
				}
				var bare time.Duration
				for i, name := range names {
					slices.Sort(took[i])
					median := took[i][len(took[i])/2]
					b.ReportMetric(float64(median.Microseconds()), name+"-µs")
					if i == 0 {
						bare = median
						continue
					}
					b.ReportMetric(float64(median)/float64(bare), name+"-ratio")
				}
				b.ReportMetric(0, "ns/op") // the sum of them says nothing
			})
		}
	}
}

// BenchmarkKV is what making a KV for a grant costs.
func BenchmarkKV(b *testing.B) {
	client := embedded.Start(b, nil).Client()
	guard, g := newGuard(b, client, nil), acquire(b, client, "l")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := guard.KV(g); err != nil {
			b.Fatal(err)
		}
	}
}
