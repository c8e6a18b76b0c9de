package etcdguard_test

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// grant is a lock key in etcd, as a coordinator would make it.
type grant struct {
	key   string
	token revisionfence.Token
	lease clientv3.LeaseID
}

func (g grant) Token() revisionfence.Token { return g.token }

func (g grant) Lease() clientv3.LeaseID { return g.lease }

func (g grant) Fence() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(g.key), "=", g.token.Revision())}
}

// grants are several at once, which have no token of their own.
type grants []grant

func (gs grants) Fence() []clientv3.Cmp {
	var compares []clientv3.Cmp
	for _, g := range gs {
		compares = append(compares, g.Fence()...)
	}
	return compares
}

// fenceFunc is a Fenced that says whatever a test wants.
type fenceFunc func() []clientv3.Cmp

func (f fenceFunc) Fence() []clientv3.Cmp { return f() }

func directory(lock string) string {
	return etcdguard.DefaultPrefix + "locks/" + url.PathEscape(lock) + "/"
}

var serial atomic.Int64

type fataler interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// acquire puts a lock key of its own lease into the queue of a lock.
func acquire(t fataler, client *clientv3.Client, lock string) grant {
	t.Helper()
	return acquireIn(t, client, lock, directory(lock))
}

func acquireIn(t fataler, client *clientv3.Client, lock, dir string) grant {
	t.Helper()
	ctx := t.Context()
	lease, err := client.Grant(ctx, 600)
	if err != nil {
		t.Fatalf("lease: %v", err)
	}
	key := fmt.Sprintf("%s%x-%d", dir, lease.ID, serial.Add(1))
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "{}", clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !resp.Succeeded {
		t.Fatalf("lock key %q: %v, %v", key, resp, err)
	}
	token, err := revisionfence.New(lock, 0, resp.Header.Revision)
	if err != nil {
		t.Fatalf("token: %v", err)
	}
	return grant{key: key, token: token, lease: lease.ID}
}

// putEpoch puts the record that a coordinator makes before it grants anything.
func putEpoch(t fataler, client *clientv3.Client) {
	t.Helper()
	if _, err := client.Put(t.Context(), etcdguard.DefaultPrefix+"epoch", `{"format":1,"epoch":0}`); err != nil {
		t.Fatalf("epoch record: %v", err)
	}
}

func newGuard(t fataler, client *clientv3.Client, opts *etcdguard.Options) *etcdguard.Guard {
	t.Helper()
	guard, err := etcdguard.New(client, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return guard
}

func fenced(t fataler, guard *etcdguard.Guard, f etcdguard.Fenced) clientv3.KV {
	t.Helper()
	kv, err := guard.KV(f)
	if err != nil {
		t.Fatalf("KV: %v", err)
	}
	return kv
}

// setup is an etcd, a wire on the guard's client, and a client that sees what has
// really happened.
type setup struct {
	etcd   *embedded.Cluster
	wire   *wire.Wire
	client *clientv3.Client
	truth  *clientv3.Client
	guard  *etcdguard.Guard
}

func start(t *testing.T, opts *etcdguard.Options) *setup {
	t.Helper()
	s := &setup{etcd: embedded.Start(t, nil), wire: wire.New()}
	s.client = s.etcd.NewClient(t, func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, s.wire.DialOptions()...)
	})
	s.truth = s.etcd.Client()
	if opts != nil && opts.Mode == etcdguard.HighWater {
		putEpoch(t, s.truth)
	}
	s.guard = newGuard(t, s.client, opts)
	return s
}

// value reads past the guard.
func (s *setup) value(t fataler, key string) (string, bool) {
	t.Helper()
	resp, err := s.truth.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	if len(resp.Kvs) == 0 {
		return "", false
	}
	return string(resp.Kvs[0].Value), true
}

// put writes past the guard.
func (s *setup) put(t fataler, key, value string) {
	t.Helper()
	if _, err := s.truth.Put(t.Context(), key, value); err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

func (s *setup) wantValue(t *testing.T, key, want string) {
	t.Helper()
	if got, _ := s.value(t, key); got != want {
		t.Errorf("%q is %q, want %q", key, got, want)
	}
}

// isLocal is etcd's own rule for answering a transaction without asking its peers.
func isLocal(m proto.Message) bool {
	txn, ok := m.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range append(txn.Success, txn.Failure...) {
		if r := op.GetRequestRange(); r == nil || !r.Serializable {
			return false
		}
	}
	return true
}
