package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// unsupported also wants a call that had no effect.
func unsupported(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) && resourceguard.OutcomeOf(err) == resourceguard.NotApplied
}

// wantStale checks the refusal in all its parts.
func wantStale(t *testing.T, err error, want resourceguard.StaleError) {
	t.Helper()
	stale, ok := errors.AsType[*resourceguard.StaleError](err)
	if !ok {
		t.Errorf("got %v, want a StaleError", err)
		return
	}
	if *stale != want {
		t.Errorf("got %+v, want %+v", *stale, want)
	}
	if o := resourceguard.OutcomeOf(err); o != resourceguard.NotApplied {
		t.Errorf("outcome %v, want not applied", o)
	}
}

// every is each kind of operation on "data", with its resource.
var every = []struct {
	name string
	do   func(context.Context, clientv3.KV) error
}{
	{"Put", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Put(ctx, "data", "5")
		return err
	}},
	{"Delete", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Delete(ctx, "data")
		return err
	}},
	{"Get", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Get(ctx, "data")
		return err
	}},
	{"Do put", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Do(ctx, clientv3.OpPut("data", "5"))
		return err
	}},
	{"Do txn", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("data", "5")}, nil))
		return err
	}},
	{"Txn", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Txn(ctx).Then(clientv3.OpGet("other"), clientv3.OpPut("data", "5")).Commit()
		return err
	}},
	{"Txn of reads", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Txn(ctx).Then(clientv3.OpGet("data"), clientv3.OpGet("other")).Commit()
		return err
	}},
	{"Txn with true compare", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("data"), "=", "8")).
			Then(clientv3.OpPut("data", "5")).Else(clientv3.OpGet("other")).Commit()
		return err
	}},
	{"Txn with false compare", func(ctx context.Context, kv clientv3.KV) error {
		_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("data"), "=", "7")).
			Then(clientv3.OpGet("other")).Else(clientv3.OpPut("data", "5")).Commit()
		return err
	}},
}

func TestRefusedFromTheMomentTheGrantEnds(t *testing.T) {
	ends := map[string]func(t *testing.T, s *setup, g grant){
		"lease revoked": func(t *testing.T, s *setup, g grant) { s.etcd.Expire(t, g) },
		"key deleted": func(t *testing.T, s *setup, g grant) {
			if _, err := s.truth.Delete(t.Context(), g.key); err != nil {
				t.Fatal(err)
			}
		},
		"key deleted and put again": func(t *testing.T, s *setup, g grant) {
			if _, err := s.truth.Delete(t.Context(), g.key); err != nil {
				t.Fatal(err)
			}
			s.put(t, g.key, "")
		},
	}
	for how, end := range ends {
		for _, successor := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, successor %v", how, successor), func(t *testing.T) {
				s := start(t, nil)
				s.put(t, "data", "8")
				g := acquire(t, s.truth, "orders/42")
				kv := fenced(t, s.guard, g)
				if _, err := kv.Put(t.Context(), "data", "8"); err != nil {
					t.Fatal(err)
				}
				var owner revisionfence.Token
				if successor && how != "key deleted and put again" {
					owner = acquire(t, s.truth, "orders/42").token
				}
				end(t, s, g)
				if how == "key deleted and put again" {
					resp, err := s.truth.Get(t.Context(), g.key)
					if err != nil {
						t.Fatal(err)
					}
					owner, _ = revisionfence.FromKey("orders/42", 0, resp.Kvs[0])
				}
				for _, op := range every {
					t.Run(op.name, func(t *testing.T) {
						wantStale(t, op.do(t.Context(), kv), resourceguard.StaleError{
							Resource: "data", Presented: g.token, Accepted: owner,
						})
						s.wantValue(t, "data", "8")
					})
				}
			})
		}
	}
}

// TestEmptyTxnAsksEtcd: without operations a member answers from what it has, so
// that a transaction of the ownership compare alone proves nothing.
func TestEmptyTxnAsksEtcd(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	yes := clientv3.Compare(clientv3.CreateRevision("data"), "=", 0)
	no := clientv3.Compare(clientv3.CreateRevision("data"), "=", 7)
	for name, test := range map[string]struct {
		txn  func() clientv3.Txn
		want bool
	}{
		"nothing":       {func() clientv3.Txn { return kv.Txn(t.Context()) }, true},
		"true compare":  {func() clientv3.Txn { return kv.Txn(t.Context()).If(yes) }, true},
		"false compare": {func() clientv3.Txn { return kv.Txn(t.Context()).If(no) }, false},
	} {
		resp, err := test.txn().Commit()
		if err != nil || resp.Succeeded != test.want || len(resp.Responses) != 0 {
			t.Errorf("%s: %v, %v, want %v and no responses", name, resp, err, test.want)
		}
	}
	s.wire.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if isLocal(call.Request) {
			t.Errorf("a member may answer this without asking its peers: %v", call.Request)
		}
		return call.Send(ctx)
	})
	if _, err := kv.Txn(t.Context()).Commit(); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, g)
	_, err := kv.Txn(t.Context()).If(yes).Commit()
	wantStale(t, err, resourceguard.StaleError{Presented: g.token})
	_, err = kv.Txn(t.Context()).Commit()
	wantStale(t, err, resourceguard.StaleError{Presented: g.token})
}

// TestLateRequest is a writer that is paused with its request ready: neither a
// check before nor a deadline at the client could stop it.
func TestLateRequest(t *testing.T) {
	s := start(t, nil)
	a := acquire(t, s.truth, "l")
	late := fenced(t, s.guard, a)
	held := s.wire.Hold("Txn")
	done := make(chan error, 1)
	go func() {
		_, err := late.Put(t.Context(), "stock", "5")
		done <- err
	}()
	<-held.Arrived()
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	if _, err := fenced(t, newGuard(t, s.truth, nil), b).Put(t.Context(), "stock", "8"); err != nil {
		t.Fatal(err)
	}
	held.Release()
	wantStale(t, <-done, resourceguard.StaleError{Resource: "stock", Presented: a.token, Accepted: b.token})
	s.wantValue(t, "stock", "8")
}

// TestCopyArrivesAfterTheGrant: the client was told "unknown", and was right not
// to be told anything better.
func TestCopyArrivesAfterTheGrant(t *testing.T) {
	s := start(t, nil)
	a := acquire(t, s.truth, "l")
	lost := s.wire.Postpone("Txn")
	_, err := fenced(t, s.guard, a).Put(t.Context(), "stock", "5")
	if o := resourceguard.OutcomeOf(err); err == nil || o != resourceguard.Unknown {
		t.Errorf("lost request: %v with outcome %v, want unknown", err, o)
	}
	s.etcd.Expire(t, a)
	s.put(t, "stock", "8")
	if _, err := lost.Send(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "stock", "8")
}

func TestSentOnce(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable} {
		s := start(t, nil)
		kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
		s.wire.DropReply("Txn", 2, wire.Code(code))
		_, err := kv.Put(t.Context(), "k", "v")
		if o := resourceguard.OutcomeOf(err); err == nil || o != resourceguard.Unknown || status.Code(err) != code {
			t.Errorf("%v: %v with outcome %v, want unknown", code, err, o)
		}
		if n := s.wire.Calls("Txn"); n != 1 {
			t.Errorf("%v: sent %d times", code, n)
		}
	}
}

// TestReadsAreRepeated: a Get survives a change of leader, as it does without a
// guard.
func TestReadsAreRepeated(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	s.wire.DropReply("Txn", 2)
	if _, err := kv.Get(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if n := s.wire.Calls("Txn"); n != 3 {
		t.Errorf("sent %d times, want 3", n)
	}
	s.wire.DropReply("Txn", 2)
	if err := s.guard.Advance(t.Context(), "k", g.token); err != nil {
		t.Error(err)
	}

	s.wire.FailBefore("Txn", 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := kv.Get(ctx, "k")
	if o := resourceguard.OutcomeOf(err); err == nil || o != resourceguard.NotApplied {
		t.Errorf("a read that failed: %v with outcome %v: it cannot have changed anything", err, o)
	}
}

func TestOutcomes(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	for name, op := range map[string]clientv3.Op{
		"no such lease": clientv3.OpPut("k", "v", clientv3.WithLease(0x1234)),
		"empty key":     clientv3.OpPut("", "v"),
		"too large":     clientv3.OpPut("k", strings.Repeat("x", 1800<<10)),
		"far too large": clientv3.OpPut("k", strings.Repeat("x", 3<<20)),
	} {
		_, err := kv.Do(t.Context(), op)
		if o := resourceguard.OutcomeOf(err); err == nil || o != resourceguard.NotApplied {
			t.Errorf("%s: %v with outcome %v, want not applied", name, err, o)
		}
	}

	// A client without a connection. One that had one sends on it until it notices.
	s.etcd.Stop(t)
	kv = fenced(t, newGuard(t, s.etcd.NewClient(t), nil), g)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := kv.Put(ctx, "k", "v")
	if o := resourceguard.OutcomeOf(err); !errors.Is(err, context.DeadlineExceeded) || o != resourceguard.NotApplied {
		t.Errorf("etcd is stopped: %v with outcome %v, want a time-out and not applied: nothing can have been sent", err, o)
	}
}

// TestEveryCallIsBounded: etcd has the request and is silent.
func TestEveryCallIsBounded(t *testing.T) {
	s := start(t, &etcdguard.Options{Timeout: 50 * time.Millisecond})
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	s.wire.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if err := call.Send(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	for _, op := range every {
		err := op.do(context.Background(), kv) // on purpose: the caller sets no bound
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Options.Timeout") {
			t.Errorf("%s: %v, want the end of Options.Timeout", op.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := kv.Put(ctx, "k", "v")
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "Options.Timeout") {
		t.Errorf("the caller's own deadline: %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	s := start(t, nil)
	a := acquire(t, s.truth, "l")
	b := acquire(t, s.truth, "l") // waits
	kv := fenced(t, s.guard, a)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := fmt.Sprintf("k%d", i)
			for n := 0; ; n++ {
				_, err := kv.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key), "=", n)).
					Then(clientv3.OpPut(key, "a")).Commit()
				if errors.Is(err, resourceguard.ErrStale) {
					if n == 0 {
						t.Errorf("%s: never written", key)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n == 20 && i == 0 {
					s.etcd.Expire(t, a)
				}
			}
		})
	}
	wg.Wait()
	resp, err := s.truth.Get(t.Context(), "k", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fenced(t, s.guard, b).Put(t.Context(), "b", ""); err != nil {
		t.Fatal(err)
	}
	again, err := s.truth.Get(t.Context(), "k", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for i, kv := range again.Kvs {
		if kv.ModRevision != resp.Kvs[i].ModRevision {
			t.Errorf("%s was written after the successor", kv.Key)
		}
	}
}

func TestSeveralGrants(t *testing.T) {
	s := start(t, nil)
	for end := range 3 {
		gs := grants{acquire(t, s.truth, "a"), acquire(t, s.truth, "a/b"), acquire(t, s.truth, "é")}
		kv := fenced(t, s.guard, gs)
		if _, err := kv.Put(t.Context(), "data", "7"); err != nil {
			t.Fatal(err)
		}
		s.etcd.Expire(t, gs[end])
		next := acquire(t, s.truth, gs[end].token.Lock())
		for _, op := range every {
			t.Run(fmt.Sprintf("%d/%s", end, op.name), func(t *testing.T) {
				wantStale(t, op.do(t.Context(), kv), resourceguard.StaleError{
					Resource: "data", Presented: gs[end].token, Accepted: next.token,
				})
				s.wantValue(t, "data", "7")
			})
		}
		for _, g := range append(gs, next) {
			s.etcd.Expire(t, g)
		}
	}
}

// TestOtherCluster: the fence is asked for where it does not exist.
func TestOtherCluster(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, embedded.Start(t, nil).Client(), "l")
	_, err := fenced(t, s.guard, g).Put(t.Context(), "data", "5")
	wantStale(t, err, resourceguard.StaleError{Resource: "data", Presented: g.token})
	if _, exists := s.value(t, "data"); exists {
		t.Error("written under a grant of another cluster")
	}
}

func TestAdvance(t *testing.T) {
	s := start(t, nil)
	token := func(lock string, epoch uint16, revision int64) revisionfence.Token {
		tok, err := revisionfence.New(lock, epoch, revision)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	a := acquire(t, s.truth, "l")
	b := acquire(t, s.truth, "l")
	ctx := t.Context()
	if err := s.guard.Advance(ctx, "data", a.token); err != nil {
		t.Errorf("owner: %v", err)
	}
	wantStale(t, s.guard.Advance(ctx, "data", b.token), resourceguard.StaleError{Resource: "data", Presented: b.token, Accepted: a.token})
	s.etcd.Expire(t, a)
	wantStale(t, s.guard.Advance(ctx, "data", a.token), resourceguard.StaleError{Resource: "data", Presented: a.token, Accepted: b.token})
	if err := s.guard.Advance(ctx, "data", b.token); err != nil {
		t.Errorf("next owner: %v", err)
	}
	for _, forged := range []revisionfence.Token{token("l", 0, b.token.Revision()+1000), token("l", 1, b.token.Revision())} {
		if err := s.guard.Advance(ctx, "data", forged); !errors.Is(err, resourceguard.ErrImplausible) {
			t.Errorf("%s: %v, want %v", forged, err, resourceguard.ErrImplausible)
		}
	}
	if err := s.guard.Advance(ctx, "data", revisionfence.Token{}); !errors.Is(err, resourceguard.ErrNoToken) {
		t.Errorf("zero token: %v", err)
	}

	// After a recovery revisions may repeat; the epoch tells the tokens apart.
	s.put(t, etcdguard.DefaultPrefix+"epoch", `{"format":1,"epoch":3,"new":"ignored"}`)
	newer := token("l", 3, b.token.Revision())
	wantStale(t, s.guard.Advance(ctx, "data", b.token), resourceguard.StaleError{Resource: "data", Presented: b.token, Accepted: newer})
	if err := s.guard.Advance(ctx, "data", newer); err != nil {
		t.Errorf("owner in epoch 3: %v", err)
	}
	for _, record := range []string{"", "{}", `{"format":2,"epoch":3}`, `{"format":1,"epoch":40000}`} {
		s.put(t, etcdguard.DefaultPrefix+"epoch", record)
		err := s.guard.Advance(ctx, "data", newer)
		if !errors.Is(err, etcdguard.ErrFormat) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("epoch record %q: %v", record, err)
		}
		_, err = fenced(t, s.guard, a).Put(ctx, "data", "5")
		if !errors.Is(err, resourceguard.ErrStale) {
			t.Errorf("epoch record %q: %v, want the refusal all the same", record, err)
		}
	}
}

// TestAcceptedNamesTheEpoch: the owner's token is of the epoch on record.
func TestAcceptedNamesTheEpoch(t *testing.T) {
	s := start(t, nil)
	s.put(t, etcdguard.DefaultPrefix+"epoch", `{"format":1,"epoch":2}`)
	old, owner := acquire(t, s.truth, "l"), acquire(t, s.truth, "l")
	s.etcd.Expire(t, old)
	want, err := revisionfence.New("l", 2, owner.token.Revision())
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range every {
		wantStale(t, op.do(t.Context(), fenced(t, s.guard, old)), resourceguard.StaleError{Resource: "data", Presented: old.token, Accepted: want})
	}
}
