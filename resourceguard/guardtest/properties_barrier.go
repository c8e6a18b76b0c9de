package guardtest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// barrierProperties are about a new owner that reads before it writes.
func barrierProperties() []Property {
	return []Property{
		{
			Name:  "AdvanceFencesBeforeFirstWrite",
			Doc:   "a new owner reads before it writes, and what it read must not change any more",
			Needs: []Capability{Marks},
			check: func(b *bench) {
				s := b.open()
				resource, old := b.h.Resource(b, "advance", lock), b.h.Grant(b, lock)
				b.put(s, old.Write(resource), "7")
				next := b.succeed(old)
				for range 2 {
					if err := s.Advance(b.ctx, resource, next.Token); err != nil {
						b.Fatalf("Advance with the newest token: %v", err)
					}
				}
				b.wantMark(s, resource, next.Token)
				_, err := s.Put(b.ctx, old.Write(resource), []byte("5"))
				b.wantStale(err, old.Write(resource), next.Token, "Put with the old token after the new owner advanced")
				b.wantValue(resource, "7")
				b.put(s, next.Write(resource), "8")

				fresh := b.h.Resource(b, "advance where nothing is", lock)
				if err := s.Advance(b.ctx, fresh, next.Token); err != nil {
					b.Fatalf("Advance of a resource without a mark: %v", err)
				}
				b.wantNoValue(fresh)
				_, err = s.Put(b.ctx, old.Write(fresh), []byte("5"))
				b.wantStale(err, old.Write(fresh), next.Token, "Put with the old token after the first mark")
				b.wantNoValue(fresh)
			},
		},
		{
			Name:  "AdvanceHoldsOtherProcessesOff",
			Doc:   "the old owner is another process, and without the barrier its writes go on: who reads first loses an update",
			Needs: []Capability{Marks},
			check: advanceHoldsOthersOff,
		},
		{
			Name:  "AdvanceSettlesWhatIsRead",
			Doc:   "a write that was under way when the barrier came must not land after what is read then",
			Needs: []Capability{Marks},
			check: func(b *bench) {
				s := b.open()
				if slow, ok := s.(SlowPutter); ok {
					b.settled(s, slow)
				} else {
					b.Logf("the subject is no SlowPutter: tried with competing writers only")
				}
				b.rounds(s, "settled", briefly, b.settledRound)
			},
		},
		{
			Name:  "AdvanceIsOneStep",
			Doc:   "a barrier that compares first and stores later can lower the mark that a newer owner has set meanwhile",
			Needs: []Capability{Marks},
			check: func(b *bench) { b.rounds(b.open(), "advance", briefly, b.advanceRound) },
		},
	}
}

// advanceHoldsOthersOff has two processes: that of the old owner, and that of the
// new one. Both count what they know of.
func advanceHoldsOthersOff(b *bench) {
	theirs, mine := b.open(), b.open()
	update := func(s Subject, g Grant, resource, known string) error {
		_, err := s.Put(b.ctx, g.Write(resource), []byte(known+"+1"))
		return err
	}
	if !b.h.AuthorityChecked {
		// The documented hazard, which a guard cannot take away from an owner that
		// does not come to it: if this did not happen, then the guard would not be
		// one that decides by its mark, as it declares.
		resource, old := b.h.Resource(b, "read before the barrier", lock), b.h.Grant(b, lock)
		b.put(theirs, old.Write(resource), "7")
		next := b.succeed(old)
		known, _ := b.h.Read(b, resource)
		if err := update(theirs, old, resource, "7"); err != nil {
			b.Errorf("Put with the old token before the new owner came: %v, want it accepted, since AuthorityChecked is not declared", err)
		}
		if err := update(mine, next, resource, string(known)); err != nil {
			b.Errorf("Put with the newest token: %v", err)
		}
		b.wantValue(resource, "7+1") // of two updates
		b.end(next)
	}

	resource, old := b.h.Resource(b, "read after the barrier", lock), b.h.Grant(b, lock)
	b.put(theirs, old.Write(resource), "7")
	if err := update(theirs, old, resource, "7"); err != nil {
		b.Fatalf("Put with the only token: %v", err)
	}
	next := b.succeed(old)
	if err := mine.Advance(b.ctx, resource, next.Token); err != nil {
		b.Fatalf("Advance with the newest token: %v", err)
	}
	if b.h.Restart != nil {
		b.h.Restart(b)
		theirs, mine = b.open(), b.open()
	}
	known, _ := b.h.Read(b, resource)
	err := update(theirs, old, resource, "7+1")
	b.wantStale(err, old.Write(resource), next.Token, "Put with the old token, in another process, after the new owner advanced")
	if err := update(mine, next, resource, string(known)); err != nil {
		b.Errorf("Put with the newest token: %v", err)
	}
	b.wantValue(resource, "7+1+1")
}

// settled holds a write of the old owner up until a newer owner has advanced and
// read, or has had the time for it.
func (b *bench) settled(s Subject, slow SlowPutter) {
	resource, old := b.h.Resource(b, "settled", lock), b.h.Grant(b, lock)
	b.put(s, old.Write(resource), "7")

	var once sync.Once
	var next Grant
	var read string
	var barrier error
	done := make(chan struct{})
	_, err := slow.PutSlowly(b.ctx, old.Write(resource), []byte("5"), func() {
		once.Do(func() {
			go func() {
				defer close(done)
				next = b.succeed(old)
				if barrier = b.advance(b.ctx, s, resource, next); barrier == nil {
					value, _ := b.h.Read(b, resource)
					read = string(value)
				}
			}()
		})
		wait(b.ctx, done, meanwhile)
	})
	once.Do(func() {
		close(done)
		b.Fatalf("the slow write did not call during: %v", err)
	})
	wait(b.ctx, done, perProperty)
	if barrier != nil {
		b.Fatalf("Advance with the newer token while an older write was held up: %v", barrier)
	}
	if err != nil && resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		b.Errorf("a write that was overtaken by a barrier: %q with outcome %q, want %q", err, resourceguard.OutcomeOf(err), resourceguard.NotApplied)
	}
	b.wantValue(resource, read)
	b.put(s, next.Write(resource), newValue)
	b.end(next)
}

// settledRound lets an old owner write as fast as it can, a different value each
// time, while a newer one advances and reads.
func (b *bench) settledRound(s Subject, resource string) {
	old := b.h.Grant(b, lock)
	b.put(s, old.Write(resource), stamp(old.Token))
	var n atomic.Int64
	olds, takenOver := b.untilRefused(old, func() error {
		_, err := s.Put(b.ctx, old.Write(resource), fmt.Appendf(nil, "write %d", n.Add(1)))
		return err
	})
	next := b.succeed(old)
	if err := b.advance(b.ctx, s, resource, next); err != nil {
		b.Errorf("Advance with the newest token among competitors: %v", err)
	}
	value, _ := b.h.Read(b, resource)
	takenOver.Store(true)
	olds.Wait()
	after, _ := b.h.Read(b, resource)
	if !bytes.Equal(after, value) {
		b.Errorf("the new owner advanced and read %q, and then an old write made it %q", value, after)
	}
	b.end(next)
}
