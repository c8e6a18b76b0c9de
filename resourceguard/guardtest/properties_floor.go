package guardtest

import (
	"slices"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// floorProperties are about an operator's repairs.
func floorProperties() []Property {
	return []Property{
		{
			Name:  "FloorRaisesAndIsAudited",
			Doc:   "after a resource was restored its mark is too low; raising it by hand leaves a trace, and lowering it is no repair",
			Needs: []Capability{Marks, Floors},
			check: floorRaises,
		},
		{
			Name:  "FloorRepairsPoisonedMark",
			Doc:   "a mark that cannot be real locks everybody out, and is the one thing that may be lowered",
			Needs: []Capability{Marks, Floors, Ceiling},
			check: floorRepairs,
		},
	}
}

func floorRaises(b *bench) {
	s := b.open()
	t := b.takeover(s, "floor")
	last := b.succeed(t.new)
	floor := func(token revisionfence.Token) revisionfence.Mark {
		return revisionfence.Mark{Resource: t.resource, Token: token}
	}

	b.wantError(s.SetFloor(b.ctx, floor(last.Token), ""), resourceguard.ErrInvalid, "SetFloor without a reason")
	b.wantError(s.SetFloor(b.ctx, floor(revisionfence.Token{}), "no token"), resourceguard.ErrNoToken, "SetFloor without a token")
	if !b.lacks(LockBinding) {
		foreign := b.above(b.h.Grant(b, otherLock).Token)
		b.wantError(s.SetFloor(b.ctx, floor(foreign.Token), "wrong lock"), resourceguard.ErrWrongLock, "SetFloor with a token of another lock")
	}
	b.wantStale(s.SetFloor(b.ctx, floor(t.old.Token), "a mistake"), t.old.Write(t.resource), t.new.Token, "SetFloor below the mark")
	b.wantMark(s, t.resource, t.new.Token)
	b.put(s, t.new.Write(t.resource), "9")

	const reason = "restored from the backup of \"Monday\"\nby é"
	for range 2 {
		if err := s.SetFloor(b.ctx, floor(last.Token), reason); err != nil {
			b.Fatalf("SetFloor above the mark: %v", err)
		}
	}
	b.wantMark(s, t.resource, last.Token)
	b.wantValue(t.resource, "9")
	_, err := s.Put(b.ctx, t.new.Write(t.resource), []byte("5"))
	b.wantStale(err, t.new.Write(t.resource), last.Token, "Put with a token below the floor")
	b.put(s, last.Write(t.resource), "10")

	if got := b.h.Reasons(b, t.resource); !slices.Contains(got, reason) {
		b.Errorf("on record for SetFloor are %q, want %q among them", got, reason)
	}

	// Where no mark is, as after a restore from before the first write.
	fresh := b.h.Resource(b, "floor where nothing is", lock)
	if err := s.SetFloor(b.ctx, revisionfence.Mark{Resource: fresh, Token: last.Token}, reason); err != nil {
		b.Fatalf("SetFloor of a resource without a mark: %v", err)
	}
	_, err = b.open().Put(b.ctx, t.new.Write(fresh), []byte("5"))
	b.wantStale(err, t.new.Write(fresh), last.Token, "Put with a token below the first floor, in another process")
	b.wantNoValue(fresh)
}

func floorRepairs(b *bench) {
	if b.h.realTokensOnly() {
		b.Logf("a forged token cannot become the mark of this guard")
		return
	}
	resource, g := b.h.Resource(b, "poisoned", lock), b.h.Grant(b, lock)
	forged := b.above(g.Token)
	b.put(b.open(), forged.Write(resource), "5")

	s := b.openWith(Config{Ceiling: g.Token})
	_, err := s.Put(b.ctx, g.Write(resource), []byte("7"))
	b.wantStale(err, g.Write(resource), forged.Token, "Put with the real token below a poisoned mark")
	poison := revisionfence.Mark{Resource: resource, Token: b.above(forged.Token).Token}
	b.wantError(s.SetFloor(b.ctx, poison, "more of it"), resourceguard.ErrImplausible, "SetFloor above the ceiling")
	floor := revisionfence.Mark{Resource: resource, Token: g.Token}
	if err := s.SetFloor(b.ctx, floor, "a forged token was written"); err != nil {
		b.Fatalf("SetFloor to repair a mark above the ceiling: %v", err)
	}
	b.wantMark(s, resource, g.Token)
	b.put(s, g.Write(resource), "7")
}
