package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

const (
	lock      = "orders/42"
	otherLock = "orders/4" // shares its beginning with lock on purpose
)

// bench is one property being tried.
type bench struct {
	TB
	h   Harness
	ctx context.Context
}

// open opens the guard with its defaults.
func (b *bench) open() Subject {
	b.Helper()
	return b.openWith(Config{})
}

func (b *bench) openWith(c Config) Subject {
	b.Helper()
	s := b.h.Open(b, c)
	if s == nil {
		b.Fatalf("Harness.Open returned no subject")
	}
	return s
}

func (b *bench) lacks(c Capability) bool {
	_, lacking := b.h.Lacks[c]
	return lacking
}

// end ends a grant where that means something.
func (b *bench) end(g Grant) {
	if b.h.EndGrant != nil {
		b.h.EndGrant(b, g)
	}
}

// succeed makes the next grant of the lock after the old one has ended, as an
// authority does.
func (b *bench) succeed(old Grant) Grant {
	b.Helper()
	b.end(old)
	next := b.h.Grant(b, old.Token.Lock())
	if order, err := next.Token.Compare(old.Token); err != nil || order <= 0 {
		b.Fatalf("Harness.Grant made %s after %s: each token must be larger than the one before", next.Token, old.Token)
	}
	return next
}

// takeover is the story that everything serves: an old owner wrote, its grant
// ended, and a newer owner wrote.
type takeover struct {
	resource string
	old, new Grant
}

// newValue is what the newer owner wrote.
const newValue = "8"

func (b *bench) takeover(s Subject, name string) takeover {
	b.Helper()
	t := takeover{resource: b.h.Resource(b, name, lock), old: b.h.Grant(b, lock)}
	b.put(s, t.old.Write(t.resource), "7")
	t.new = b.succeed(t.old)
	b.put(s, t.new.Write(t.resource), newValue)
	return t
}

// put writes a value that must be accepted, and looks that it is there.
func (b *bench) put(s Subject, w resourceguard.Write, value string) resourceguard.Result {
	b.Helper()
	result, err := s.Put(b.ctx, w, []byte(value))
	if err != nil {
		b.Fatalf("Put %q with token %s: refused: %v", value, w.Token, err)
	}
	b.wantValue(w.Resource, value)
	return result
}

// wantValue looks behind the guard's back.
func (b *bench) wantValue(resource, want string) {
	b.Helper()
	value, exists := b.h.Read(b, resource)
	switch {
	case !exists:
		b.Errorf("resource %q has no value, want %q", resource, want)
	case string(value) != want:
		b.Errorf("resource %q is %q, want %q", resource, value, want)
	}
}

func (b *bench) wantNoValue(resource string) {
	b.Helper()
	if value, exists := b.h.Read(b, resource); exists {
		b.Errorf("resource %q is %q, want no value", resource, value)
	}
}

// wantMark checks the mark where the guard has one.
func (b *bench) wantMark(s Subject, resource string, want revisionfence.Token) {
	b.Helper()
	if b.lacks(Marks) {
		return
	}
	m, ok, err := s.Mark(b.ctx, resource)
	switch {
	case err != nil:
		b.Errorf("Mark of %q: %v", resource, err)
	case !ok && !want.IsZero():
		b.Errorf("resource %q has no mark, want %s", resource, want)
	case ok && m.Token != want:
		b.Errorf("the mark of %q is %s, want %q", resource, m.Token, want)
	case m.Resource != resource:
		b.Errorf("Mark of %q returned a mark of %q", resource, m.Resource)
	}
}

// wantError checks that a call was refused for the right reason, and that it says
// so of its outcome.
func (b *bench) wantError(err, want error, format string, args ...any) bool {
	b.Helper()
	what := fmt.Sprintf(format, args...)
	switch {
	case err == nil:
		b.Errorf("%s: accepted, want %q", what, want)
		return false
	case !errors.Is(err, want):
		b.Errorf("%s: failed with %q, want %q", what, err, want)
		return false
	case resourceguard.OutcomeOf(err) != resourceguard.NotApplied:
		b.Errorf("%s: the outcome of %q is %q, want %q", what, err, resourceguard.OutcomeOf(err), resourceguard.NotApplied)
		return false
	}
	return true
}

// wantStale checks a refusal as stale in all its parts. accepted is the token
// that it must name.
func (b *bench) wantStale(err error, w resourceguard.Write, accepted revisionfence.Token, format string, args ...any) {
	b.Helper()
	if !b.wantError(err, resourceguard.ErrStale, format, args...) {
		return
	}
	what := fmt.Sprintf(format, args...)
	stale, ok := errors.AsType[*resourceguard.StaleError](err)
	if !ok {
		b.Errorf("%s: %q is no *StaleError", what, err)
		return
	}
	if stale.Resource != w.Resource {
		b.Errorf("%s: StaleError.Resource is %q, want %q", what, stale.Resource, w.Resource)
	}
	if stale.Presented != w.Token {
		b.Errorf("%s: StaleError.Presented is %q, want %q", what, stale.Presented, w.Token)
	}
	if stale.Accepted != accepted {
		b.Errorf("%s: StaleError.Accepted is %q, want %q", what, stale.Accepted, accepted)
	}
	for _, part := range []string{w.Token.String(), accepted.String()} {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("%s: the message %q does not name %s", what, err, part)
		}
	}
}

// applied is what a refusal as stale says about the operation.
func applied(err error) *resourceguard.Result {
	if stale, ok := errors.AsType[*resourceguard.StaleError](err); ok {
		return stale.Applied
	}
	return nil
}

// forge makes a token that nobody was granted.
func (b *bench) forge(lock string, epoch uint16, revision int64) Grant {
	b.Helper()
	t, err := revisionfence.New(lock, epoch, revision)
	if err != nil {
		b.Fatalf("forge a token: %v", err)
	}
	return Grant{Token: t, Owner: "forger"}
}

// above is a forged token that is much larger than t.
func (b *bench) above(t revisionfence.Token) Grant {
	b.Helper()
	return b.forge(t.Lock(), t.Epoch(), t.Revision()+1_000_000_000)
}

// operation is w under an operation.
func operation(w resourceguard.Write, id, digest string) resourceguard.Write {
	w.Operation = resourceguard.Operation{ID: id, Digest: []byte(digest)}
	return w
}
