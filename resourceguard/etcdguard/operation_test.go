package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func withOperation(ctx context.Context, id string, digest ...byte) context.Context {
	return resourceguard.WithOperation(ctx, resourceguard.Operation{ID: id, Digest: digest})
}

// TestOperationIsAppliedOnce counts with etcd's own version of the key: whatever
// becomes of the requests and answers, each operation puts it once.
func TestOperationIsAppliedOnce(t *testing.T) {
	s := start(t, highWater)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	isWrite := wire.When(func(c *wire.Call) bool { return carries(c, "data") })
	faults := []func(){
		func() { s.wire.DropReply("Txn", 1, isWrite) },
		func() { s.wire.DropReply("Txn", 2, isWrite) },
		func() { s.wire.FailBefore("Txn", 1, isWrite) },
		func() { s.wire.SendTwice("Txn", 1, isWrite) },
		func() { s.wire.DropReply("Txn", 1, isWrite, wire.Code(codes.DeadlineExceeded)) },
		func() { s.wire.DropReply("Txn", 1, isWrite); s.wire.SendTwice("Txn", 1, isWrite) },
		func() {},
	}
	const n = 300
	for i := range n {
		ctx := withOperation(t.Context(), fmt.Sprintf("op %d", i))
		faults[i%len(faults)]()
		for attempt := 0; ; attempt++ {
			var err error
			if i%2 == 0 {
				_, err = kv.Put(ctx, "data", strconv.Itoa(i))
			} else {
				_, err = kv.Txn(ctx).If(clientv3.Compare(clientv3.Version("data"), ">", -1)).Then(clientv3.OpPut("data", strconv.Itoa(i))).Commit()
			}
			if err == nil {
				break
			}
			if resourceguard.OutcomeOf(err) != resourceguard.Unknown || attempt > 5 {
				t.Fatalf("operation %d: %v", i, err)
			}
		}
	}
	resp, err := s.truth.Get(t.Context(), "data")
	if err != nil || resp.Kvs[0].Version != n {
		t.Errorf("%d operations changed the key %d times (%v)", n, resp.Kvs[0].Version, err)
	}
}

// TestLateCopyOfAnOperation: the request that was given up arrives after its
// repetition, once more and under whatever mark.
func TestLateCopyOfAnOperation(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	a := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, a)
	if _, err := kv.Put(ctx, "stock", "0"); err != nil {
		t.Fatal(err)
	}
	late := s.wire.Postpone("Txn")
	op := withOperation(ctx, "op")
	if _, err := kv.Put(op, "stock", "7"); resourceguard.OutcomeOf(err) != resourceguard.Unknown {
		t.Fatalf("lost request: %v", err)
	}
	if _, err := kv.Put(op, "stock", "7"); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(ctx, "stock", "8"); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Send(ctx); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "stock", "8")
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	if _, err := fenced(t, s.guard, b).Put(ctx, "stock", "9"); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Send(ctx); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "stock", "9")
}

// TestReplayedAnswers have revision, branch and shape.
func TestReplayedAnswers(t *testing.T) {
	s := start(t, highWater)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	s.put(t, "data", "7")
	yes, no := clientv3.Compare(clientv3.Value("data"), "=", "7"), clientv3.Compare(clientv3.Value("data"), "=", "x")
	branches := func(compare clientv3.Cmp) clientv3.Op {
		return clientv3.OpTxn([]clientv3.Cmp{compare},
			[]clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpGet("data"), clientv3.OpDelete("b")}, []clientv3.Op{clientv3.OpPut("b", "1")})
	}
	for id, op := range map[string]clientv3.Op{
		"put": clientv3.OpPut("a", "0"), "delete": clientv3.OpDelete("a"),
		"then": branches(yes), "else": branches(no),
		"flat": clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", "2"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("c", "")}, nil)}, nil),
	} {
		ctx := withOperation(t.Context(), id)
		first, err := kv.Do(ctx, op)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		before, _ := s.value(t, "a")
		again, err := kv.Do(ctx, op)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		s.wantValue(t, "a", before)
		switch {
		case op.IsPut():
			if again.Put().Header.Revision != first.Put().Header.Revision {
				t.Errorf("%s: %v, want the revision of %v", id, again.Put(), first.Put())
			}
		case op.IsDelete():
			if again.Del().Header.Revision != first.Del().Header.Revision {
				t.Errorf("%s: %v, want the revision of %v", id, again.Del(), first.Del())
			}
		default:
			want, got := first.Txn(), again.Txn()
			if got.Header.Revision != want.Header.Revision || got.Succeeded != want.Succeeded || len(got.Responses) != len(want.Responses) {
				t.Errorf("%s: %v, want revision, branch and shape of %v", id, got, want)
				continue
			}
			for i, r := range want.Responses {
				if fmt.Sprintf("%T", got.Responses[i].Response) != fmt.Sprintf("%T", r.Response) {
					t.Errorf("%s: response %d is a %T, want a %T", id, i, got.Responses[i].Response, r.Response)
				}
			}
		}
	}
	if _, err := kv.Get(withOperation(t.Context(), "put"), "a"); err != nil {
		t.Errorf("a read is no operation: %v", err)
	}
	_, err := kv.Put(withOperation(t.Context(), "put", 1), "a", "5")
	wantRefused(t, "another digest", err, resourceguard.ErrOperationReused)
	_, err = kv.Put(withOperation(t.Context(), "a\nb"), "a", "5")
	wantRefused(t, "a bad ID", err, resourceguard.ErrInvalid)
	_, err = kv.Put(withOperation(t.Context(), "", 1), "a", "5")
	wantRefused(t, "a digest without an ID", err, resourceguard.ErrInvalid)
}

// TestResultOfDo names the revision, where the effect can be read as long as etcd
// keeps it.
func TestResultOfDo(t *testing.T) {
	s := start(t, highWater)
	g := acquire(t, s.truth, "l")
	w := resourceguard.Write{Resource: "l", Token: g.token, Owner: g.owner(), Operation: resourceguard.Operation{ID: "op"}}
	first, resp, err := s.guard.Do(t.Context(), w, clientv3.OpPut("data", "7"))
	if err != nil || string(first.Value) != strconv.FormatInt(resp.Header.Revision, 10) {
		t.Fatalf("%+v, %v, %v", first, resp, err)
	}
	again, _, err := s.guard.Do(t.Context(), w, clientv3.OpPut("data", "7"))
	if err != nil || !again.Replayed || string(again.Value) != string(first.Value) || again.Mark != g.token {
		t.Errorf("%+v, %v, want %+v replayed", again, err, first)
	}
}

// TestOperationsOutliveTheirGrant: their record is on no lease, since a repetition
// under the next token would else be applied again.
func TestOperationsOutliveTheirGrant(t *testing.T) {
	s := start(t, highWater)
	a := acquire(t, s.truth, "l")
	ctx := withOperation(t.Context(), "op")
	if _, err := fenced(t, s.guard, a).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, a)
	resp, err := s.truth.Get(t.Context(), etcdguard.DefaultPrefix+"ops/l/op")
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease != 0 {
		t.Fatalf("%v, %v", resp, err)
	}
	b := acquire(t, s.truth, "l")
	if _, err := fenced(t, s.guard, b).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	data, err := s.truth.Get(t.Context(), "data")
	if err != nil || data.Kvs[0].Version != 1 {
		t.Errorf("applied again under the next token: %v, %v", data, err)
	}
	_, err = fenced(t, s.guard, a).Put(ctx, "data", "7")
	stale, ok := errors.AsType[*resourceguard.StaleError](err)
	if !ok || stale.Applied == nil || stale.Applied.Mark != a.token || stale.Accepted != b.token || !strings.Contains(err.Error(), "had been applied before") {
		t.Errorf("the old owner repeats: %v", err)
	}

	// Also where it is the lock that refuses.
	s.etcd.Expire(t, b)
	if _, err := s.truth.Delete(t.Context(), markKey("l")); err != nil {
		t.Fatal(err)
	}
	_, err = fenced(t, s.guard, a).Put(ctx, "data", "7")
	stale, ok = errors.AsType[*resourceguard.StaleError](err)
	if !ok || stale.Applied == nil || !strings.Contains(err.Error(), "had been applied before") {
		t.Errorf("the old owner repeats where no mark is: %v", err)
	}
}

// TestUnreadableOperationRefuses: a record of a later version is not "never applied".
func TestUnreadableOperationRefuses(t *testing.T) {
	s := start(t, highWater)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	for _, warm := range []bool{false, true} {
		for i, record := range []string{"", "{}", `{"format":2,"token":"1@l"}`, `{"format":1}`} {
			id := fmt.Sprintf("op %v %d", warm, i)
			s.put(t, etcdguard.DefaultPrefix+"ops/l/"+strings.ReplaceAll(id, " ", "%20"), record)
			_, err := kv.Put(withOperation(t.Context(), id), "data", "5")
			wantRefused(t, fmt.Sprintf("record %q", record), err, etcdguard.ErrFormat)
		}
		if _, err := kv.Put(t.Context(), "data", "7"); err != nil {
			t.Fatal(err)
		}
	}
	s.wantValue(t, "data", "7")
}

// ops counts the records of operations.
func (s *setup) ops(t *testing.T, resource string) int64 {
	t.Helper()
	resp, err := s.truth.Get(t.Context(), etcdguard.DefaultPrefix+"ops/"+resource+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return resp.Count
}

// TestOldOperationsArePruned, by their age, a page at a time, and never those of the
// mark's own token.
func TestOldOperationsArePruned(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	operate := func(guard *etcdguard.Guard, g grant, n int) {
		t.Helper()
		for i := range n {
			if _, err := fenced(t, guard, g).Put(withOperation(ctx, fmt.Sprintf("%s %d", g.token, i)), "data", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	a := acquire(t, s.truth, "l")
	operate(s.guard, a, 100)
	s.put(t, etcdguard.DefaultPrefix+"ops/l/unreadable", "?")
	brief := newGuard(t, s.client, &etcdguard.Options{Mode: etcdguard.HighWater, KeepOperations: time.Nanosecond})
	operate(brief, a, 0)
	m := acquire(t, s.truth, "m")
	operate(brief, m, 64)
	if n := s.ops(t, "l"); n != 101 {
		t.Errorf("%d records, want 101: those of the mark's token stay", n)
	}
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	operate(s.guard, b, 32)
	if n := s.ops(t, "l"); n != 133 {
		t.Errorf("%d records, want 133: none is old enough", n)
	}
	operate(brief, m, 0)
	next := grant{key: m.key, token: m.token}
	for i := range 96 { // three pages
		if _, err := fenced(t, brief, next).Put(withOperation(ctx, fmt.Sprintf("more %d", i)), "data", ""); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.ops(t, "l"); n != 33 {
		t.Errorf("%d records, want 33: the present token's, and the unreadable one", n)
	}
	if n := s.ops(t, "m"); n != 64+96 {
		t.Errorf("%d records of the other resource, want 160", n)
	}
}

// TestPruningFailsQuietly: the operation has been applied.
func TestPruningFailsQuietly(t *testing.T) {
	s := start(t, &etcdguard.Options{Mode: etcdguard.HighWater, KeepOperations: time.Nanosecond})
	a := acquire(t, s.truth, "l")
	s.wire.FailBefore("Range", 0, wire.Code(codes.PermissionDenied), wire.When(func(c *wire.Call) bool {
		r, ok := c.Request.(*pb.RangeRequest)
		return ok && strings.Contains(string(r.Key), "/ops/")
	}))
	for i := range 40 {
		if _, err := fenced(t, s.guard, a).Put(withOperation(t.Context(), strconv.Itoa(i)), "data", ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOperationInACrowd: attempts at the same time in several processes.
func TestOperationInACrowd(t *testing.T) {
	s := start(t, highWater)
	g := acquire(t, s.truth, "l")
	for round := range 20 {
		var wg sync.WaitGroup
		for range 6 {
			guard := newGuard(t, s.client, highWater)
			wg.Go(func() {
				if _, err := fenced(t, guard, g).Put(withOperation(t.Context(), strconv.Itoa(round)), "data", ""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	resp, err := s.truth.Get(t.Context(), "data")
	if err != nil || resp.Kvs[0].Version != 20 {
		t.Errorf("20 operations, %v, %v", resp, err)
	}
}
