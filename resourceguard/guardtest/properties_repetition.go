package guardtest

import (
	"strings"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// repetitionProperties are about what is one operation, and who may repeat it.
func repetitionProperties() []Property {
	return []Property{
		{
			Name:  "OperationIDsAreDistinct",
			Doc:   "an ID that is folded, cut or run together with the resource's name answers for another operation, which then never happens",
			Needs: []Capability{Operations},
			check: operationIDs,
		},
		{
			Name:  "RepeatedDeleteAppliesOnce",
			Doc:   "a deletion that is repeated must not take away what was written since",
			Needs: []Capability{Operations, Deletes},
			check: repeatedDelete,
		},
		{
			Name:  "OperationAdmitsNoOtherToken",
			Doc:   "whatever is known of the operation, a token that is none, of another lock or of nobody opens no door, and neither does a mark that cannot be read",
			Needs: []Capability{Operations},
			check: operationAdmitsNoOtherToken,
		},
		{
			Name:  "OperationAdmitsNoOtherOwner",
			Doc:   "two owners of one token are the trace of a restore, also when one of them asks for what the other did",
			Needs: []Capability{Operations, Owners},
			check: func(b *bench) {
				s := b.open()
				resource, g := b.h.Resource(b, "operation of another owner", lock), b.h.Grant(b, lock)
				op := operation(g.Write(resource), "op", "d")
				b.put(s, op, "1")
				other := op
				other.Owner = g.Owner + " of another life"
				r, err := s.Put(b.ctx, other, []byte("1"))
				b.wantError(err, resourceguard.ErrOwnerMismatch, "an operation repeated by owner %q with the token of %q", other.Owner, g.Owner)
				if r.Replayed || len(r.Value) > 0 {
					b.Errorf("a refused repetition returned %+v", r)
				}
				if r, err := s.Put(b.ctx, op, []byte("1")); err != nil || !r.Replayed {
					b.Errorf("the operation repeated by its owner: %+v, %v, want it replayed", r, err)
				}
			},
		},
	}
}

func operationIDs(b *bench) {
	s := b.open()
	g := b.h.Grant(b, lock)
	long := strings.Repeat("x", resourceguard.MaxOperationID-1)
	type place struct{ resource, id string }
	one := b.h.Resource(b, "ids", lock)
	var places []place
	for _, id := range []string{
		"op", "OP", "op ", " op", "op/", "op/1", "op%2F1", `op\`, "op'", `op"`, "o_", "o%", "o*", "*",
		"\u00e9", "e\u0301", "e", "1", "01", "1.0", "😀", "😁", long + "y", long + "z", long,
	} {
		places = append(places, place{one, id})
	}
	// There is more than one way to make a name and an ID into one text.
	for _, p := range []place{{"ids/a", "b/c"}, {"ids/a/b", "c"}, {"ids", "a/b/c"}, {"ids:a", "b"}, {"ids", "a:b"}} {
		if p.resource == "ids" {
			p.resource = one
		} else {
			p.resource = b.h.Resource(b, p.resource, lock)
		}
		places = append(places, p)
	}
	for _, p := range places {
		if r := b.put(s, operation(g.Write(p.resource), p.id, "d"), "first "+p.id); r.Replayed {
			b.Errorf("operation %.40q of resource %q is replayed, and it is new", p.id, p.resource)
		}
	}
	for _, p := range places {
		if r, err := s.Put(b.ctx, operation(g.Write(p.resource), p.id, "d"), []byte("again")); err != nil || !r.Replayed {
			b.Errorf("operation %.40q of resource %q repeated: %+v, %v, want it replayed", p.id, p.resource, r, err)
		}
	}
	tooLong := operation(g.Write(one), long+"yy", "d")
	_, err := s.Put(b.ctx, tooLong, []byte("5"))
	b.wantError(err, resourceguard.ErrInvalid, "Put under an operation ID of %d bytes", len(tooLong.Operation.ID))
}

func repeatedDelete(b *bench) {
	s := b.open()
	resource, g := b.h.Resource(b, "repeat deletion", lock), b.h.Grant(b, lock)
	b.put(s, g.Write(resource), "1")
	op := operation(g.Write(resource), "tidy up", "d")
	if r, err := s.Delete(b.ctx, op); err != nil || r.Replayed {
		b.Fatalf("Delete under an operation: %+v, %v", r, err)
	}
	b.wantNoValue(resource)
	b.put(s, g.Write(resource), "2")
	r, err := s.Delete(b.ctx, op)
	if err != nil || !r.Replayed || r.Mark != g.Token {
		b.Errorf("Delete repeated: %+v, %v, want it replayed", r, err)
	}
	b.wantValue(resource, "2")

	next := b.succeed(g)
	b.put(s, next.Write(resource), "3")
	_, err = s.Delete(b.ctx, op)
	b.wantStale(err, op, next.Token, "an applied Delete repeated with the old token")
	if applied(err) == nil {
		b.Errorf("StaleError.Applied does not say that the Delete had been applied")
	}
	b.wantValue(resource, "3")
}

func operationAdmitsNoOtherToken(b *bench) {
	resource, g := b.h.Resource(b, "operation of nobody", lock), b.h.Grant(b, lock)
	var c Config
	if !b.lacks(Ceiling) {
		c.Ceiling = g.Token
	}
	s := b.openWith(c)
	op := operation(g.Write(resource), "op", "d")
	b.put(s, op, "1")
	repeat := func(s Subject, as Grant) (resourceguard.Write, error) {
		w := op
		w.Token, w.Owner = as.Token, as.Owner
		r, err := s.Put(b.ctx, w, []byte("1"))
		if r.Replayed || len(r.Value) > 0 {
			b.Errorf("a repetition with token %q returned %+v", w.Token, r)
		}
		return w, err
	}
	_, err := repeat(s, Grant{Token: revisionfence.Token{}, Owner: g.Owner})
	b.wantError(err, resourceguard.ErrNoToken, "an applied operation repeated without a token")
	if !b.lacks(Ceiling) {
		w, err := repeat(s, b.above(g.Token))
		b.wantImplausible(err, w, g.Token, "an applied operation repeated")
		b.wantMark(s, resource, g.Token)
		// Nor does it leave anything behind that a real one could find.
		forged := operation(b.above(g.Token).Write(resource), "forged", "d")
		_, err = s.Put(b.ctx, forged, []byte("5"))
		b.wantImplausible(err, forged, g.Token, "a fresh operation")
		if r := b.put(s, operation(g.Write(resource), "forged", "d"), "2"); r.Replayed {
			b.Errorf("a refused operation is replayed")
		}
	}
	if !b.lacks(LockBinding) {
		foreign := b.h.Grant(b, otherLock)
		// Its token is larger and no less real, so that no ceiling may refuse it.
		_, err := repeat(b.open(), foreign)
		b.wantError(err, resourceguard.ErrWrongLock, "an applied operation repeated with %s", foreign.Token)
		b.end(foreign)
	}
	if !b.lacks(Marks) {
		b.h.CorruptMark(b, resource)
		_, err := repeat(s, g)
		b.wantError(err, resourceguard.ErrCorruptMark, "an applied operation repeated over an unreadable mark")
	}
}
