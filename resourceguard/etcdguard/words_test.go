package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// says wants an error that has all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// TestRefusalByTheLockSaysSo: nobody has "accepted" the owner's token, and where the
// guard looks at the wrong place the place is in the message.
func TestRefusalByTheLockSaysSo(t *testing.T) {
	inBothModes(t, func(t *testing.T, opts *etcdguard.Options) {
		s := start(t, opts)
		ctx := t.Context()
		a, b := acquire(t, s.truth, "l"), acquire(t, s.truth, "l")
		s.etcd.Expire(t, a)
		_, put := fenced(t, s.guard, a).Put(ctx, "data", "5")
		for _, err := range []error{put, s.guard.Advance(ctx, "l", a.token)} {
			says(t, err, a.token.String(), b.token.String()+" holds the lock now", directory("l"))
			if strings.Contains(err.Error(), "has been accepted") {
				t.Errorf("%q: nobody accepted that token", err)
			}
		}
		// A live grant of a coordinator that was told otherwise.
		_, err := s.truth.Put(ctx, "/elsewhere/epoch", `{"format":1}`)
		must(t, err)
		elsewhere := newGuard(t, s.client, &etcdguard.Options{Mode: opts.Mode, Prefix: "/elsewhere/"})
		err = elsewhere.Advance(ctx, "l", b.token)
		wantRefused(t, "another prefix", err, resourceguard.ErrStale)
		says(t, err, `"/elsewhere/locks/l/"`)
	})
}

// TestWriteInDoubtSaysSo, and about what.
func TestWriteInDoubtSaysSo(t *testing.T) {
	inBothModes(t, func(t *testing.T, opts *etcdguard.Options) {
		s := start(t, opts)
		kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
		if _, err := kv.Put(t.Context(), "stock", "7"); err != nil {
			t.Fatal(err)
		}
		s.wire.OnUnary(func(ctx context.Context, _ *wire.Call) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := kv.Put(ctx, "stock", "8")
		says(t, err, `"stock"`, "outcome unknown")
		if !errors.Is(err, context.DeadlineExceeded) || resourceguard.OutcomeOf(err) != resourceguard.Unknown {
			t.Errorf("%v with outcome %v, want the deadline and unknown", err, resourceguard.OutcomeOf(err))
		}
		_, err = kv.Get(ctx, "stock")
		says(t, err, `"stock"`, "nothing was written")
		if resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("a read: %v with outcome %v", err, resourceguard.OutcomeOf(err))
		}
		err = s.guard.Advance(ctx, "the resource", newToken(t, "the resource", 0, 7))
		says(t, err, `"the resource"`)
	})
}

// TestRefusalDoesNotWaitForItsWords: the epoch is read for the message alone.
func TestRefusalDoesNotWaitForItsWords(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	s.etcd.Expire(t, g)
	s.wire.Hold("Range")
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := kv.Put(ctx, "data", "5")
	wantStale(t, err, resourceguard.StaleError{Resource: "data", Presented: g.token})
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("refused after %v", d)
	}
}
