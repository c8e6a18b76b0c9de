package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// TestHighWaterOperationLimits, each with a mark to raise and with a mark that is
// the caller's already: a program must not fail on the first write of a tenure alone.
func TestHighWaterOperationLimits(t *testing.T) {
	compare := clientv3.Compare(clientv3.Version("never"), "=", 0)
	flat := func(n int) func(clientv3.Txn) clientv3.Txn {
		return func(txn clientv3.Txn) clientv3.Txn { return txn.Then(puts(n)...) }
	}
	compared := func(n int) func(clientv3.Txn) clientv3.Txn {
		return func(txn clientv3.Txn) clientv3.Txn { return txn.If(compare).Then(puts(n)...).Else(puts(n)...) }
	}
	for _, test := range []struct {
		name      string
		policy    resourceguard.Policy
		operation string
		txn       func(int) func(clientv3.Txn) clientv3.Txn
		most      int
	}{
		{"flat", resourceguard.AcceptEqual, "", flat, 128},
		{"with compares", resourceguard.AcceptEqual, "", compared, 127},
		{"flat, operation", resourceguard.AcceptEqual, "op", flat, 127},
		{"with compares, operation", resourceguard.AcceptEqual, "op", compared, 125},
		{"one write, flat", resourceguard.RejectEqual, "", flat, 127},
		{"one write, with compares", resourceguard.RejectEqual, "", compared, 125},
		{"one write, flat, operation", resourceguard.RejectEqual, "op", flat, 126},
		{"one write, with compares, operation", resourceguard.RejectEqual, "op", compared, 123},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t, &etcdguard.Options{Mode: etcdguard.HighWater, Policy: test.policy})
			g := acquire(t, s.truth, "l")
			commit := func(n int, id string) error {
				ctx := t.Context()
				if test.operation != "" {
					ctx = withOperation(ctx, test.operation+id)
				}
				_, err := test.txn(n)(fenced(t, s.guard, g).Txn(ctx)).Commit()
				return err
			}
			for _, when := range []string{"raising", "raised"} {
				if when == "raised" && test.policy == resourceguard.RejectEqual {
					break
				}
				if err := commit(test.most+1, when+"+1"); !errors.Is(err, rpctypes.ErrTooManyOps) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
					t.Errorf("%s, %d operations: %v, want %v", when, test.most+1, err, rpctypes.ErrTooManyOps)
				}
				if when == "raising" && test.policy == resourceguard.AcceptEqual {
					if _, err := s.truth.Delete(t.Context(), markKey("l")); err != nil {
						t.Fatal(err)
					}
				}
				if err := commit(test.most, when); err != nil {
					t.Errorf("%s, %d operations: %v", when, test.most, err)
				}
			}
		})
	}
}

// TestPayloadIsSentOnce, up to what etcd takes at all, whether the mark has to be
// raised or not.
func TestPayloadIsSentOnce(t *testing.T) {
	const size = 3<<19 - 2048 // etcd takes 1.5 MiB, with everything around the payload
	for _, opts := range []*etcdguard.Options{nil, highWater, {Mode: etcdguard.HighWater, Policy: resourceguard.RejectEqual}} {
		s := start(t, opts)
		sent := 0
		s.wire.OnUnary(func(ctx context.Context, call *wire.Call) error {
			if m, ok := call.Request.(*pb.TxnRequest); ok {
				sent += proto.Size(m)
			}
			return call.Send(ctx)
		})
		value := strings.Repeat("x", size)
		for i, f := range []func() etcdguard.Fenced{
			func() etcdguard.Fenced { return acquire(t, s.truth, "l") },
			func() etcdguard.Fenced { return acquire(t, s.truth, "m") },
		} {
			sent = 0
			kv := fenced(t, s.guard, f())
			ctx := t.Context()
			if opts != nil {
				ctx = withOperation(ctx, "op")
			}
			for n := range 2 {
				if _, err := kv.Put(ctx, "data", value); err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				if opts != nil {
					break // a repetition would be a replay
				}
				if n == 0 && sent > size+4096 {
					t.Errorf("sent %d bytes for %d", sent, size)
				}
				sent = 0
			}
			if sent > size+4096 {
				t.Errorf("sent %d bytes for %d", sent, size)
			}
			if opts != nil && opts.Policy == resourceguard.AcceptEqual {
				sent = 0
				if _, err := kv.Put(t.Context(), "data", value); err != nil || sent > size+4096 {
					t.Errorf("steady: sent %d bytes for %d: %v", sent, size, err)
				}
			}
		}
	}
}

// TestHighWaterCosts: requests and proposals, for the first and each later call of a
// tenure.
func TestHighWaterCosts(t *testing.T) {
	type cost struct{ Requests, Proposals int }
	s := start(t, highWater)
	once := newGuard(t, s.client, &etcdguard.Options{Mode: etcdguard.HighWater, Policy: resourceguard.RejectEqual})
	put := func(guard *etcdguard.Guard) func(context.Context, grant) error {
		return func(ctx context.Context, g grant) error {
			_, err := fenced(t, guard, g).Put(ctx, "data", "1")
			return err
		}
	}
	get := func(ctx context.Context, g grant) error {
		_, err := fenced(t, s.guard, g).Get(ctx, "data")
		return err
	}
	n := 0
	operate := func(ctx context.Context, g grant) error {
		n++
		return put(s.guard)(withOperation(ctx, string(rune('a'+n))), g)
	}
	advance := func(ctx context.Context, g grant) error { return s.guard.Advance(ctx, g.token.Lock(), g.token) }
	for name, test := range map[string]struct {
		do           func(context.Context, grant) error
		first, later cost
		laterFails   error
	}{
		"put":       {do: put(s.guard), first: cost{2, 1}, later: cost{1, 1}},
		"get":       {do: get, first: cost{2, 1}, later: cost{1, 0}},
		"operation": {do: operate, first: cost{2, 1}, later: cost{1, 1}},
		"advance":   {do: advance, first: cost{2, 1}, later: cost{1, 0}},
		"one write": {do: put(once), first: cost{2, 1}, later: cost{1, 0}, laterFails: resourceguard.ErrStale},
	} {
		g := acquire(t, s.truth, name)
		for i, want := range []cost{test.first, test.later, test.later} {
			// The member writes entries of its own while it starts, and this measures
			// single calls: so long as nothing happens they do not count.
			before := s.quietIndex(t)
			s.wire.Reset()
			err := test.do(t.Context(), g)
			got := cost{s.wire.Calls(""), int(s.quietIndex(t) - before)}
			if i == 0 && err != nil || i > 0 && !errors.Is(err, test.laterFails) {
				t.Errorf("%s, call %d: %v", name, i, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, call %d: (-want +got)\n%s", name, i, diff)
			}
		}
	}
}

// TestRefusalByTheMarkCostsOneRequest: the refusal says by itself whose the mark is.
func TestRefusalByTheMarkCostsOneRequest(t *testing.T) {
	s := start(t, highWater)
	a := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, a)
	if _, err := kv.Put(t.Context(), "data", "7"); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	if err := newGuard(t, s.truth, highWater).Advance(t.Context(), "l", b.token); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the guard has learnt that the mark is another's
		s.wire.Reset()
		_, err := kv.Put(t.Context(), "data", "5")
		wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: a.token, Accepted: b.token})
		if n := s.wire.Calls(""); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	}
}

// quietIndex is the raft index once the member has written what it writes at its
// start: the storage version is the last of that.
func (s *setup) quietIndex(t *testing.T) uint64 {
	t.Helper()
	ctx := soon(t)
	for {
		status, err := s.truth.Status(ctx, s.etcd.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(status.Version, "3.5.") {
			t.Skip("etcd 3.5 does not tell when it has written what it writes at its start, so single proposals cannot be counted")
		}
		if release := status.Version[:strings.LastIndexByte(status.Version, '.')]; status.StorageVersion == release+".0" {
			return status.RaftIndex
		}
	}
}

// TestMarksOfManyResources are listed in pages, each once, at one moment.
func TestMarksOfManyResources(t *testing.T) {
	s := start(t, highWater)
	const n = 601
	token := newToken(t, "l", 0, 7)
	want := make(map[string]int)
	for i := range n {
		name := strings.Repeat("é/", i%3) + string(rune('a'+i%26)) + strings.Repeat("x", i)
		want[name] = 1
		s.put(t, markKey(name), token.String())
	}
	s.put(t, etcdguard.DefaultPrefix+"marks/%zz", token.String())
	s.put(t, etcdguard.DefaultPrefix+"marks/%61", token.String())
	s.wire.Reset()
	corrupt := 0
	for m, err := range s.guard.Marks(t.Context()) {
		if len(want) == n {
			s.put(t, markKey("later"), token.String())
		}
		switch {
		case errors.Is(err, resourceguard.ErrCorruptMark):
			corrupt++
		case err != nil || m.Token != token || want[m.Resource] != 1:
			t.Errorf("%v, %v", m, err)
		default:
			delete(want, m.Resource)
		}
	}
	if len(want) != 0 || corrupt != 2 || s.wire.Calls("Range") != 3 {
		t.Errorf("%d missing, %d unreadable, %d requests, want 0, 2, 3", len(want), corrupt, s.wire.Calls("Range"))
	}
}

// TestFloorAmongWriters: whatever happens meanwhile, a floor is never below the mark,
// and its record stands beside it.
func TestFloorAmongWriters(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	a := acquire(t, s.truth, "l")
	if err := s.guard.Advance(ctx, "l", a.token); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	floor := revisionfence.Mark{Resource: "l", Token: newToken(t, "l", 0, b.token.Revision()-1)}
	hold := s.wire.Hold("Txn", wire.When(func(c *wire.Call) bool { return carries(c, etcdguard.DefaultPrefix+"floors/") }))
	done := make(chan error, 1)
	go func() { done <- s.guard.SetFloor(ctx, floor, "meanwhile") }()
	<-hold.Arrived()
	if err := s.guard.Advance(ctx, "l", b.token); err != nil {
		t.Fatal(err)
	}
	hold.Release()
	wantStale(t, <-done, resourceguard.StaleError{Resource: "l", Presented: floor.Token, Accepted: b.token})
	s.wantMarkText(t, "l", b.text())
	resp, err := s.truth.Get(ctx, etcdguard.DefaultPrefix+"floors/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 0 {
		t.Errorf("a refused floor is on record: %v, %v", resp, err)
	}
	implausible := revisionfence.Mark{Resource: "l", Token: newToken(t, "l", 0, 1<<40)}
	wantRefused(t, "a floor above etcd", s.guard.SetFloor(ctx, implausible, "why"), resourceguard.ErrImplausible)

	// A floor at the owner's own token does not name it, and shuts nobody out. The
	// next to come does.
	if err := s.guard.SetFloor(ctx, revisionfence.Mark{Resource: "l", Token: b.token}, "again"); err != nil {
		t.Fatal(err)
	}
	s.put(t, markKey("l"), "damaged")
	if err := s.guard.SetFloor(ctx, revisionfence.Mark{Resource: "l", Token: b.token}, "repair"); err != nil {
		t.Fatal(err)
	}
	s.wantMarkText(t, "l", b.token.String())
	if _, err := fenced(t, s.guard, b).Put(ctx, "data", "8"); err != nil {
		t.Fatal(err)
	}
	s.wantMarkText(t, "l", b.text())
}
