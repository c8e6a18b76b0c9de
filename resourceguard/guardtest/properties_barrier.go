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
				b.settles("settled", func(s Subject, resource string, g Grant) ([]byte, error) {
					err := s.Advance(b.ctx, resource, g.Token)
					value, _ := b.h.Read(b, resource)
					return value, err
				})
			},
		},
		{
			Name:  "FencedReadSettlesWhatIsRead",
			Doc:   "a read under a token is a barrier: a write that was under way must not land after it",
			Needs: []Capability{FencedReads},
			check: func(b *bench) {
				b.settles("settled by a read", func(s Subject, resource string, g Grant) ([]byte, error) {
					value, _, err := s.Get(b.ctx, g.Write(resource))
					return value, err
				})
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

// reader is a new owner that reads behind a barrier. It may be blocked.
type reader func(s Subject, resource string, g Grant) ([]byte, error)

func (b *bench) settles(name string, read reader) {
	s := b.open()
	patient := func(s Subject, resource string, g Grant) (value []byte, err error) {
		_, err = retried(b, func() (resourceguard.Result, error) {
			value, err = read(s, resource, g)
			return resourceguard.Result{}, err
		})
		return value, err
	}
	if slow, ok := s.(SlowPutter); ok {
		b.settled(s, slow, name, patient)
	} else {
		b.Logf("the subject is no SlowPutter: tried with competing writers only")
	}
	b.rounds(s, name, briefly, func(s Subject, resource string) { b.settledRound(s, resource, patient) })
}

// settled holds a write of the old owner up until a newer owner has read behind a
// barrier, or has had the time for it.
func (b *bench) settled(s Subject, slow SlowPutter, name string, behind reader) {
	resource, old := b.h.Resource(b, name, lock), b.h.Grant(b, lock)
	b.put(s, old.Write(resource), "7")

	var once sync.Once
	var next Grant
	var read []byte
	var barrier error
	done := make(chan struct{})
	_, err := slow.PutSlowly(b.ctx, old.Write(resource), []byte("5"), func() {
		once.Do(func() {
			go func() {
				defer close(done)
				next = b.succeed(old)
				read, barrier = behind(s, resource, next)
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
		b.Fatalf("the barrier of the newer token while an older write was held up: %v", barrier)
	}
	if err != nil && resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		b.Errorf("a write that was overtaken by a barrier: %q with outcome %q, want %q", err, resourceguard.OutcomeOf(err), resourceguard.NotApplied)
	}
	b.wantValue(resource, string(read))
	b.put(s, next.Write(resource), newValue)
	b.end(next)
}

// settledRound lets an old owner write as fast as it can, a different value each
// time, while a newer one reads behind a barrier.
func (b *bench) settledRound(s Subject, resource string, behind reader) {
	old := b.h.Grant(b, lock)
	b.put(s, old.Write(resource), stamp(old.Token))
	var n atomic.Int64
	olds, takenOver := b.untilRefused(old, func() error {
		_, err := s.Put(b.ctx, old.Write(resource), fmt.Appendf(nil, "write %d", n.Add(1)))
		return err
	})
	next := b.succeed(old)
	value, err := behind(s, resource, next)
	if err != nil {
		b.Errorf("the barrier of the newest token among competitors: %v", err)
	}
	takenOver.Store(true)
	olds.Wait()
	after, _ := b.h.Read(b, resource)
	if !bytes.Equal(after, value) {
		b.Errorf("behind its barrier the new owner read %q, and then an old write made it %q", value, after)
	}
	b.end(next)
}
