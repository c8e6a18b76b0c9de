package guardtest

import "github.com/etcd-fence/etcd-fence/resourceguard"

// policyProperties are about what happens to an equal token.
func policyProperties() []Property {
	return []Property{
		{
			Name:  "RejectsEqualTokenByPolicy",
			Doc:   "one write for each grant means one",
			Needs: []Capability{RejectEqual},
			check: rejectsEqualToken,
		},
		{
			Name:  "OneWriteAmongCompetitors",
			Doc:   "an owner with several goroutines has one write all the same: whoever counts it after the effect admits two",
			Needs: []Capability{RejectEqual},
			check: func(b *bench) {
				s := b.openWith(Config{Policy: resourceguard.RejectEqual})
				b.rounds(s, "one write", briefly, b.oneWriteRound)
			},
		},
		{
			Name:  "AdvanceLeavesTheOneWrite",
			Doc:   "a barrier and a read are no writes: under RejectEqual the write is still to come after them",
			Needs: []Capability{RejectEqual, Marks},
			check: advanceLeavesTheOneWrite,
		},
		{
			Name:  "OwnerMismatch",
			Doc:   "one token from two owners is the trace of an authority that was restored from a backup",
			Needs: []Capability{Owners},
			check: ownerMismatch,
		},
	}
}

func rejectsEqualToken(b *bench) {
	s := b.openWith(Config{Policy: resourceguard.RejectEqual})
	resource, g := b.h.Resource(b, "once", lock), b.h.Grant(b, lock)
	w := g.Write(resource)
	b.put(s, w, "1")
	_, err := s.Put(b.ctx, w, []byte("2"))
	b.wantStale(err, w, g.Token, "a second Put with one token")
	if !b.lacks(Deletes) {
		_, err = s.Delete(b.ctx, w)
		b.wantStale(err, w, g.Token, "Delete with a token that has written")
	}
	b.wantValue(resource, "1")

	next := b.succeed(g)
	b.put(s, next.Write(resource), "2")
	_, err = s.Put(b.ctx, w, []byte("3"))
	b.wantStale(err, w, next.Token, "Put with the old token")
	b.wantValue(resource, "2")

	if !b.lacks(Deletes) {
		deleter := b.succeed(next)
		if _, err := s.Delete(b.ctx, deleter.Write(resource)); err != nil {
			b.Fatalf("Delete with the newest token: %v", err)
		}
		_, err = s.Put(b.ctx, deleter.Write(resource), []byte("3"))
		b.wantStale(err, deleter.Write(resource), deleter.Token, "Put with a token that has deleted")
		b.wantNoValue(resource)
		next = deleter
	}

	if b.lacks(Operations) {
		return
	}
	// The one way to repeat a write whose answer was lost.
	last := b.succeed(next)
	op := operation(last.Write(resource), "once", "d")
	b.put(s, op, "3")
	if r, err := s.Put(b.ctx, op, []byte("3")); err != nil || !r.Replayed {
		b.Errorf("the one write of a grant repeated under its operation ID: %+v, %v, want it replayed", r, err)
	}
	_, err = s.Put(b.ctx, operation(last.Write(resource), "another", "d"), []byte("4"))
	b.wantStale(err, last.Write(resource), last.Token, "a second operation under one token")
	b.wantValue(resource, "3")
}

func advanceLeavesTheOneWrite(b *bench) {
	s := b.openWith(Config{Policy: resourceguard.RejectEqual})
	resource, old := b.h.Resource(b, "advance once", lock), b.h.Grant(b, lock)
	b.put(s, old.Write(resource), "1")
	late := b.succeed(old)
	g := b.succeed(late)
	for range 2 {
		if err := s.Advance(b.ctx, resource, g.Token); err != nil {
			b.Fatalf("Advance with the newest token: %v", err)
		}
		if b.lacks(FencedReads) {
			continue
		}
		if _, _, err := s.Get(b.ctx, g.Write(resource)); err != nil {
			b.Fatalf("Get with the newest token: %v", err)
		}
	}
	// late has not written, but g has been seen.
	_, err := s.Put(b.ctx, late.Write(resource), []byte("5"))
	b.wantError(err, resourceguard.ErrStale, "Put with %s after Advance with %s", late.Token, g.Token)
	b.wantValue(resource, "1")

	b.put(s, g.Write(resource), "2")
	_, err = s.Put(b.ctx, g.Write(resource), []byte("3"))
	b.wantStale(err, g.Write(resource), g.Token, "a second Put with one token, after Advance")
	if err := s.Advance(b.ctx, resource, g.Token); err != nil {
		b.Errorf("Advance with a token that has written: %v", err)
	}
	_, err = s.Put(b.ctx, g.Write(resource), []byte("3"))
	b.wantStale(err, g.Write(resource), g.Token, "Put with a token that has written, after another Advance")
	b.wantValue(resource, "2")
}

func ownerMismatch(b *bench) {
	s := b.open()
	resource, g := b.h.Resource(b, "owner", lock), b.h.Grant(b, lock)
	b.put(s, g.Write(resource), "1")
	other := Grant{Token: g.Token, Owner: g.Owner + " of another life"}
	_, err := s.Put(b.ctx, other.Write(resource), []byte("5"))
	b.wantError(err, resourceguard.ErrOwnerMismatch, "Put by owner %q with the token of %q", other.Owner, g.Owner)
	if !b.lacks(Deletes) {
		_, err = s.Delete(b.ctx, other.Write(resource))
		b.wantError(err, resourceguard.ErrOwnerMismatch, "Delete by owner %q with the token of %q", other.Owner, g.Owner)
	}
	b.wantValue(resource, "1")
	b.put(s, g.Write(resource), "2")
	b.put(s, resourceguard.Write{Resource: resource, Token: g.Token}, "3") // an owner is optional
	_, err = s.Put(b.ctx, other.Write(resource), []byte("5"))
	b.wantError(err, resourceguard.ErrOwnerMismatch, "Put by another owner after a write without an owner")

	// A newer token is a newer owner, and the older one is stale and not a
	// mismatch.
	next := b.succeed(g)
	b.put(s, next.Write(resource), "4")
	_, err = s.Put(b.ctx, g.Write(resource), []byte("5"))
	b.wantStale(err, g.Write(resource), next.Token, "Put with the old token")
	b.wantValue(resource, "4")
	if b.lacks(Marks) {
		return
	}
	// Advance knows no owner; the first write that names one is the owner.
	last := b.succeed(next)
	if err := s.Advance(b.ctx, resource, last.Token); err != nil {
		b.Fatalf("Advance with the newest token: %v", err)
	}
	b.put(s, last.Write(resource), "5")
	_, err = s.Put(b.ctx, Grant{Token: last.Token, Owner: other.Owner}.Write(resource), []byte("6"))
	b.wantError(err, resourceguard.ErrOwnerMismatch, "Put by a second owner after Advance")
	b.wantValue(resource, "5")
}
