package memguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/memguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func lockOf(string) (string, error) { return "orders/42", nil }

func newGuard(tb testing.TB, opts memguard.Options) *memguard.Guard {
	tb.Helper()
	if opts.LockOf == nil {
		opts.LockOf = lockOf
	}
	g, err := memguard.New(&opts)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func write(tb testing.TB, revision int64, operation string) resourceguard.Write {
	tb.Helper()
	t, err := revisionfence.New("orders/42", 0, revision)
	if err != nil {
		tb.Fatal(err)
	}
	return resourceguard.Write{Resource: "stock", Token: t, Operation: resourceguard.Operation{ID: operation}}
}

func TestNewNamesTheOptionThatIsWrong(t *testing.T) {
	for field, opts := range map[string]*memguard.Options{
		"LockOf":         nil,
		"Policy":         {LockOf: lockOf, Policy: 2},
		"KeepOperations": {LockOf: lockOf, KeepOperations: -1},
	} {
		_, err := memguard.New(opts)
		if !errors.Is(err, resourceguard.ErrInvalid) || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("New without a good %s: %v", field, err)
		}
	}
}

func TestDoSeesAndChangesTheValueInOneStep(t *testing.T) {
	g := newGuard(t, memguard.Options{})
	const writers = 50
	done := make(chan error, writers)
	for range writers {
		go func() {
			_, err := g.Do(t.Context(), write(t, 3, ""), func(c *memguard.Cell) ([]byte, error) {
				v, _ := c.Get()
				c.Put(append(v, 'x'))
				return nil, nil
			})
			done <- err
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if v, _, _ := g.Store().Peek(t.Context(), "stock"); len(v) != writers {
		t.Errorf("%d of %d changes are there", len(v), writers)
	}
}

func TestFailedFunctionChangesNothing(t *testing.T) {
	g := newGuard(t, memguard.Options{})
	if _, err := g.Put(t.Context(), write(t, 3, ""), []byte("7")); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no stock left")
	spoil := func(c *memguard.Cell) {
		v, _ := c.Get()
		v[0] = 'x'
		c.Put([]byte("5"))
		c.Delete()
	}
	_, err := g.Do(t.Context(), write(t, 4, "op"), func(c *memguard.Cell) ([]byte, error) {
		spoil(c)
		return []byte("result"), failed
	})
	if !errors.Is(err, failed) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		t.Errorf("Do = %v with outcome %q", err, resourceguard.OutcomeOf(err))
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = g.Do(t.Context(), write(t, 4, "op"), func(c *memguard.Cell) ([]byte, error) {
			spoil(c)
			panic("out of order")
		})
	}()
	if v, _, _ := g.Store().Peek(t.Context(), "stock"); string(v) != "7" {
		t.Errorf("the value is %q", v)
	}
	if m, _, _ := g.Mark(t.Context(), "stock"); m.Token.Revision() != 3 {
		t.Errorf("the mark is %s", m.Token)
	}
	if r, err := g.Put(t.Context(), write(t, 4, "op"), []byte("8")); err != nil || r.Replayed {
		t.Errorf("the operation that had failed: %+v, %v", r, err)
	}
}

func TestBytesAreNotShared(t *testing.T) {
	g := newGuard(t, memguard.Options{})
	value := []byte("7")
	result := []byte("r")
	w := write(t, 3, "op")
	w.Operation.Digest = []byte("d")
	first, err := g.Do(t.Context(), w, func(c *memguard.Cell) ([]byte, error) {
		c.Put(value)
		return result, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	value[0], result[0], first.Value[0], w.Operation.Digest[0] = 'x', 'x', 'x', 'x'
	peeked, _, _ := g.Store().Peek(t.Context(), "stock")
	peeked[0] = 'x'
	got, _, _ := g.Get(t.Context(), w)
	if string(got) != "7" {
		t.Errorf("the value became %q", got)
	}
	w.Operation.Digest = []byte("d")
	for range 2 {
		again, err := g.Put(t.Context(), w, nil)
		if err != nil || string(again.Value) != "r" {
			t.Fatalf("the saved result became %q, %v", again.Value, err)
		}
		again.Value[0] = 'x'
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memguard.Options{})
		release := make(chan struct{})
		go func() {
			_, _ = g.Do(t.Context(), write(t, 3, ""), func(*memguard.Cell) ([]byte, error) {
				<-release
				return nil, nil
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := g.Put(ctx, write(t, 4, ""), []byte("8"))
		if !errors.Is(err, context.DeadlineExceeded) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("Put = %v with outcome %q", err, resourceguard.OutcomeOf(err))
		}
		close(release)
	})
}

func TestEndedContextGivesItsCause(t *testing.T) {
	lost := errors.New("the grant was lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	_, err := newGuard(t, memguard.Options{}).Put(ctx, write(t, 3, ""), nil)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, lost) {
		t.Errorf("Put = %v", err)
	}
}

func TestResultsAreKeptAsLongAsCallersRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memguard.Options{KeepOperations: time.Hour})
		put := func(revision int64, operation string) bool {
			r, err := g.Put(t.Context(), write(t, revision, operation), nil)
			if err != nil {
				t.Fatal(err)
			}
			return r.Replayed
		}
		kept := func(want int) {
			t.Helper()
			if n, err := g.Store().Operations(t.Context(), "stock"); n != want || err != nil {
				t.Errorf("%d results are kept, %v, want %d", n, err, want)
			}
		}
		put(3, "a")
		time.Sleep(30 * time.Minute)
		put(3, "b")
		time.Sleep(2 * time.Hour)
		put(3, "c") // same token: its owner may still be waiting for an answer
		kept(3)
		if !put(3, "a") {
			t.Error("a result of the present mark's token was forgotten")
		}
		put(4, "d")
		kept(2) // a and b are too old now; c is of an older token, but young
		if !put(4, "c") || put(4, "a") {
			t.Error("c was forgotten or a was kept")
		}
	})
}

func TestErrorsOfTheOptionsRefuseTheCall(t *testing.T) {
	broken := errors.New("no configuration")
	lock := func(string) (string, error) { return "", broken }
	ceiling := func(context.Context) (revisionfence.Token, error) { return revisionfence.Token{}, broken }
	for name, g := range map[string]*memguard.Guard{
		"LockOf":  newGuard(t, memguard.Options{LockOf: lock}),
		"Ceiling": newGuard(t, memguard.Options{Ceiling: ceiling}),
	} {
		_, err := g.Put(t.Context(), write(t, 3, ""), nil)
		if !errors.Is(err, broken) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied || !strings.Contains(err.Error(), `"stock"`) {
			t.Errorf("Put when %s fails: %v with outcome %q", name, err, resourceguard.OutcomeOf(err))
		}
		if _, ok, _ := g.Mark(t.Context(), "stock"); ok {
			t.Errorf("a mark was stored when %s failed", name)
		}
	}
}

func TestInvalidWritesAreRefused(t *testing.T) {
	g := newGuard(t, memguard.Options{})
	for name, spoil := range map[string]func(*resourceguard.Write){
		"no resource":          func(w *resourceguard.Write) { w.Resource = "" },
		"digest without an ID": func(w *resourceguard.Write) { w.Operation.Digest = []byte("d") },
	} {
		w := write(t, 3, "")
		spoil(&w)
		_, putErr := g.Put(t.Context(), w, nil)
		_, _, getErr := g.Get(t.Context(), w)
		if !errors.Is(putErr, resourceguard.ErrInvalid) || !errors.Is(getErr, resourceguard.ErrInvalid) {
			t.Errorf("%s: Put: %v, Get: %v", name, putErr, getErr)
		}
	}
	if err := g.Advance(t.Context(), "", write(t, 3, "").Token); !errors.Is(err, resourceguard.ErrInvalid) {
		t.Errorf("Advance without a resource: %v", err)
	}
}

func TestNoFunctionIsRefused(t *testing.T) {
	guard := newGuard(t, memguard.Options{})
	_, err := guard.Do(t.Context(), write(t, 5, ""), nil)
	if !errors.Is(err, resourceguard.ErrInvalid) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied || !strings.Contains(err.Error(), "fn is nil") {
		t.Errorf("Do without a function: %v", err)
	}
}

func TestFloorRecordSaysWhatItReplaced(t *testing.T) {
	g := newGuard(t, memguard.Options{})
	before := time.Now()
	if _, err := g.Put(t.Context(), write(t, 3, ""), nil); err != nil {
		t.Fatal(err)
	}
	five := write(t, 5, "").Token
	if err := g.SetFloor(t.Context(), revisionfence.Mark{Resource: "stock", Token: five}, "restored"); err != nil {
		t.Fatal(err)
	}
	floors, err := g.Store().Floors(t.Context(), "stock")
	if err != nil || len(floors) != 1 {
		t.Fatalf("on record: %+v, %v", floors, err)
	}
	f := floors[0]
	if f.Mark.Token != five || f.Before.Revision() != 3 || f.Reason != "restored" || f.At.Before(before) {
		t.Errorf("on record: %+v", f)
	}
}
