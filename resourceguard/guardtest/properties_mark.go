package guardtest

import (
	"context"
	"errors"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// markProperties are about what becomes of the mark.
func markProperties() []Property {
	return []Property{
		{
			Name:  "MarkSurvivesDelete",
			Doc:   "otherwise an old owner could bring a deleted value back",
			Needs: []Capability{Deletes},
			check: func(b *bench) {
				s := b.open()
				t := b.takeover(s, "delete")
				if _, err := s.Delete(b.ctx, t.new.Write(t.resource)); err != nil {
					b.Fatalf("Delete with the newest token: %v", err)
				}
				b.wantNoValue(t.resource)
				b.wantMark(s, t.resource, t.new.Token)
				_, err := s.Put(b.ctx, t.old.Write(t.resource), []byte("5"))
				b.wantStale(err, t.old.Write(t.resource), t.new.Token, "Put with the old token after the newer owner deleted")
				b.wantNoValue(t.resource)
				b.put(s, t.new.Write(t.resource), "9")

				// Deleting is a write of its own, also where nothing is deleted.
				empty := b.h.Resource(b, "delete nothing", lock)
				if _, err := s.Delete(b.ctx, t.new.Write(empty)); err != nil {
					b.Fatalf("Delete of a resource without a value: %v", err)
				}
				_, err = s.Put(b.ctx, t.old.Write(empty), []byte("5"))
				b.wantStale(err, t.old.Write(empty), t.new.Token, "Put with the old token after a newer owner deleted nothing")
			},
		},
		{
			Name:  "MarkNeverLowered",
			Doc:   "a refused token must not become the mark, by whichever call it came",
			Needs: []Capability{Marks},
			check: func(b *bench) {
				s := b.open()
				t := b.takeover(s, "never lowered")
				w := t.old.Write(t.resource)
				_, _ = s.Put(b.ctx, w, []byte("5"))
				b.wantMark(s, t.resource, t.new.Token)
				if !b.lacks(Deletes) {
					_, _ = s.Delete(b.ctx, w)
					b.wantMark(s, t.resource, t.new.Token)
				}
				if !b.lacks(FencedReads) {
					_, _, _ = s.Get(b.ctx, w)
					b.wantMark(s, t.resource, t.new.Token)
				}
				b.wantStale(s.Advance(b.ctx, t.resource, t.old.Token), w, t.new.Token, "Advance with the old token")
				b.wantMark(s, t.resource, t.new.Token)
				_, err := s.Put(b.ctx, w, []byte("5"))
				b.wantStale(err, w, t.new.Token, "a second Put with the old token")
			},
		},
		{
			Name:  "UnreadableMarkRefusesWrites",
			Doc:   "damage is not \"no mark\": nobody knows any more who may write",
			Needs: []Capability{Marks},
			check: unreadableMark,
		},
		{
			Name:  "MarksListsAll",
			Doc:   "an operator compares them all with what the authority will issue next",
			Needs: []Capability{Marks},
			check: marksListsAll,
		},
		{
			Name:  "ReopenKeepsMarks",
			Doc:   "an old owner outlives a restart of the guard",
			check: reopenKeepsMarks,
		},
		{
			Name: "ResourcesAreIndependent",
			Doc:  "one lock may guard many resources; what happened to one says nothing about another, however similar the names",
			check: func(b *bench) {
				s := b.open()
				old := b.h.Grant(b, lock)
				names := []string{"a", "a/", "a/b", "A", "a ", "a%2Fb", "\u00e9", "e\u0301", "日本", "日本 ", "😀", "😁", "a'b", `a"b`, "a*", "a?", "_", "%"}
				resources := make([]string, len(names))
				for i, name := range names {
					resources[i] = b.h.Resource(b, name, lock)
					b.put(s, old.Write(resources[i]), name)
				}
				next := b.succeed(old)
				for i := range names {
					b.put(s, next.Write(resources[i]), "new "+names[i])
					for j := i + 1; j < len(names); j++ {
						b.wantMark(s, resources[j], old.Token)
						b.wantValue(resources[j], names[j])
					}
				}
			},
		},
	}
}

func unreadableMark(b *bench) {
	s := b.open()
	t := b.takeover(s, "unreadable")
	b.h.CorruptMark(b, t.resource)
	newest := b.succeed(t.new)
	for _, g := range []Grant{t.old, t.new, newest} {
		_, err := s.Put(b.ctx, g.Write(t.resource), []byte("5"))
		b.wantError(err, resourceguard.ErrCorruptMark, "Put with %s over an unreadable mark", g.Token)
		if !b.lacks(Deletes) {
			_, err = s.Delete(b.ctx, g.Write(t.resource))
			b.wantError(err, resourceguard.ErrCorruptMark, "Delete with %s over an unreadable mark", g.Token)
		}
		if !b.lacks(FencedReads) {
			_, _, err = s.Get(b.ctx, g.Write(t.resource))
			b.wantError(err, resourceguard.ErrCorruptMark, "Get with %s over an unreadable mark", g.Token)
		}
		b.wantError(s.Advance(b.ctx, t.resource, g.Token), resourceguard.ErrCorruptMark, "Advance with %s over an unreadable mark", g.Token)
	}
	b.wantValue(t.resource, newValue)
	if m, ok, err := s.Mark(b.ctx, t.resource); !errors.Is(err, resourceguard.ErrCorruptMark) {
		b.Errorf("Mark of an unreadable mark: %v, %v, %v, want %q", m, ok, err, resourceguard.ErrCorruptMark)
	}
	if b.lacks(Floors) {
		return
	}
	floor := revisionfence.Mark{Resource: t.resource, Token: t.new.Token}
	if err := s.SetFloor(b.ctx, floor, "the disk of the resource was damaged"); err != nil {
		b.Fatalf("SetFloor to repair an unreadable mark: %v", err)
	}
	_, err := s.Put(b.ctx, t.old.Write(t.resource), []byte("5"))
	b.wantStale(err, t.old.Write(t.resource), t.new.Token, "Put with the old token after the repair")
	b.put(s, newest.Write(t.resource), "9")
}

func marksListsAll(b *bench) {
	s := b.open()
	g := b.h.Grant(b, lock)
	want := make(map[string]revisionfence.Token)
	for _, name := range []string{"list 1", "list 2", "list 3"} {
		resource := b.h.Resource(b, name, lock)
		b.put(s, g.Write(resource), "1")
		want[resource] = g.Token
		g = b.succeed(g)
	}
	damaged := b.h.Resource(b, "list 2 damaged", lock)
	b.put(s, g.Write(damaged), "1")
	b.h.CorruptMark(b, damaged)

	seen := make(map[string]int)
	for m, err := range s.Marks(b.ctx) {
		token, ours := want[m.Resource]
		seen[m.Resource]++
		switch {
		case m.Resource == damaged:
			b.wantError(err, resourceguard.ErrCorruptMark, "Marks at %q, which is damaged", damaged)
		case err != nil:
			b.Errorf("Marks at %q: %v", m.Resource, err)
		case ours && token != m.Token: // others may share the backend
			b.Errorf("Marks lists %q with %s, want %s", m.Resource, m.Token, token)
		}
	}
	want[damaged] = revisionfence.Token{}
	for resource := range want {
		if seen[resource] != 1 {
			b.Errorf("Marks lists %q %d times, want once", resource, seen[resource])
		}
	}
	for m, err := range s.Marks(b.ctx) {
		b.Logf("listed first: %s, %v", m.Token, err)
		break // an iterator must stand that
	}
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	failed := false
	for _, err := range s.Marks(ended) {
		failed = err != nil
	}
	if !failed {
		b.Errorf("Marks with a context that has ended yields no error: an incomplete list passes as complete")
	}
}

func reopenKeepsMarks(b *bench) {
	s := b.open()
	t := b.takeover(s, "reopen")
	w := operation(t.new.Write(t.resource), "before", "d")
	if !b.lacks(Operations) {
		b.put(s, w, newValue)
	}
	if b.h.Restart != nil {
		b.h.Restart(b)
	}
	s = b.open()
	b.wantMark(s, t.resource, t.new.Token)
	b.wantValue(t.resource, newValue)
	_, err := s.Put(b.ctx, t.old.Write(t.resource), []byte("5"))
	b.wantStale(err, t.old.Write(t.resource), t.new.Token, "Put with the old token after a restart")
	b.put(s, t.new.Write(t.resource), "9")
	if b.lacks(Operations) {
		return
	}
	if r, err := s.Put(b.ctx, w, []byte(newValue)); err != nil || !r.Replayed {
		b.Errorf("an operation repeated after a restart: %+v, %v, want it replayed", r, err)
	}
	b.wantValue(t.resource, "9")
}
