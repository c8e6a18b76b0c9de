package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

var highWater = &etcdguard.Options{Mode: etcdguard.HighWater}

func newToken(t fataler, lock string, epoch uint16, revision int64) revisionfence.Token {
	t.Helper()
	tok, err := revisionfence.New(lock, epoch, revision)
	if err != nil {
		t.Fatalf("token: %v", err)
	}
	return tok
}

// wantMarkText looks at the mark past the guard.
func (s *setup) wantMarkText(t *testing.T, resource, want string) {
	t.Helper()
	if got, _ := s.value(t, markKey(resource)); got != want {
		t.Errorf("the mark of %q is %q, want %q", resource, got, want)
	}
}

func (g grant) owner() string { return g.key[strings.LastIndexByte(g.key, '/')+1:] }

func (g grant) text() string { return g.token.String() + " " + g.owner() }

// wantRefused wants an error that changed nothing.
func wantRefused(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		t.Errorf("%s: %v with outcome %v, want %v and not applied", what, err, resourceguard.OutcomeOf(err), want)
	}
}

// TestMarkDecides: the end of a lease alone refuses nobody, and the first call of a
// newer owner refuses all older ones, a read too.
func TestMarkDecides(t *testing.T) {
	for _, op := range every {
		t.Run(op.name, func(t *testing.T) {
			s := start(t, highWater)
			a := acquire(t, s.truth, "l")
			old := fenced(t, s.guard, a)
			if _, err := old.Put(t.Context(), "data", "8"); err != nil {
				t.Fatal(err)
			}
			s.wantMarkText(t, "l", a.text())
			s.etcd.Expire(t, a)
			b := acquire(t, s.truth, "l")
			if err := op.do(t.Context(), old); err != nil {
				t.Errorf("before the newer owner came: %v", err)
			}
			s.put(t, "data", "8")
			if err := op.do(t.Context(), fenced(t, newGuard(t, s.truth, highWater), b)); err != nil {
				t.Errorf("newer owner: %v", err)
			}
			s.put(t, "data", "8")
			wantStale(t, op.do(t.Context(), old), resourceguard.StaleError{Resource: "l", Presented: a.token, Accepted: b.token})
			s.wantValue(t, "data", "8")
			s.wantMarkText(t, "l", b.text())
		})
	}
}

// TestNoMarkIsNoInvitation: where the mark was deleted, or never was, only the
// present owner raises it.
func TestNoMarkIsNoInvitation(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	a := acquire(t, s.truth, "l")
	old := fenced(t, s.guard, a)
	if _, err := old.Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, a)
	if _, err := s.truth.Delete(ctx, markKey("l")); err != nil {
		t.Fatal(err)
	}
	_, err := old.Put(ctx, "data", "5")
	wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: a.token})
	b, waiter := acquire(t, s.truth, "l"), acquire(t, s.truth, "l")
	for _, g := range []grant{a, waiter} {
		for _, op := range every {
			wantStale(t, op.do(ctx, fenced(t, s.guard, g)), resourceguard.StaleError{Resource: "l", Presented: g.token, Accepted: b.token})
			wantStale(t, op.do(ctx, fenced(t, s.guard, etcdguard.FromToken(g.token))), resourceguard.StaleError{Resource: "l", Presented: g.token, Accepted: b.token})
		}
		wantStale(t, s.guard.Advance(ctx, "l", g.token), resourceguard.StaleError{Resource: "l", Presented: g.token, Accepted: b.token})
	}
	s.wantMarkText(t, "l", "")
	s.wantValue(t, "data", "7")
}

// TestForgedTokens: those that etcd cannot have issued, and those that it could have.
func TestForgedTokens(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	for range 10 {
		s.put(t, "other", "revisions that no lock has")
	}
	g := acquire(t, s.truth, "l")
	for range 10 {
		s.put(t, "other", "revisions that no lock has")
	}
	n := g.token.Revision()
	check := func(when string, want func(revisionfence.Token) error) {
		for _, forged := range []revisionfence.Token{
			newToken(t, "l", 0, n-1), newToken(t, "l", 0, n+1), newToken(t, "l", 0, n+1000),
			newToken(t, "l", 0, revisionfence.MaxRevision), newToken(t, "l", 0, 1<<47),
			newToken(t, "l", 1, n), newToken(t, "l", revisionfence.MaxEpoch, 1),
		} {
			for name, f := range map[string]etcdguard.Fenced{
				"token alone":     etcdguard.FromToken(forged),
				"key of an owner": grant{key: g.key, token: forged},
			} {
				_, err := fenced(t, s.guard, f).Put(ctx, "data", "5")
				wantRefused(t, fmt.Sprintf("%s, %s, %s", when, name, forged), err, want(forged))
			}
			wantRefused(t, when+": Advance", s.guard.Advance(ctx, "l", forged), want(forged))
		}
	}
	kind := func(forged revisionfence.Token) error {
		if forged.Epoch() > 0 || forged.Revision() > n+500 {
			return resourceguard.ErrImplausible
		}
		return resourceguard.ErrStale
	}
	check("without a mark", kind)
	s.wantMarkText(t, "l", "")
	if _, err := fenced(t, s.guard, g).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	check("with a mark", kind)
	s.wantMarkText(t, "l", g.text())
	s.wantValue(t, "data", "7")
}

// TestTokenOfAnotherLock: a larger number of another lock neither passes nor raises,
// in any form, and a mark of another lock is not overwritten.
func TestTokenOfAnotherLock(t *testing.T) {
	opts := &etcdguard.Options{
		Mode:     etcdguard.HighWater,
		Resource: func(key string) (string, error) { return "stock", nil },
		LockOf:   func(string) (string, error) { return "l", nil },
	}
	s := start(t, opts)
	ctx := t.Context()
	mine, other := acquire(t, s.truth, "l"), acquire(t, s.truth, "m")
	if _, err := fenced(t, s.guard, mine).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	_, err := fenced(t, s.guard, other).Put(ctx, "data", "5")
	wantRefused(t, "Put", err, resourceguard.ErrWrongLock)
	wantRefused(t, "Advance", s.guard.Advance(ctx, "stock", other.token), resourceguard.ErrWrongLock)
	s.put(t, markKey("stock"), other.text())
	_, err = fenced(t, s.guard, mine).Put(ctx, "data", "5")
	wantRefused(t, "a mark of another lock", err, resourceguard.ErrWrongLock)
	s.wantValue(t, "data", "7")
}

// TestUnreadableMark: whatever it is, and wherever it would sort.
func TestUnreadableMark(t *testing.T) {
	s := start(t, highWater)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	for _, text := range []string{
		"", " ", "0", "0@l", g.token.String() + " ", g.token.String() + "  x", g.text() + " x", " " + g.text(), g.text() + "\n",
		g.token.String() + " a/b", g.token.String() + " %", g.token.String() + " %61", "\x00", `{"format":2}`, "2 " + g.text(),
	} {
		s.put(t, markKey("l"), text)
		for _, op := range every {
			wantRefused(t, fmt.Sprintf("%s over %q", op.name, text), op.do(t.Context(), kv), resourceguard.ErrCorruptMark)
		}
		wantRefused(t, "Advance", s.guard.Advance(t.Context(), "l", g.token), resourceguard.ErrCorruptMark)
		s.wantMarkText(t, "l", text)
	}
	s.wantValue(t, "data", "")
}

// TestTwoOwnersOfOneToken: after an unnoticed restore two holders have one token. The
// last segments of their lock keys differ.
func TestTwoOwnersOfOneToken(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	g := acquire(t, s.truth, "l")
	twin := grant{key: directory("l") + "deadbeef-7", token: g.token}
	for _, op := range every {
		wantRefused(t, "twin first, "+op.name, op.do(ctx, fenced(t, s.guard, twin)), resourceguard.ErrOwnerMismatch)
	}
	_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: g.token, Owner: twin.owner()}, clientv3.OpPut("data", "5"))
	wantRefused(t, "twin first, by its token", err, resourceguard.ErrOwnerMismatch)
	if _, err := fenced(t, s.guard, g).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	for _, guard := range []*etcdguard.Guard{s.guard, newGuard(t, s.truth, highWater)} {
		for _, op := range every {
			wantRefused(t, "twin, "+op.name, op.do(ctx, fenced(t, guard, twin)), resourceguard.ErrOwnerMismatch)
		}
	}
	s.wantValue(t, "data", "7")

	// A barrier learns the owner from etcd, however the grant is named later.
	next := acquire(t, s.truth, "m")
	if err := s.guard.Advance(ctx, "m", next.token); err != nil {
		t.Fatal(err)
	}
	s.wantMarkText(t, "m", next.text())
	for _, owner := range []string{"", next.owner(), next.key} {
		w := resourceguard.Write{Resource: "m", Token: next.token, Owner: owner}
		if _, _, err := s.guard.Do(ctx, w, clientv3.OpPut("data", "8")); err != nil {
			t.Errorf("owner %q: %v", owner, err)
		}
	}
}

// TestOneWriteSurvivesACrash: the write is the raise, so that nothing lies between,
// and a barrier or a read before it uses nothing up.
func TestOneWriteSurvivesACrash(t *testing.T) {
	opts := &etcdguard.Options{Mode: etcdguard.HighWater, Policy: resourceguard.RejectEqual}
	s := start(t, opts)
	ctx := t.Context()
	for i, before := range []func(clientv3.KV, grant) error{
		func(clientv3.KV, grant) error { return nil },
		func(_ clientv3.KV, g grant) error { return s.guard.Advance(ctx, "l", g.token) },
		func(kv clientv3.KV, _ grant) error { _, err := kv.Get(ctx, "data"); return err },
	} {
		g := acquire(t, s.truth, "l")
		kv := fenced(t, s.guard, g)
		if err := before(kv, g); err != nil {
			t.Fatal(err)
		}
		if i > 0 { // the owner of the token below is not known
			s.wantMarkText(t, "l", newToken(t, "l", 0, g.token.Revision()-1).String())
		}
		// The write does not get through, and its program ends.
		lost := s.wire.FailBefore("Txn", 1, wire.When(func(c *wire.Call) bool { return carries(c, "data") }))
		if _, err := kv.Put(ctx, "data", "lost"); err == nil || lost.Hits() != 1 {
			t.Fatalf("%d: %v, %d hits", i, err, lost.Hits())
		}
		again := fenced(t, newGuard(t, s.client, opts), g)
		want := fmt.Sprintf("write %d", i)
		if _, err := again.Put(ctx, "data", want); err != nil {
			t.Errorf("%d: the one write: %v", i, err)
		}
		_, err := again.Put(ctx, "data", "second")
		wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: g.token, Accepted: g.token})
		s.wantValue(t, "data", want)
		s.etcd.Expire(t, g)
	}
}

// TestMarkStaysWithoutTheValue: neither a deletion of the data nor the end of the
// lock takes the mark along.
func TestMarkStaysWithoutTheValue(t *testing.T) {
	s := start(t, highWater)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	if _, err := kv.Txn(t.Context()).Then(clientv3.OpPut("data", "7"), clientv3.OpDelete("other")).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Delete(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, g)
	s.wantMarkText(t, "l", g.text())
}

// TestSeveralResourcesInOneTransaction: all tokens count, whether of one lock or of
// several, and a refusal for one changes none.
func TestSeveralResourcesInOneTransaction(t *testing.T) {
	s := start(t, &etcdguard.Options{
		Mode:     etcdguard.HighWater,
		Resource: func(key string) (string, error) { r, _, _ := strings.Cut(key, "/"); return r, nil },
		LockOf:   func(resource string) (string, error) { return resource[:1], nil },
	})
	ctx := t.Context()
	a, b := acquire(t, s.truth, "a"), acquire(t, s.truth, "b")
	write := func(f etcdguard.Fenced, v string) error {
		_, err := fenced(t, s.guard, f).Txn(ctx).If(clientv3.Compare(clientv3.Version("never"), "=", 0)).
			Then(clientv3.OpPut("a1/k", v), clientv3.OpPut("a2/k", v), clientv3.OpPut("b1/k", v)).Commit()
		return err
	}
	for range 2 {
		if err := write(grants{a, b}, "7"); err != nil {
			t.Fatal(err)
		}
	}
	s.wantMarkText(t, "a1", a.text())
	s.wantMarkText(t, "a2", a.text())
	s.wantMarkText(t, "b1", b.text())
	wantRefused(t, "one grant for two locks", write(a, "5"), resourceguard.ErrWrongLock)
	s.etcd.Expire(t, b)
	c := acquire(t, s.truth, "b")
	if _, err := fenced(t, s.guard, c).Put(ctx, "b1/k", "8"); err != nil {
		t.Fatal(err)
	}
	wantStale(t, write(grants{a, b}, "5"), resourceguard.StaleError{Resource: "b1", Presented: b.token, Accepted: c.token})
	s.wantValue(t, "a1/k", "7")
	s.wantValue(t, "b1/k", "8")
	for name, op := range map[string]clientv3.Op{
		"range":          clientv3.OpGet("a1/", clientv3.WithPrefix()),
		"deletion":       clientv3.OpDelete("a1/", clientv3.WithPrefix()),
		"no operation":   clientv3.OpTxn(nil, nil, nil),
		"no resource":    clientv3.OpPut("/x", ""),
		"protected keys": clientv3.OpPut(markKey("a1"), ""),
	} {
		_, err := fenced(t, s.guard, a).Do(ctx, op)
		if resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	_, err := fenced(t, s.guard, grants{a, c}).Txn(resourceguard.WithOperation(ctx, resourceguard.Operation{ID: "op"})).
		Then(clientv3.OpPut("a1/k", "5"), clientv3.OpPut("b1/k", "5")).Commit()
	wantRefused(t, "an operation of two resources", err, resourceguard.ErrInvalid)
}

// TestGrantsOfALaterEpoch: several grants name no token. Their marks are of the epoch
// on record all the same.
func TestGrantsOfALaterEpoch(t *testing.T) {
	s := start(t, highWater)
	s.put(t, etcdguard.DefaultPrefix+"epoch", `{"format":1,"epoch":2}`)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, grants{g})
	for range 2 {
		if _, err := kv.Put(t.Context(), "data", "7"); err != nil {
			t.Fatal(err)
		}
	}
	want := newToken(t, "l", 2, g.token.Revision())
	s.wantMarkText(t, "l", want.String()+" "+g.owner())
	_, err := fenced(t, s.guard, g).Put(t.Context(), "data", "5") // of epoch 0
	wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: g.token, Accepted: want})
}

// TestHighWaterElsewhere: a lock of another cluster or another prefix raises nothing
// here, and a namespace goes around the guard.
func TestHighWaterElsewhere(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	far := embedded.Start(t, nil).Client()
	g := acquire(t, far, "l")
	for range 30 { // the other etcd is ahead
		s.put(t, "other", "")
	}
	_, err := fenced(t, s.guard, g).Put(ctx, "data", "5")
	wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: g.token})
	if !strings.Contains(err.Error(), directory("l")) {
		t.Errorf("%v: does not name the directory", err)
	}
	s.wantMarkText(t, "l", "")

	mine := acquire(t, s.truth, "l")
	kv := namespace.NewKV(fenced(t, s.guard, mine), "app/")
	if _, err := kv.Put(resourceguard.WithOperation(ctx, resourceguard.Operation{ID: "op"}), "k", "v"); err != nil {
		t.Fatal(err)
	}
	s.wantValue(t, "app/k", "v")
	s.wantMarkText(t, "l", mine.text())
	if _, exists := s.value(t, etcdguard.DefaultPrefix+"ops/l/op"); !exists {
		t.Error("the operation is not on record")
	}
}

func TestDoAndKVGoByOneMark(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	a := acquire(t, s.truth, "l")
	if _, err := fenced(t, s.guard, a).Put(ctx, "data", "7"); err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, a)
	b := acquire(t, s.truth, "l")
	r, resp, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: b.token},
		clientv3.OpPut("data", "8", clientv3.WithPrevKV()), clientv3.OpGet("data"))
	if err != nil || r.Mark != b.token || r.Replayed || len(resp.Responses) != 2 || !resp.Succeeded {
		t.Fatalf("%+v, %v, %v", r, resp, err)
	}
	if prev, now := resp.Responses[0].GetResponsePut().PrevKv, resp.Responses[1].GetResponseRange().Kvs; string(prev.Value) != "7" || string(now[0].Value) != "8" {
		t.Errorf("before %v, now %v", prev, now)
	}
	_, err = fenced(t, s.guard, a).Put(ctx, "data", "5")
	wantStale(t, err, resourceguard.StaleError{Resource: "l", Presented: a.token, Accepted: b.token})
	for name, do := range map[string]func() error{
		"no operations": func() error {
			_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: b.token})
			return err
		},
		"no resource": func() error {
			_, _, err := s.guard.Do(ctx, resourceguard.Write{Token: b.token}, clientv3.OpPut("data", "5"))
			return err
		},
		"a lock key": func() error {
			_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: b.token}, clientv3.OpDelete(b.key))
			return err
		},
		"a stale read": func() error {
			_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: b.token}, clientv3.OpGet("data", clientv3.WithSerializable()))
			return err
		},
	} {
		if err := do(); err == nil || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
}

// TestDoOfModeHeld: the owner is the lock key, and so needed.
func TestDoOfModeHeld(t *testing.T) {
	s := start(t, nil)
	ctx := context.Background()
	g := acquire(t, s.truth, "l")
	w := resourceguard.Write{Resource: "stock", Token: g.token, Owner: g.owner()}
	if r, _, err := s.guard.Do(ctx, w, clientv3.OpPut("data", "7")); err != nil || r.Mark != g.token {
		t.Errorf("%+v, %v", r, err)
	}
	w.Operation.ID = "op"
	_, _, err := s.guard.Do(ctx, w, clientv3.OpPut("data", "5"))
	wantRefused(t, "operation", err, errors.ErrUnsupported)
	_, _, err = s.guard.Do(ctx, resourceguard.Write{Resource: "stock", Token: g.token}, clientv3.OpPut("data", "5"))
	wantRefused(t, "no owner", err, resourceguard.ErrInvalid)
	s.etcd.Expire(t, g)
	w.Operation.ID = ""
	_, _, err = s.guard.Do(ctx, w, clientv3.OpPut("data", "5"))
	wantStale(t, err, resourceguard.StaleError{Resource: "stock", Presented: g.token})
	s.wantValue(t, "data", "7")
}
