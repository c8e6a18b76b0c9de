package etcdguard_test

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

func puts(n int) []clientv3.Op {
	ops := make([]clientv3.Op, n)
	for i := range ops {
		ops[i] = clientv3.OpPut(fmt.Sprintf("k%03d", i), "v")
	}
	return ops
}

// TestOperationLimits: etcd allows 128. Beside compares of the program's own the
// fence takes one for each grant.
func TestOperationLimits(t *testing.T) {
	s := start(t, nil)
	one := acquire(t, s.truth, "l")
	var all grants
	for i := range 64 {
		all = append(all, acquire(t, s.truth, fmt.Sprintf("lock %d", i)))
	}
	compare := clientv3.Compare(clientv3.Version("never"), "=", 0)
	single, several := fenced(t, s.guard, one), fenced(t, s.guard, all)
	for _, test := range []struct {
		name string
		kv   clientv3.KV
		txn  func(clientv3.Txn) clientv3.Txn
		ok   bool
	}{
		{"128 flat", single, func(txn clientv3.Txn) clientv3.Txn { return txn.Then(puts(128)...) }, true},
		{"129 flat", single, func(txn clientv3.Txn) clientv3.Txn { return txn.Then(puts(129)...) }, false},
		{"127 with compares", single, func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(127)...) }, true},
		{"128 with compares", single, func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(128)...) }, false},
		{"127 in both branches", single, func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(127)...).Else(puts(127)...) }, true},
		{"nested once more", single, func(txn clientv3.Txn) clientv3.Txn { return txn.Then(clientv3.OpTxn(nil, puts(127), nil)) }, true},
		{"64 grants, 128 flat", several, func(txn clientv3.Txn) clientv3.Txn { return txn.Then(puts(128)...) }, true},
		{"64 grants, 64 with compares", several, func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(64)...) }, true},
		{"64 grants, 65 with compares", several, func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(65)...) }, false},
	} {
		_, err := test.txn(test.kv.Txn(t.Context())).Commit()
		if test.ok && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if !test.ok && (!errors.Is(err, rpctypes.ErrTooManyOps) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied) {
			t.Errorf("%s: %v, want %v", test.name, err, rpctypes.ErrTooManyOps)
		}
	}
	last := all[63]
	s.etcd.Expire(t, last)
	for name, err := range map[string]error{
		"write": func() error { _, err := several.Txn(t.Context()).If(compare).Then(puts(64)...).Commit(); return err }(),
		"read":  func() error { _, err := several.Get(t.Context(), "k000"); return err }(),
	} {
		if stale, ok := errors.AsType[*resourceguard.StaleError](err); !ok || stale.Presented != last.token {
			t.Errorf("%s after the last of 64 grants has ended: %v", name, err)
		}
	}
}

// raftIndex is how many entries the log of a single member has.
func (s *setup) raftIndex(t *testing.T) uint64 {
	t.Helper()
	status, err := s.truth.Status(t.Context(), s.etcd.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	return status.RaftIndex
}

func TestCosts(t *testing.T) {
	s := start(t, nil)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	a, b := clientv3.Compare(clientv3.Version("a"), ">", 0), clientv3.OpPut("b", "")
	for _, test := range []struct {
		name      string
		do        func() error
		proposals int
	}{
		{"put", func() error { _, err := kv.Put(t.Context(), "a", "1"); return err }, 1},
		{"delete", func() error { _, err := kv.Delete(t.Context(), "a"); return err }, 1},
		{"get", func() error { _, err := kv.Get(t.Context(), "a"); return err }, 0},
		{"txn", func() error { _, err := kv.Txn(t.Context()).Then(b).Commit(); return err }, 1},
		{"txn with compares", func() error { _, err := kv.Txn(t.Context()).If(a).Then(b).Else(b).Commit(); return err }, 1},
		{"txn of reads", func() error { _, err := kv.Txn(t.Context()).Then(clientv3.OpGet("a")).Commit(); return err }, 0},
		{"empty txn", func() error { _, err := kv.Txn(t.Context()).Commit(); return err }, 0},
	} {
		const n = 20
		// The member writes entries of its own while it starts, so that a count can
		// be too large, but never too small.
		for attempt := 0; ; attempt++ {
			s.wire.Reset()
			before := s.raftIndex(t)
			for range n {
				if err := test.do(); err != nil {
					t.Fatalf("%s: %v", test.name, err)
				}
			}
			proposals, calls := int(s.raftIndex(t)-before), s.wire.Calls("")
			if calls != n {
				t.Errorf("%s: %d requests for %d", test.name, calls, n)
			}
			if proposals == test.proposals*n {
				break
			}
			if attempt == 5 || proposals < test.proposals*n {
				t.Errorf("%s: %d proposals for %d", test.name, proposals, n)
				break
			}
		}
	}
	if _, err := s.guard.KV(acquire(t, s.truth, "m")); err != nil {
		t.Fatal(err)
	}
}

// TestNamespaceGoesAround: the data is in it, and the lock is not.
func TestNamespaceGoesAround(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := namespace.NewKV(fenced(t, s.guard, g), "app/")
	ctx := t.Context()
	if _, err := kv.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "app/k", "v")
	resp, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("k"), "=", "v")).Then(clientv3.OpPut("k", "w", clientv3.WithPrevKV())).Commit()
	if err != nil || !resp.Succeeded || string(resp.Responses[0].GetResponsePut().PrevKv.Key) != "k" {
		t.Errorf("%v, %v", resp, err)
	}
	got, err := kv.Get(ctx, "", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Key) != "k" || string(got.Kvs[0].Value) != "w" {
		t.Errorf("%v, %v", got, err)
	}
	s.etcd.Expire(t, g)
	_, err = kv.Put(ctx, "k", "late")
	wantStale(t, err, resourceguard.StaleError{Resource: "app/k", Presented: g.token})
}

// TestReplacedClientKV: a library that takes a whole client is fenced through it.
func TestReplacedClientKV(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	s.client.KV = fenced(t, s.guard, g)
	increment := func() error {
		_, err := concurrency.NewSTM(s.client, func(stm concurrency.STM) error {
			stm.Put("sum", stm.Get("a")+stm.Get("b")+"x")
			return nil
		})
		return err
	}
	s.put(t, "a", "1")
	s.put(t, "b", "2")
	if err := increment(); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "sum", "12x")
	s.etcd.Expire(t, g)
	s.put(t, "a", "5")
	wantStale(t, increment(), resourceguard.StaleError{Resource: "a", Presented: g.token})
	s.wantValue(t, "sum", "12x")

	// The guard goes by the connection, so the next grant needs no other client.
	next := acquire(t, s.truth, "l")
	s.client.KV = fenced(t, s.guard, next)
	if err := increment(); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "sum", "52x")
}

// TestNamesInDirectories: a lock's name has any byte, and its directory is found
// whether the grant names it or not.
func TestNamesInDirectories(t *testing.T) {
	s := start(t, nil)
	for _, lock := range []string{"a", "a/", "a/b", "/", "%", "%2F", "a b", "é", "e\u0301", "?#&=+", ".", ".."} {
		g := acquire(t, s.truth, lock)
		for _, kv := range []clientv3.KV{fenced(t, s.guard, g), fenced(t, s.guard, grants{g})} {
			if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
				t.Errorf("%q: %v", lock, err)
			}
		}
		s.etcd.Expire(t, g)
		_, err := fenced(t, s.guard, grants{g}).Put(t.Context(), "k", "v")
		wantStale(t, err, resourceguard.StaleError{Resource: "k", Presented: g.token})
	}
}
