package guardtest

import (
	"fmt"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// tokenProperties are about which token passes.
func tokenProperties() []Property {
	return []Property{
		{
			Name: "AcceptsEqualToken",
			Doc:  "an owner writes any number of times under one grant",
			check: func(b *bench) {
				s := b.open()
				resource, g := b.h.Resource(b, "equal", lock), b.h.Grant(b, lock)
				for _, value := range []string{"1", "2", "3"} {
					if r := b.put(s, g.Write(resource), value); r.Mark != g.Token || r.Replayed {
						b.Errorf("the result is %+v, want mark %s and not replayed", r, g.Token)
					}
				}
				b.wantMark(s, resource, g.Token)
			},
		},
		{
			Name: "AcceptsNewerAfterGap",
			Doc:  "tokens between that never wrote to this resource are not waited for",
			check: func(b *bench) {
				s := b.open()
				resource, g := b.h.Resource(b, "gap", lock), b.h.Grant(b, lock)
				b.put(s, g.Write(resource), "1")
				for range 5 {
					g = b.succeed(g)
				}
				b.put(s, g.Write(resource), "2")
				b.wantMark(s, resource, g.Token)
			},
		},
		{
			Name:  "RejectsStaleToken",
			Doc:   "the one thing a guard is for; the refusal says who won, and it is neither a time-out nor silence",
			check: rejectsStaleToken,
		},
		{
			Name: "StaleLeavesResourceUnchanged",
			Doc:  "an error beside an effect is worse than neither",
			check: func(b *bench) {
				s := b.open()
				t := b.takeover(s, "unchanged")
				_, _ = s.Put(b.ctx, t.old.Write(t.resource), []byte("5"))
				b.wantValue(t.resource, newValue)
				if !b.lacks(Deletes) {
					_, _ = s.Delete(b.ctx, t.old.Write(t.resource))
					b.wantValue(t.resource, newValue)
				}
				b.put(s, t.new.Write(t.resource), "9")
			},
		},
		{
			Name: "RejectsZeroToken",
			Doc:  "a caller that forgot the token must not pass as the first owner",
			check: func(b *bench) {
				s := b.open()
				fresh := b.h.Resource(b, "zero", lock)
				_, err := s.Put(b.ctx, resourceguard.Write{Resource: fresh}, []byte("5"))
				b.wantError(err, resourceguard.ErrNoToken, "Put without a token")
				b.wantNoValue(fresh)

				t := b.takeover(s, "zero after others")
				_, err = s.Put(b.ctx, resourceguard.Write{Resource: t.resource, Owner: t.new.Owner}, []byte("5"))
				b.wantError(err, resourceguard.ErrNoToken, "Put without a token after others")
				if !b.lacks(Deletes) {
					_, err = s.Delete(b.ctx, resourceguard.Write{Resource: t.resource})
					b.wantError(err, resourceguard.ErrNoToken, "Delete without a token")
				}
				if !b.lacks(FencedReads) {
					_, _, err = s.Get(b.ctx, resourceguard.Write{Resource: t.resource})
					b.wantError(err, resourceguard.ErrNoToken, "Get without a token")
				}
				if !b.lacks(Marks) {
					err = s.Advance(b.ctx, t.resource, revisionfence.Token{})
					b.wantError(err, resourceguard.ErrNoToken, "Advance without a token")
				}
				b.wantValue(t.resource, newValue)
			},
		},
		{
			Name:  "RejectsOtherLockEvenIfLarger",
			Doc:   "tokens of two locks have no order, and the first to come does not bind the resource",
			Needs: []Capability{LockBinding},
			check: rejectsOtherLock,
		},
		{
			Name:  "RejectsImplausible",
			Doc:   "a token that nobody can have been granted must not lock everybody else out",
			Needs: []Capability{Ceiling},
			check: rejectsImplausible,
		},
		{
			Name:  "EndedGrantAsDeclared",
			Doc:   "a guard either asks the authority in the same step, or decides alone; half of it protects nobody",
			check: endedGrant,
		},
		{
			Name:  "StaleReadRefused",
			Doc:   "what a new owner has read under its token must not change behind its back",
			Needs: []Capability{FencedReads},
			check: staleRead,
		},
	}
}

func rejectsStaleToken(b *bench) {
	s := b.open()
	t := b.takeover(s, "stale")
	w := t.old.Write(t.resource)
	_, err := s.Put(b.ctx, w, []byte("5"))
	b.wantStale(err, w, t.new.Token, "Put with the old token")
	if !b.lacks(Deletes) {
		_, err = s.Delete(b.ctx, w)
		b.wantStale(err, w, t.new.Token, "Delete with the old token")
	}
	if b.h.realTokensOnly() {
		return
	}
	// Neighbours that a comparison of texts, of revisions without the epoch, or of
	// rounded numbers gets wrong.
	const top = revisionfence.MaxEpoch
	for i, pair := range [][2]Grant{
		{b.forge(lock, 0, 9), b.forge(lock, 0, 10)},
		{b.forge(lock, 0, 99), b.forge(lock, 0, 100)},
		{b.forge(lock, 0, 1<<31-1), b.forge(lock, 0, 1<<31)},
		{b.forge(lock, 0, 1<<32-1), b.forge(lock, 0, 1<<32)},
		{b.forge(lock, 0, revisionfence.MaxRevision), b.forge(lock, 1, 1)},
		{b.forge(lock, 9, 7), b.forge(lock, 10, 3)},
		{b.forge(lock, top, 1<<40), b.forge(lock, top, 1<<40+1)},
		{b.forge(lock, top, revisionfence.MaxRevision-1), b.forge(lock, top, revisionfence.MaxRevision)},
	} {
		older, newer := pair[0], pair[1]
		resource := b.h.Resource(b, fmt.Sprintf("stale by a little %d", i), lock)
		b.put(s, older.Write(resource), "7")
		b.put(s, newer.Write(resource), newValue)
		_, err := s.Put(b.ctx, older.Write(resource), []byte("5"))
		b.wantStale(err, older.Write(resource), newer.Token, "Put with %s after %s", older.Token, newer.Token)
	}
}

func rejectsOtherLock(b *bench) {
	s := b.open()
	t := b.takeover(s, "bound")
	fresh := b.h.Resource(b, "bound and fresh", lock)
	foreign := b.h.Grant(b, otherLock)
	for foreign.Token.Int64() <= t.new.Token.Int64() {
		foreign = b.succeed(foreign)
	}
	for _, resource := range []string{t.resource, fresh} {
		_, err := s.Put(b.ctx, foreign.Write(resource), []byte("5"))
		b.wantError(err, resourceguard.ErrWrongLock, "Put with %s", foreign.Token)
		if !b.lacks(Deletes) {
			_, err = s.Delete(b.ctx, foreign.Write(resource))
			b.wantError(err, resourceguard.ErrWrongLock, "Delete with %s", foreign.Token)
		}
		// Where a read stores no mark, that of another lock's owner harms nobody.
		if !b.lacks(FencedReads) && !b.h.AuthorityChecked {
			_, _, err = s.Get(b.ctx, foreign.Write(resource))
			b.wantError(err, resourceguard.ErrWrongLock, "Get with %s", foreign.Token)
		}
		if !b.lacks(Marks) {
			err = s.Advance(b.ctx, resource, foreign.Token)
			b.wantError(err, resourceguard.ErrWrongLock, "Advance with %s", foreign.Token)
		}
	}
	b.wantValue(t.resource, newValue)
	b.wantMark(s, t.resource, t.new.Token)
	b.wantNoValue(fresh)
	b.wantMark(s, fresh, revisionfence.Token{})
	b.put(s, t.new.Write(t.resource), "9")
}

func rejectsImplausible(b *bench) {
	resource, g := b.h.Resource(b, "implausible", lock), b.h.Grant(b, lock)
	s := b.openWith(Config{Ceiling: g.Token})
	for _, forged := range []Grant{
		b.forge(lock, g.Token.Epoch(), g.Token.Revision()+1),
		b.above(g.Token),
		b.forge(lock, g.Token.Epoch()+1, 1),
		b.forge(lock, revisionfence.MaxEpoch, revisionfence.MaxRevision),
	} {
		w := forged.Write(resource)
		_, err := s.Put(b.ctx, w, []byte("5"))
		b.wantImplausible(err, w, g.Token, "Put")
		if !b.lacks(Deletes) {
			_, err = s.Delete(b.ctx, w)
			b.wantImplausible(err, w, g.Token, "Delete")
		}
		if !b.lacks(FencedReads) {
			_, _, err = s.Get(b.ctx, w)
			b.wantImplausible(err, w, g.Token, "Get")
		}
		if !b.lacks(Marks) {
			err = s.Advance(b.ctx, resource, forged.Token)
			b.wantError(err, resourceguard.ErrImplausible, "Advance with %s above the ceiling %s", forged.Token, g.Token)
		}
		b.wantNoValue(resource)
	}
	b.wantMark(s, resource, revisionfence.Token{})
	b.put(s, g.Write(resource), "1")
}

// wantImplausible checks the refusal of a token that nobody was granted.
func (b *bench) wantImplausible(err error, w resourceguard.Write, ceiling revisionfence.Token, call string) {
	b.Helper()
	if b.h.AuthorityChecked && err != nil {
		// Nobody holds it, and that is all the authority can say.
		b.wantStale(err, w, ceiling, "%s with %s, which nobody was granted", call, w.Token)
		return
	}
	b.wantError(err, resourceguard.ErrImplausible, "%s with %s above the ceiling %s", call, w.Token, ceiling)
}

func endedGrant(b *bench) {
	s := b.open()
	resource, g := b.h.Resource(b, "ended", lock), b.h.Grant(b, lock)
	b.put(s, g.Write(resource), "7")
	b.end(g)
	if b.h.AuthorityChecked {
		_, err := s.Put(b.ctx, g.Write(resource), []byte("5"))
		b.wantStale(err, g.Write(resource), revisionfence.Token{}, "Put after the grant has ended, before anybody else has the lock")
		b.wantValue(resource, "7")
		return
	}
	b.put(s, g.Write(resource), "8")
	// Somebody else holds the lock now, and has not been here yet.
	next := b.h.Grant(b, lock)
	b.put(s, g.Write(resource), "9")
	b.put(s, next.Write(resource), "10")
}

func staleRead(b *bench) {
	s := b.open()
	t := b.takeover(s, "read")
	value, exists, err := s.Get(b.ctx, t.new.Write(t.resource))
	if err != nil || !exists || string(value) != newValue {
		b.Errorf("Get with the newest token: %q, %v, %v, want %q", value, exists, err, newValue)
	}
	_, _, err = s.Get(b.ctx, t.old.Write(t.resource))
	b.wantStale(err, t.old.Write(t.resource), t.new.Token, "Get with the old token")

	// A read holds older owners off just as a write does.
	reader := b.succeed(t.new)
	if _, _, err = s.Get(b.ctx, reader.Write(t.resource)); err != nil {
		b.Errorf("Get with the newest token: %v", err)
	}
	_, err = s.Put(b.ctx, t.new.Write(t.resource), []byte("5"))
	b.wantStale(err, t.new.Write(t.resource), reader.Token, "Put with a token older than that of a read")
	b.wantValue(t.resource, newValue)

	fresh := b.h.Resource(b, "read and fresh", lock)
	if value, exists, err := s.Get(b.ctx, reader.Write(fresh)); err != nil || exists {
		b.Errorf("Get of a resource without a value: %q, %v, %v, want none", value, exists, err)
	}
}
