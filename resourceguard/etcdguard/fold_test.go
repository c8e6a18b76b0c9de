package etcdguard_test

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
)

// TestAsManyResourcesAsOperations: each operation may be of a resource of its own, when
// the marks have to be raised, when they are the caller's, and when they are and the
// guard does not know.
func TestAsManyResourcesAsOperations(t *testing.T) {
	own := func(key string) (string, error) { return key, nil }
	lock := func(string) (string, error) { return "l", nil }
	compare := clientv3.Compare(clientv3.Version("never"), "=", 0)
	for _, test := range []struct {
		name   string
		policy resourceguard.Policy
		txn    func(txn clientv3.Txn, n int) clientv3.Txn
		most   int
	}{
		{"flat", resourceguard.AcceptEqual, func(txn clientv3.Txn, n int) clientv3.Txn { return txn.Then(puts(n)...) }, 128},
		{"with compares", resourceguard.AcceptEqual, func(txn clientv3.Txn, n int) clientv3.Txn { return txn.If(compare).Then(puts(n)...) }, 64},
		{"one write", resourceguard.RejectEqual, func(txn clientv3.Txn, n int) clientv3.Txn { return txn.Then(puts(n)...) }, 42},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := &etcdguard.Options{Mode: etcdguard.HighWater, Policy: test.policy, Resource: own, LockOf: lock}
			s := start(t, opts)
			g := acquire(t, s.truth, "l")
			commit := func(guard *etcdguard.Guard, g grant, n int) error {
				_, err := test.txn(fenced(t, guard, g).Txn(t.Context()), n).Commit()
				return err
			}
			if err := commit(s.guard, g, test.most+1); !errors.Is(err, rpctypes.ErrTooManyOps) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
				t.Errorf("%d resources: %v, want %v", test.most+1, err, rpctypes.ErrTooManyOps)
			}
			if err := commit(s.guard, g, test.most); err != nil {
				t.Fatalf("%d resources, raising: %v", test.most, err)
			}
			if test.policy == resourceguard.RejectEqual {
				return
			}
			for name, guard := range map[string]*etcdguard.Guard{"knowing": s.guard, "not knowing": newGuard(t, s.client, opts)} {
				if err := commit(guard, g, test.most); err != nil {
					t.Errorf("%d resources, %s the marks: %v", test.most, name, err)
				}
			}
			s.etcd.Expire(t, g)
			next := acquire(t, s.truth, "l")
			last := string(puts(test.most)[test.most-1].KeyBytes())
			if _, err := fenced(t, s.guard, next).Put(t.Context(), last, "new"); err != nil {
				t.Fatal(err)
			}
			wantStale(t, commit(newGuard(t, s.client, opts), g, test.most), resourceguard.StaleError{
				Resource: last, Presented: g.token, Accepted: next.token,
			})
		})
	}
}

// TestAsManyGrantsAsAFenceTakes, each with a mark to raise.
func TestAsManyGrantsAsAFenceTakes(t *testing.T) {
	s := start(t, highWater)
	var gs grants
	for i := range 64 {
		gs = append(gs, acquire(t, s.truth, fmt.Sprintf("l%02d", i)))
	}
	for range 2 {
		if _, err := fenced(t, s.guard, gs).Put(t.Context(), "data", "7"); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range gs {
		s.wantMarkText(t, g.token.Lock(), g.text())
	}
}
