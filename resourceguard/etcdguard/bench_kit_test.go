package etcdguard_test

import (
	"context"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// benchSubject puts as a program does that has made its KV for the grant. The rest
// of a Subject is not measured.
type benchSubject struct {
	guardtest.Subject
	client *clientv3.Client
	kv     func() (clientv3.KV, error)
}

var _ guardtest.BarePutter = benchSubject{}

func (s benchSubject) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	kv, err := s.kv()
	if err != nil {
		return resourceguard.Result{}, err
	}
	_, err = kv.Put(ctx, w.Resource, string(value))
	return resourceguard.Result{Mark: w.Token}, err
}

func (s benchSubject) PutBare(ctx context.Context, resource string, value []byte) error {
	_, err := s.client.Put(ctx, resource, string(value))
	return err
}

// BenchmarkGuard measures each mode as every guard is measured. In mode HighWater each
// caller has a resource, and so a mark, of its own.
func BenchmarkGuard(b *testing.B) {
	for _, opts := range []etcdguard.Options{
		{Mode: etcdguard.Held},
		{Mode: etcdguard.HighWater, Resource: func(key string) (string, error) { return key, nil }},
	} {
		b.Run(opts.Mode.String(), func(b *testing.B) {
			guardtest.Benchmark(b, func(b *testing.B) guardtest.Harness { return benchHarness(b, opts) })
		})
	}
}

func benchHarness(b *testing.B, opts etcdguard.Options) guardtest.Harness {
	b.Helper()
	client := embedded.Start(b, &embedded.Options{Fsync: true}).NewClient(b)
	putEpoch(b, client)
	var g grant
	opts.LockOf = func(string) (string, error) { return g.token.Lock(), nil }
	return guardtest.Harness{
		Open: func(tb guardtest.TB, _ guardtest.Config) guardtest.Subject {
			guard := newGuard(tb, client, &opts)
			return benchSubject{client: client, kv: sync.OnceValues(func() (clientv3.KV, error) { return guard.KV(g) })}
		},
		Resource: func(_ guardtest.TB, name, _ string) string { return "data/" + name },
		Grant: func(tb guardtest.TB, lock string) guardtest.Grant {
			g = acquire(tb, client, lock)
			return guardtest.Grant{Token: g.token, Owner: g.key}
		},
	}
}
