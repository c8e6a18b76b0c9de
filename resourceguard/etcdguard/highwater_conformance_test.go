package etcdguard_test

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestHighWaterConformance(t *testing.T) {
	guardtest.Run(t, newHighWaterHarness)
}

// TestHighWaterSkipsNothing: what the kit asks for, this mode can do.
func TestHighWaterSkipsNothing(t *testing.T) {
	h := newHighWaterHarness(t)
	for _, p := range guardtest.Properties() {
		if why := p.Skip(h); why != "" {
			t.Errorf("%s is skipped: %s", p.Name, why)
		}
	}
}

func markKey(resource string) string {
	return etcdguard.DefaultPrefix + "marks/" + url.PathEscape(resource)
}

// newHighWaterHarness leaves the ceiling to etcd: the kit asks before anything else
// is written, so that etcd's revision is the token that it names.
func newHighWaterHarness(t *testing.T) guardtest.Harness {
	h := &harness{setup: start(t, highWater), locks: make(map[string]string), leases: make(map[string]grant)}
	h.wire.OnUnary(meddle)
	var mu sync.Mutex
	last := make(map[string]grant) // by lock
	return guardtest.Harness{
		RealTokensOnly: true,
		Open: func(tb guardtest.TB, c guardtest.Config) guardtest.Subject {
			return &highWaterSubject{newGuard(tb, h.client, &etcdguard.Options{
				Mode: etcdguard.HighWater, Policy: c.Policy, LockOf: h.lockOf,
			})}
		},
		Resource: func(_ guardtest.TB, name, lock string) string {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.locks[name] = lock
			return name
		},
		Read: func(tb guardtest.TB, resource string) ([]byte, bool) {
			value, exists := h.value(tb, "data/"+resource)
			return []byte(value), exists
		},
		Grant: func(tb guardtest.TB, lock string) guardtest.Grant {
			mu.Lock()
			defer mu.Unlock()
			h.put(tb, "other", "writes come between") // a token is never 1 or 2
			if before, ok := last[lock]; ok {
				h.etcd.Expire(t, before) // nobody is granted a lock that is held
			}
			g := acquire(tb, h.truth, lock)
			last[lock] = g
			h.mu.Lock()
			defer h.mu.Unlock()
			owner := g.key[len(directory(lock)):]
			h.leases[owner] = g
			return guardtest.Grant{Token: g.token, Owner: owner}
		},
		EndGrant: func(_ guardtest.TB, g guardtest.Grant) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.etcd.Expire(t, h.leases[g.Owner])
		},
		CorruptMark: func(tb guardtest.TB, resource string) { h.put(tb, markKey(resource), "damaged") },
		Reasons: func(tb guardtest.TB, resource string) []string {
			prefix := etcdguard.DefaultPrefix + "floors/" + url.PathEscape(resource) + "/"
			resp, err := h.truth.Get(tb.Context(), prefix, clientv3.WithPrefix())
			if err != nil {
				tb.Fatalf("get %q: %v", prefix, err)
			}
			var reasons []string
			for _, kv := range resp.Kvs {
				var record struct{ Reason string }
				if err := json.Unmarshal(kv.Value, &record); err != nil {
					tb.Fatalf("record %q: %v", kv.Value, err)
				}
				reasons = append(reasons, record.Reason)
			}
			return reasons
		},
		Restart: func(guardtest.TB) { h.etcd.Restart(t) },
	}
}

// highWaterSubject writes one key for each resource.
type highWaterSubject struct{ *etcdguard.Guard }

var (
	_ guardtest.Subject     = (*highWaterSubject)(nil)
	_ guardtest.SlowPutter  = (*highWaterSubject)(nil)
	_ guardtest.SlowDeleter = (*highWaterSubject)(nil)
	_ guardtest.AnswerLoser = (*highWaterSubject)(nil)
)

func (s *highWaterSubject) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	r, _, err := s.Do(ctx, w, clientv3.OpPut("data/"+w.Resource, string(value)))
	return r, err
}

func (s *highWaterSubject) Delete(ctx context.Context, w resourceguard.Write) (resourceguard.Result, error) {
	r, _, err := s.Do(ctx, w, clientv3.OpDelete("data/"+w.Resource))
	return r, err
}

func (s *highWaterSubject) Get(ctx context.Context, w resourceguard.Write) ([]byte, bool, error) {
	_, resp, err := s.Do(ctx, w, clientv3.OpGet("data/"+w.Resource))
	if err != nil {
		return nil, false, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil, false, nil
	}
	return kvs[0].Value, true, nil
}

// slowly calls during before each request of the call.
func slowly(ctx context.Context, during func()) context.Context {
	return context.WithValue(ctx, meddlingKey{}, meddling(func(ctx context.Context, call *wire.Call) error {
		during()
		return call.Send(ctx)
	}))
}

func (s *highWaterSubject) PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error) {
	return s.Put(slowly(ctx, during), w, value)
}

func (s *highWaterSubject) DeleteSlowly(ctx context.Context, w resourceguard.Write, during func()) (resourceguard.Result, error) {
	return s.Delete(slowly(ctx, during), w)
}

func (s *highWaterSubject) PutLosingAnswer(ctx context.Context, w resourceguard.Write, value []byte, apply bool) error {
	_, err := s.Put(context.WithValue(ctx, meddlingKey{}, meddling(func(ctx context.Context, call *wire.Call) error {
		if !carries(call, "data/") {
			return call.Send(ctx)
		}
		if apply {
			if err := call.Send(ctx); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "the connection broke")
	})), w, value)
	return err
}

// carries reports whether a request writes to a key with the prefix.
func carries(call *wire.Call, prefix string) bool {
	txn, ok := call.Request.(*pb.TxnRequest)
	return ok && putsUnder(txn, prefix)
}

func putsUnder(txn *pb.TxnRequest, prefix string) bool {
	for _, op := range append(txn.Success, txn.Failure...) {
		if inner := op.GetRequestTxn(); inner != nil && putsUnder(inner, prefix) {
			return true
		}
		if put := op.GetRequestPut(); put != nil && strings.HasPrefix(string(put.Key), prefix) {
			return true
		}
	}
	return false
}
