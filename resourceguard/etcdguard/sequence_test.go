package etcdguard_test

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

func inBothModes(t *testing.T, f func(t *testing.T, opts *etcdguard.Options)) {
	t.Helper()
	for _, mode := range []etcdguard.Mode{etcdguard.Held, etcdguard.HighWater} {
		t.Run(mode.String(), func(t *testing.T) { f(t, &etcdguard.Options{Mode: mode}) })
	}
}

// TestOlderWriteLandsOnNewerOne is the hazard: without Sequenced it happens in either
// mode, since both writes are of one grant.
func TestOlderWriteLandsOnNewerOne(t *testing.T) {
	inBothModes(t, func(t *testing.T, opts *etcdguard.Options) {
		s := start(t, opts)
		ctx := t.Context()
		plain := fenced(t, s.guard, acquire(t, s.truth, "l"))
		for sequenced, kv := range map[bool]clientv3.KV{false: plain, true: etcdguard.Sequenced(plain)} {
			if _, err := kv.Put(ctx, "stock", "7"); err != nil {
				t.Fatal(err)
			}
			late := s.wire.Postpone("Txn", wire.When(func(c *wire.Call) bool { return carries(c, "stock") }))
			if _, err := kv.Put(ctx, "stock", "8"); resourceguard.OutcomeOf(err) != resourceguard.Unknown {
				t.Fatalf("lost request: %v", err)
			}
			if _, err := kv.Put(ctx, "stock", "9"); err != nil {
				t.Fatal(err)
			}
			if _, err := late.Send(ctx); err != nil {
				t.Fatal(err)
			}
			want := "8"
			if sequenced {
				want = "9"
			}
			s.wantValue(t, "stock", want)
		}
	})
}

// TestOutOfSequence: the older write has landed before the newer one.
func TestOutOfSequence(t *testing.T) {
	inBothModes(t, func(t *testing.T, opts *etcdguard.Options) {
		s := start(t, opts)
		ctx := t.Context()
		kv := etcdguard.Sequenced(fenced(t, s.guard, acquire(t, s.truth, "l")))
		if _, err := kv.Put(ctx, "stock", "7"); err != nil {
			t.Fatal(err)
		}
		s.wire.DropReply("Txn", 1)
		if _, err := kv.Put(ctx, "stock", "8"); resourceguard.OutcomeOf(err) != resourceguard.Unknown {
			t.Fatalf("lost answer: %v", err)
		}
		for range 2 {
			_, err := kv.Put(ctx, "stock", "9")
			wantRefused(t, "after one that landed", err, etcdguard.ErrOutOfSequence)
			_, err = kv.Delete(ctx, "stock")
			wantRefused(t, "after one that landed", err, etcdguard.ErrOutOfSequence)
		}
		resp, err := kv.Get(ctx, "stock")
		if err != nil || string(resp.Kvs[0].Value) != "8" {
			t.Fatalf("%v, %v", resp, err)
		}
		put, err := kv.Put(ctx, "stock", "9", clientv3.WithPrevKV())
		if err != nil || string(put.PrevKv.Value) != "8" || put.Header.MemberId == 0 {
			t.Errorf("%v, %v", put, err)
		}
		if del, err := kv.Delete(ctx, "stock"); err != nil || del.Deleted != 1 {
			t.Errorf("%v, %v", del, err)
		}
		if _, err := kv.Put(ctx, "stock", "10"); err != nil {
			t.Error(err)
		}
		// A read of the past, or of several keys, is not what a write goes by.
		if _, err := kv.Get(ctx, "stock", clientv3.WithRev(put.Header.Revision)); err != nil {
			t.Error(err)
		}
		if _, err := kv.Get(ctx, "stock", clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
		if _, err := kv.Put(ctx, "stock", "11"); err != nil {
			t.Error(err)
		}
	})
}

// TestLateCreationAfterADeletion: one absence looks like another.
func TestLateCreationAfterADeletion(t *testing.T) {
	s := start(t, nil)
	ctx := t.Context()
	kv := etcdguard.Sequenced(fenced(t, s.guard, acquire(t, s.truth, "l")))
	late := s.wire.Postpone("Txn", wire.When(func(c *wire.Call) bool { return carries(c, "stock") }))
	if _, err := kv.Put(ctx, "stock", "7"); resourceguard.OutcomeOf(err) != resourceguard.Unknown {
		t.Fatalf("lost request: %v", err)
	}
	_, err := kv.Delete(ctx, "stock")
	wantRefused(t, "deletion before the late creation", err, errors.ErrUnsupported)
	if _, err := kv.Put(ctx, "stock", "8"); err != nil {
		t.Fatal(err)
	}
	_, err = kv.Delete(ctx, "stock")
	wantRefused(t, "deletion before the late creation", err, errors.ErrUnsupported)
	if _, err := late.Send(ctx); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "stock", "8")
}

func TestWhatCannotBeSequenced(t *testing.T) {
	s := start(t, highWater)
	kv := etcdguard.Sequenced(fenced(t, s.guard, acquire(t, s.truth, "l")))
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"txn": func() error {
			_, err := kv.Txn(ctx).If().Then(clientv3.OpPut("data", "5")).Else().Commit()
			return err
		},
		"do txn":    func() error { _, err := kv.Do(ctx, clientv3.OpTxn(nil, nil, nil)); return err },
		"range":     func() error { _, err := kv.Delete(ctx, "data", clientv3.WithPrefix()); return err },
		"operation": func() error { _, err := kv.Put(withOperation(ctx, "op"), "data", "5"); return err },
		"stream":    func() error { _, err := kv.GetStream(ctx, "data"); return err },
	} {
		wantRefused(t, name, do(), errors.ErrUnsupported)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := kv.Put(ended, "data", "5"); !errors.Is(err, context.Canceled) {
		t.Errorf("the read before the first write: %v", err)
	}
	s.wantValue(t, "data", "")
}
