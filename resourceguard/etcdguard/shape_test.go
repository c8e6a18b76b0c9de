package etcdguard_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// twins are two etcds with one history: what is done to the one without a guard
// is done to the other through one.
type twins struct {
	plain, fenced clientv3.KV
	lease         clientv3.LeaseID
	base          int64 // revision at the start
	version       string
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	tw := &twins{lease: 0x77}
	const key = "/etcd-fence/locks/l/77-1"
	for i := range 2 {
		etcd := embedded.Start(t, nil)
		client := etcd.Client()
		member, err := client.Status(t.Context(), etcd.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		tw.version = member.Version
		lease := pb.NewLeaseClient(client.ActiveConnection())
		if _, err := lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: int64(tw.lease), TTL: 600}); err != nil {
			t.Fatal(err)
		}
		resp, err := client.Put(t.Context(), key, "", clientv3.WithLease(tw.lease))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			tw.plain = client.KV
			continue
		}
		token, err := revisionfence.New("l", 0, resp.Header.Revision)
		if err != nil {
			t.Fatal(err)
		}
		tw.fenced = fenced(t, newGuard(t, client, nil), grant{key: key, token: token})
		tw.base = token.Revision()
	}
	return tw
}

// do returns what there is to see of one operation.
func do(t fataler, kv clientv3.KV, op clientv3.Op) (proto.Message, error) {
	t.Helper()
	resp, err := kv.Do(t.Context(), op)
	if err != nil {
		e, ok := errors.AsType[rpctypes.EtcdError](err)
		if !ok {
			t.Fatalf("not an error of etcd: %v", err)
		}
		return nil, e
	}
	var m interface {
		proto.Message
		GetHeader() *pb.ResponseHeader
	}
	switch {
	case resp.Put() != nil:
		m = (*pb.PutResponse)(resp.Put())
	case resp.Get() != nil:
		m = (*pb.RangeResponse)(resp.Get())
	case resp.Del() != nil:
		m = (*pb.DeleteRangeResponse)(resp.Del())
	case resp.Txn() != nil:
		m = (*pb.TxnResponse)(resp.Txn())
	}
	h := m.GetHeader()
	if h.GetClusterId() == 0 || h.GetMemberId() == 0 || h.GetRaftTerm() == 0 || h.GetRevision() == 0 {
		t.Fatalf("incomplete header %v", h)
	}
	h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	return m, nil
}

// same does one operation to both and compares the answers in full, revisions
// included.
func (tw *twins) same(t interface {
	fataler
	Errorf(format string, args ...any)
}, op clientv3.Op) {
	t.Helper()
	want, wantErr := do(t, tw.plain, op)
	got, gotErr := do(t, tw.fenced, op)
	if !errors.Is(gotErr, wantErr) { // EtcdErrors compare by code and text
		t.Fatalf("%s:\nerror %v, without a guard %v", show(op), gotErr, wantErr)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s: (-without a guard, +with)\n%s", show(op), diff)
	}
}

func show(op clientv3.Op) string {
	if op.IsTxn() {
		compares, then, otherwise := op.Txn()
		parts := make([]string, 0, len(then)+len(otherwise))
		for _, o := range then {
			parts = append(parts, show(o))
		}
		parts = append(parts, "else")
		for _, o := range otherwise {
			parts = append(parts, show(o))
		}
		return fmt.Sprintf("if %v then (%s)", compares, strings.Join(parts, " "))
	}
	kind := "get"
	if op.IsPut() {
		kind = "put"
	} else if op.IsDelete() {
		kind = "delete"
	}
	return fmt.Sprintf("%s[%q-%q=%q rev %d]", kind, op.KeyBytes(), op.RangeBytes(), op.ValueBytes(), op.Rev())
}

func TestAnswersLookUnfenced(t *testing.T) {
	tw := newTwins(t)
	var (
		get, put, del = clientv3.OpGet, clientv3.OpPut, clientv3.OpDelete
		txn           = clientv3.OpTxn
		all           = clientv3.WithPrefix()
		yes           = clientv3.Compare(clientv3.Version("a"), ">", 0)
		no            = clientv3.Compare(clientv3.Version("a"), "=", 0)
	)
	// An etcd 3.5 that is asked for an order that it does not know ends with a
	// panic, whoever asks: this one refusal is not looked at there.
	unknownOrder := get("", all, clientv3.WithSort(99, clientv3.SortAscend))
	if strings.HasPrefix(tw.version, "3.5.") {
		unknownOrder = get("")
	}
	ops := func(o ...clientv3.Op) []clientv3.Op { return o }
	cmps := func(c ...clientv3.Cmp) []clientv3.Cmp { return c }
	for _, op := range []clientv3.Op{
		get("a"), del("a"), del("a", clientv3.WithPrevKV()), // nothing is there
		put("a", "1"), put("a", "2"), put("a", "3", clientv3.WithPrevKV()),
		put("b", "1", clientv3.WithLease(tw.lease)), put("b", "", clientv3.WithIgnoreValue(), clientv3.WithPrevKV()),
		put("b", "2", clientv3.WithIgnoreLease()), put("c", "9", clientv3.WithPrevKV()), put("d", ""),
		get("a"), get("", all), get("a", clientv3.WithRange("c")), get("b", clientv3.WithFromKey(), clientv3.WithLimit(3)),
		get("", all, clientv3.WithLimit(1)), get("", all, clientv3.WithCountOnly()), get("", all, clientv3.WithKeysOnly()),
		get("a", clientv3.WithRange("e"), clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend)),
		get("a", clientv3.WithRange("e"), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend), clientv3.WithLimit(2)),
		get("a", clientv3.WithRev(tw.base+1)), get("a", clientv3.WithRev(tw.base)), get("a", clientv3.WithRev(tw.base+1), clientv3.WithSerializable()),
		get("a", clientv3.WithRange("e"), clientv3.WithMinModRev(tw.base+3)), get("a", clientv3.WithRange("e"), clientv3.WithMaxCreateRev(tw.base+1)),
		// Transactions without compares, with a true and with a false one.
		txn(nil, nil, nil), txn(cmps(yes), nil, nil), txn(cmps(no), nil, nil), txn(nil, nil, ops(get("a"))),
		txn(nil, ops(put("a", "4", clientv3.WithPrevKV()), get("a"), del("d", clientv3.WithPrevKV()), get("", all, clientv3.WithLimit(1))), nil),
		txn(cmps(yes, no), ops(put("a", "no")), ops(get("a"), put("e", "5"))),
		txn(cmps(yes), ops(put("a", "6"), get("a")), ops(put("a", "no"))),
		txn(cmps(no), ops(put("a", "no")), nil), txn(cmps(yes), nil, ops(put("a", "no"))),
		txn(nil, ops(get("a"), get("b")), nil), txn(cmps(yes), ops(get("a"), get("b")), ops(get("c"))),
		txn(nil, ops(put("a", "7"), txn(cmps(yes), ops(put("b", "7"), get("a")), ops(put("c", "7"))), txn(cmps(no), nil, ops(put("d", "7")))), nil),
		txn(cmps(yes), ops(txn(cmps(no), ops(get("a")), ops(txn(nil, ops(put("f", "8"), get("", all)), nil)))), ops(get("b"))),
		txn(nil, ops(put("zero", "")), ops(put("never", ""))),
		del("a", clientv3.WithRange("c"), clientv3.WithPrevKV()), del("c", clientv3.WithPrevKV()), del("z", clientv3.WithFromKey(), clientv3.WithPrevKV()),
		get("", all), get("a"),
		// Refusals of etcd.
		put("", "v"), get(""), del(""), put("a", "v", clientv3.WithIgnoreValue()), put("missing", "", clientv3.WithIgnoreValue()),
		put("missing", "v", clientv3.WithIgnoreLease()), put("a", "v", clientv3.WithLease(0x99)), get("a", clientv3.WithRev(1<<40)),
		unknownOrder, txn(nil, ops(put("a", "1"), put("a", "2")), nil),
		txn(cmps(yes), ops(del("a", clientv3.WithRange("c")), put("b", "2")), nil), txn(cmps(clientv3.Compare(clientv3.Version(""), "=", 0)), nil, nil),
		txn(nil, ops(put("a", "1"), get("a", clientv3.WithRev(1<<40))), nil),
	} {
		tw.same(t, op)
	}

	for i, commit := range []func(clientv3.KV) (*clientv3.TxnResponse, error){
		func(kv clientv3.KV) (*clientv3.TxnResponse, error) { return kv.Txn(t.Context()).Commit() },
		func(kv clientv3.KV) (*clientv3.TxnResponse, error) {
			return kv.Txn(t.Context()).If(no).Then(put("a", "no")).Else(put("a", "9"), get("a")).Commit()
		},
	} {
		want, err := commit(tw.plain)
		if err != nil {
			t.Fatal(err)
		}
		got, err := commit(tw.fenced)
		if err != nil {
			t.Fatal(err)
		}
		ignore := protocmp.IgnoreFields(&pb.ResponseHeader{}, "cluster_id", "member_id", "raft_term")
		if diff := cmp.Diff((*pb.TxnResponse)(want), (*pb.TxnResponse)(got), protocmp.Transform(), ignore); diff != "" {
			t.Errorf("Txn %d: (-without a guard, +with)\n%s", i, diff)
		}
	}
}

// TestAnyAnswerLooksUnfenced tries operations that nobody thought of.
func TestAnyAnswerLooksUnfenced(t *testing.T) {
	tw := newTwins(t)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 8).Draw(rt, "operations") {
			tw.same(rt, tw.op(rt, 3))
		}
	})
}

func (tw *twins) op(t *rapid.T, depth int) clientv3.Op {
	key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
	var opts []clientv3.OpOption
	option := func(o clientv3.OpOption) {
		if rapid.IntRange(0, 3).Draw(t, "option") == 0 {
			opts = append(opts, o)
		}
	}
	kind := rapid.SampledFrom([]string{"get", "put", "put", "delete", "txn"}).Draw(t, "kind")
	switch {
	case kind == "put":
		option(clientv3.WithPrevKV())
		option(clientv3.WithLease(tw.lease))
		option(clientv3.WithIgnoreLease())
		value := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "value")
		if value == "" {
			option(clientv3.WithIgnoreValue())
		}
		return clientv3.OpPut(key, value, opts...)
	case kind == "delete":
		option(clientv3.WithPrevKV())
		option(clientv3.WithRange("c"))
		return clientv3.OpDelete(key, opts...)
	case kind == "txn" && depth > 0:
		return clientv3.OpTxn(tw.compares(t), tw.ops(t, depth-1), tw.ops(t, depth-1))
	}
	option(clientv3.WithRange("d"))
	option(clientv3.WithLimit(1))
	option(clientv3.WithKeysOnly())
	option(clientv3.WithCountOnly())
	option(clientv3.WithRev(tw.base + int64(rapid.IntRange(0, 5).Draw(t, "revision"))))
	option(clientv3.WithMinCreateRev(tw.base + 4))
	option(clientv3.WithSort(rapid.SampledFrom([]clientv3.SortTarget{clientv3.SortByKey, clientv3.SortByVersion, clientv3.SortByModRevision, clientv3.SortByValue}).Draw(t, "target"),
		rapid.SampledFrom([]clientv3.SortOrder{clientv3.SortNone, clientv3.SortAscend, clientv3.SortDescend}).Draw(t, "order")))
	return clientv3.OpGet(key, opts...)
}

func (tw *twins) ops(t *rapid.T, depth int) []clientv3.Op {
	ops := make([]clientv3.Op, rapid.IntRange(0, 3).Draw(t, "length"))
	for i := range ops {
		ops[i] = tw.op(t, depth)
	}
	return ops
}

func (tw *twins) compares(t *rapid.T) []clientv3.Cmp {
	compares := make([]clientv3.Cmp, rapid.IntRange(0, 2).Draw(t, "compares"))
	for i := range compares {
		key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "compared")
		result := rapid.SampledFrom([]string{"=", "!=", "<", ">"}).Draw(t, "result")
		compares[i] = rapid.SampledFrom([]clientv3.Cmp{
			clientv3.Compare(clientv3.Value(key), result, "1"),
			clientv3.Compare(clientv3.Version(key), result, 1),
			clientv3.Compare(clientv3.ModRevision(key), result, tw.base+5),
			clientv3.Compare(clientv3.CreateRevision(key).WithPrefix(), result, 0),
			clientv3.Compare(clientv3.LeaseValue(key), result, tw.lease),
		}).Draw(t, "compare")
	}
	return compares
}
