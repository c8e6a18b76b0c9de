package guardtest

import (
	"context"
	"errors"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// callProperties are about calls and their answers.
func callProperties() []Property {
	return []Property{
		{
			Name:  "CancelledContext",
			Doc:   "a call whose context has ended does nothing and says why",
			check: cancelledContext,
		},
		{
			Name:  "OutcomeClassified",
			Doc:   "after an error the caller must know whether to repeat: \"not applied\" when it was applied loses a write or doubles one",
			check: outcomeClassified,
		},
	}
}

func cancelledContext(b *bench) {
	s := b.open()
	t := b.takeover(s, "cancelled")
	newest := b.succeed(t.new)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	ended := func(err error, what string) {
		b.Helper()
		switch {
		case err == nil:
			b.Errorf("%s with a context that has ended: accepted", what)
		case !errors.Is(err, context.Canceled):
			b.Errorf("%s with a context that has ended: failed with %q, want %q", what, err, context.Canceled)
		case resourceguard.OutcomeOf(err) == resourceguard.Applied:
			b.Errorf("%s with a context that has ended: outcome %q", what, resourceguard.Applied)
		}
	}
	w := newest.Write(t.resource)
	_, err := s.Put(ctx, w, []byte("5"))
	ended(err, "Put")
	if !b.lacks(Deletes) {
		_, err = s.Delete(ctx, w)
		ended(err, "Delete")
	}
	if !b.lacks(FencedReads) {
		_, _, err = s.Get(ctx, w)
		ended(err, "Get")
	}
	if !b.lacks(Marks) {
		ended(s.Advance(ctx, t.resource, newest.Token), "Advance")
		_, _, err = s.Mark(ctx, t.resource)
		ended(err, "Mark")
	}
	if !b.lacks(Floors) {
		ended(s.SetFloor(ctx, revisionfence.Mark{Resource: t.resource, Token: newest.Token}, "too late"), "SetFloor")
		if got := b.h.Reasons(b, t.resource); len(got) > 0 {
			b.Errorf("on record for SetFloor are %q, and it failed", got)
		}
	}
	b.wantValue(t.resource, newValue)
	b.wantMark(s, t.resource, t.new.Token)
	b.put(s, w, "9")
}

func outcomeClassified(b *bench) {
	s := b.open()
	t := b.takeover(s, "outcome")
	_, err := s.Put(b.ctx, t.old.Write(t.resource), []byte("5"))
	b.wantError(err, resourceguard.ErrStale, "Put with the old token")
	_, err = s.Put(b.ctx, resourceguard.Write{Resource: t.resource}, []byte("5"))
	b.wantError(err, resourceguard.ErrNoToken, "Put without a token")

	loser, ok := s.(AnswerLoser)
	if !ok {
		b.Logf("the subject is no AnswerLoser: only refusals were classified")
		return
	}
	for _, apply := range []bool{true, false} {
		w := t.new.Write(t.resource)
		value, want, truth := "lost, not applied", newValue, resourceguard.NotApplied
		if apply {
			value, want, truth = "lost, applied", "lost, applied", resourceguard.Applied
		}
		if !b.lacks(Operations) {
			w = operation(w, value, "d")
		}
		b.put(s, t.new.Write(t.resource), newValue)
		err := loser.PutLosingAnswer(b.ctx, w, []byte(value), apply)
		if err == nil {
			b.Fatalf("PutLosingAnswer returned no error: nothing was lost")
		}
		if o := resourceguard.OutcomeOf(err); o != resourceguard.Unknown && o != truth {
			b.Errorf("the outcome of a lost answer is %q, and it was %q: %v", o, truth, err)
		}
		b.wantValue(t.resource, want)
		if b.lacks(Operations) {
			continue
		}
		r, err := s.Put(b.ctx, w, []byte(value))
		if err != nil || r.Replayed != apply {
			b.Errorf("repeated after a lost answer (applied: %v): %+v, %v", apply, r, err)
		}
		b.wantValue(t.resource, value)
	}
}
