package guardtest

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// operationProperties are about repetitions.
func operationProperties() []Property {
	needs := []Capability{Operations}
	return []Property{
		{
			Name:  "RepeatedOperationAppliesOnce",
			Doc:   "whoever did not get the answer asks again, and must not do it again",
			Needs: needs,
			check: repeatedOperation,
		},
		{
			Name:  "OperationWithOtherDigestRefused",
			Doc:   "the saved result of another operation is a wrong answer",
			Needs: needs,
			check: func(b *bench) {
				s := b.open()
				resource, g := b.h.Resource(b, "digest", lock), b.h.Grant(b, lock)
				b.put(s, operation(g.Write(resource), "op", "digest"), "1")
				for _, digest := range []string{"another", "", "digest ", "digesT"} {
					_, err := s.Put(b.ctx, operation(g.Write(resource), "op", digest), []byte("2"))
					b.wantError(err, resourceguard.ErrOperationReused, "Put under a used operation ID with digest %q", digest)
				}
				b.wantValue(resource, "1")
				if r, err := s.Put(b.ctx, operation(g.Write(resource), "op", "digest"), []byte("1")); err != nil || !r.Replayed {
					b.Errorf("the operation repeated as it was: %+v, %v, want it replayed", r, err)
				}
			},
		},
		{
			Name:  "OperationNeverAdmitsOldToken",
			Doc:   "an operation ID says what is asked, not who may ask",
			Needs: needs,
			check: func(b *bench) {
				s := b.open()
				resource, old := b.h.Resource(b, "operation of old", lock), b.h.Grant(b, lock)
				op := operation(old.Write(resource), "op", "d")
				b.put(s, op, "7")
				next := b.succeed(old)
				b.put(s, next.Write(resource), newValue)

				r, err := s.Put(b.ctx, op, []byte("7"))
				b.wantStale(err, op, next.Token, "an applied operation repeated with the old token")
				if r.Replayed || len(r.Value) > 0 {
					b.Errorf("a refused repetition returned %+v", r)
				}
				fresh := operation(old.Write(resource), "fresh", "d")
				_, err = s.Put(b.ctx, fresh, []byte("5"))
				b.wantStale(err, fresh, next.Token, "a fresh operation with the old token")
				b.wantValue(resource, newValue)

				// The refused one left nothing behind that a repetition could find.
				again := operation(next.Write(resource), "fresh", "d")
				if r := b.put(s, again, "9"); r.Replayed {
					b.Errorf("a refused operation is replayed")
				}
			},
		},
		{
			Name:  "StaleRepeatSaysApplied",
			Doc:   "an owner that comes back too late wants to know whether its write had got through before",
			Needs: needs,
			check: staleRepeat,
		},
		{
			Name:  "RepeatByNewerOwnerFencesOlder",
			Doc:   "an answer given to a newer token must not be followed by a write with an older one",
			Needs: needs,
			check: func(b *bench) {
				s := b.open()
				resource, old := b.h.Resource(b, "repeat by newer", lock), b.h.Grant(b, lock)
				first := b.put(s, operation(old.Write(resource), "op", "d"), "7")
				b.put(s, old.Write(resource), "8")
				next := b.succeed(old)
				r, err := s.Put(b.ctx, operation(next.Write(resource), "op", "d"), []byte("7"))
				if err != nil || !r.Replayed || r.Mark != old.Token || !bytes.Equal(r.Value, first.Value) {
					b.Errorf("an operation repeated by a newer owner: %+v, %v, want the result %+v replayed", r, err, first)
				}
				b.wantValue(resource, "8")
				_, err = s.Put(b.ctx, old.Write(resource), []byte("5"))
				b.wantStale(err, old.Write(resource), next.Token, "Put with the old token after the newer owner repeated an operation")
				b.wantValue(resource, "8")
				b.put(s, next.Write(resource), "9")
			},
		},
	}
}

func repeatedOperation(b *bench) {
	s := b.open()
	resource, g := b.h.Resource(b, "repeat", lock), b.h.Grant(b, lock)
	op := operation(g.Write(resource), "op", "d")
	first := b.put(s, op, "1")
	if first.Replayed {
		b.Errorf("a first attempt is replayed")
	}
	b.put(s, g.Write(resource), "2")
	again, err := s.Put(b.ctx, op, []byte("1"))
	if err != nil || !again.Replayed || again.Mark != first.Mark || !bytes.Equal(again.Value, first.Value) {
		b.Errorf("a repetition gave %+v, %v, want %+v replayed", again, err, first)
	}
	b.wantValue(resource, "2")

	// An ID belongs to its resource, and no ID is no operation.
	elsewhere := b.h.Resource(b, "repeat elsewhere", lock)
	if r := b.put(s, operation(g.Write(elsewhere), "op", "d"), "3"); r.Replayed {
		b.Errorf("the operation of one resource is replayed for another")
	}
	for range 2 {
		if r := b.put(s, g.Write(elsewhere), "4"); r.Replayed {
			b.Errorf("a write without an operation is replayed")
		}
	}

	// Attempts at the same time: the sender's impatience does not wait.
	var wg sync.WaitGroup
	var fresh, replayed atomic.Int64
	crowd := operation(g.Write(resource), "crowd", "d")
	for range 8 {
		wg.Go(func() {
			r, err := retried(b, func() (resourceguard.Result, error) { return s.Put(b.ctx, crowd, []byte("5")) })
			switch {
			case err != nil:
				b.Errorf("one of several attempts at the same time: %v", err)
			case r.Replayed:
				replayed.Add(1)
			default:
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 || replayed.Load() != 7 {
		b.Errorf("of 8 attempts at the same time %d were applied and %d replayed, want 1 and 7", fresh.Load(), replayed.Load())
	}
	b.wantValue(resource, "5")
}

func staleRepeat(b *bench) {
	s := b.open()
	resource, old := b.h.Resource(b, "stale repeat", lock), b.h.Grant(b, lock)
	op := operation(old.Write(resource), "op", "d")
	first := b.put(s, op, "7")
	next := b.succeed(old)
	b.put(s, next.Write(resource), newValue)

	_, err := s.Put(b.ctx, op, []byte("7"))
	b.wantStale(err, op, next.Token, "an applied operation repeated with the old token")
	switch saved := applied(err); {
	case saved == nil:
		b.Errorf("StaleError.Applied does not say that the operation had been applied")
	case saved.Mark != old.Token || !bytes.Equal(saved.Value, first.Value):
		b.Errorf("StaleError.Applied is %+v, want the result %+v", *saved, first)
	}
	for _, other := range []resourceguard.Write{
		old.Write(resource),
		operation(old.Write(resource), "never applied", "d"),
		operation(old.Write(resource), "op", "another digest"),
	} {
		_, err := s.Put(b.ctx, other, []byte("5"))
		b.wantStale(err, other, next.Token, "Put with operation %q, digest %q and the old token", other.Operation.ID, other.Operation.Digest)
		if applied(err) != nil {
			b.Errorf("StaleError.Applied says that operation %q, digest %q had been applied, and it was not", other.Operation.ID, other.Operation.Digest)
		}
	}
	b.wantValue(resource, newValue)
}
