package guardtest_test

import (
	"context"
	"fmt"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// slowModel is a model that can be held up.
type slowModel struct{ *model }

func (m slowModel) PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error) {
	return m.write(ctx, w, during, change{value: value})
}

func (m slowModel) DeleteSlowly(ctx context.Context, w resourceguard.Write, during func()) (resourceguard.Result, error) {
	return m.write(ctx, w, during, change{delete: true})
}

// modelHarness is a harness of a model in one of its forms.
type modelHarness struct {
	fault     fault
	fast      bool // cannot be held up: races are all the kit has
	authority bool // asks the authority
}

func (f modelHarness) new() guardtest.Harness {
	store := &modelStore{
		cells: make(map[string]*modelCell), locks: make(map[string]string), reasons: make(map[string][]string),
		revision: 2, present: make(map[string]revisionfence.Token), authority: f.authority,
	}
	locked := func(fn func()) {
		store.mu.Lock()
		defer store.mu.Unlock()
		fn()
	}
	h := guardtest.Harness{
		Open: func(_ guardtest.TB, c guardtest.Config) guardtest.Subject {
			m := &model{fault: f.fault, config: c, store: store, own: make(map[string]resourceguard.Stored)}
			if f.fast {
				return m
			}
			return slowModel{m}
		},
		Resource: func(_ guardtest.TB, name, lock string) string {
			locked(func() { store.locks[name] = lock })
			return name
		},
		Read: func(_ guardtest.TB, resource string) (value []byte, exists bool) {
			m := &model{fault: f.fault, store: store}
			locked(func() { c := m.cell(resource); value, exists = c.value, c.exists })
			return value, exists
		},
		Grant: func(tb guardtest.TB, lock string) (g guardtest.Grant) {
			locked(func() {
				store.revision++
				t, err := revisionfence.New(lock, 0, store.revision)
				if err != nil {
					tb.Fatalf("New: %v", err)
				}
				store.present[lock] = t
				g = guardtest.Grant{Token: t, Owner: fmt.Sprint("owner ", store.revision)}
			})
			return g
		},
		EndGrant: func(_ guardtest.TB, g guardtest.Grant) {
			locked(func() {
				if store.present[g.Token.Lock()] == g.Token {
					delete(store.present, g.Token.Lock())
				}
			})
		},
		CorruptMark: func(_ guardtest.TB, resource string) {
			locked(func() { store.cells[resource].stored = resourceguard.Stored{} })
		},
		Reasons: func(_ guardtest.TB, resource string) (reasons []string) {
			locked(func() { reasons = store.reasons[resource] })
			return reasons
		},
	}
	if f.authority {
		h.AuthorityChecked = true
		h.Lacks = map[guardtest.Capability]string{}
		for _, c := range guardtest.Capabilities() {
			if c != guardtest.Deletes && c != guardtest.Ceiling {
				h.Lacks[c] = "the authority keeps it"
			}
		}
	}
	return h
}
