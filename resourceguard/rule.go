package resourceguard

import (
	"fmt"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Policy says what happens to a token that equals the mark.
type Policy int

const (
	// AcceptEqual lets an owner write any number of times under one token. It is
	// the default.
	AcceptEqual Policy = iota
	// RejectEqual admits one write for each grant and resource. A write whose
	// answer was lost can then be repeated under an operation ID only: with the
	// ID the guard returns the saved result, without it the repetition is stale
	// like any second write.
	RejectEqual
)

// String returns the name of the policy.
func (p Policy) String() string {
	switch p {
	case AcceptEqual:
		return "AcceptEqual"
	case RejectEqual:
		return "RejectEqual"
	}
	return fmt.Sprintf("Policy(%d)", int(p))
}

// Decision is what to do with the mark when a token is admitted. Its zero value
// is neither of the two and comes with an error.
type Decision int

const (
	// Same is an admitted token that the mark covers already: the effect is
	// stored and the mark stays.
	Same Decision = iota + 1
	// Raise is an admitted token that is newer than the mark, or the first one:
	// the effect and the mark are stored in one step.
	Raise
)

// String returns the name of the decision.
func (d Decision) String() string {
	switch d {
	case Same:
		return "Same"
	case Raise:
		return "Raise"
	}
	return "refused"
}

// Rule is the whole rule by which a guard admits tokens to one resource. It
// holds no state and does no I/O: a guard reads the mark, asks the rule, and
// stores effect and mark, all in one atomic step of its backend.
type Rule struct {
	// Lock is the lock that guards the resource. Tokens of every other lock are
	// refused, however large. The empty Lock admits nothing.
	Lock string
	// Policy is what happens to a token that equals the mark. Defaults to
	// AcceptEqual.
	Policy Policy
	// Ceiling is the largest token that the authority can have issued by now;
	// anything above it is refused with [ErrImplausible] before it can become
	// the mark. Only its epoch and revision count: revisions belong to the whole
	// authority, so that the lock it is made for does not matter. Defaults to
	// none: without a ceiling one forged token can lock every real one out.
	Ceiling revisionfence.Token
}

// Admit decides about a write. The mark to store with [Raise] is the presented
// token.
//
// It fails with [ErrNoToken], [ErrWrongLock] (the token, or the stored mark, is
// of another lock than the rule), [ErrImplausible], [ErrCorruptMark], [ErrInvalid]
// (a policy that does not exist) or a [*StaleError] whose Resource is still to be
// filled in: see [ForResource].
func (r Rule) Admit(s Stored, presented revisionfence.Token) (Decision, error) {
	order, err := r.order(s, presented)
	if err != nil {
		return 0, err
	}
	switch {
	case order > 0:
		return Raise, nil
	case order < 0, r.Policy == RejectEqual:
		return 0, &StaleError{Presented: presented, Accepted: s.mark}
	}
	return Same, nil
}

// Advance decides about what must hold older tokens off without being a write
// itself: a barrier ([Guard.Advance]) and the replay of a saved operation. With
// [Raise], mark is what to store.
//
// It differs from [Rule.Admit] under [RejectEqual] alone. There a token that
// equals the mark passes, since nothing is written; and the mark stored is the
// largest token below the presented one, so that every older write is refused
// while the one write of this grant is still to come. (Should the token just below
// be a real one, its owner can still advance until that write, in vain: it cannot
// write.)
func (r Rule) Advance(s Stored, presented revisionfence.Token) (mark revisionfence.Token, d Decision, err error) {
	order, err := r.order(s, presented)
	switch {
	case err != nil:
		return revisionfence.Token{}, 0, err
	case order < 0:
		return revisionfence.Token{}, 0, &StaleError{Presented: presented, Accepted: s.mark}
	case order == 0:
		return s.mark, Same, nil
	case r.Policy == AcceptEqual:
		return presented, Raise, nil
	}
	mark = before(presented)
	if mark.IsZero() || s.state == storedMark && mark == s.mark {
		return s.mark, Same, nil
	}
	return mark, Raise, nil
}

// Floor decides about an operator's repair ([Guard.SetFloor]): the mark is to be
// floor at least. It never lowers a mark that can be real: that is a
// [*StaleError]. It replaces a mark that cannot be ordered or cannot be real: one
// that is unreadable, of another lock than the rule, or above the ceiling. So a
// poisoned mark is repaired by a guard that has been given a ceiling.
//
// Its other errors are [ErrNoToken], [ErrWrongLock] and [ErrImplausible], all
// three about the floor itself.
func (r Rule) Floor(s Stored, floor revisionfence.Token) (Decision, error) {
	if err := r.presentable(floor); err != nil {
		return 0, err
	}
	if s.state != storedMark || s.mark.Lock() != r.Lock || r.implausible(s.mark) {
		return Raise, nil
	}
	switch n, mark := floor.Int64(), s.mark.Int64(); {
	case n > mark:
		return Raise, nil
	case n < mark:
		return 0, &StaleError{Presented: floor, Accepted: s.mark}
	}
	return Same, nil
}

// order compares a presented token with the mark: -1 lower, 0 equal, 1 larger or
// first. Everything that may not be compared is an error, and all that is wrong
// with the token itself comes before anything about the mark.
func (r Rule) order(s Stored, presented revisionfence.Token) (int, error) {
	if r.Policy != AcceptEqual && r.Policy != RejectEqual {
		return 0, fmt.Errorf("%w: there is no policy %v", ErrInvalid, r.Policy)
	}
	if err := r.presentable(presented); err != nil {
		return 0, err
	}
	switch s.state {
	case storedNone:
		return 1, nil
	case storedUnreadable:
		return 0, s.corrupt()
	case storedMark:
	}
	if s.mark.Lock() != r.Lock {
		return 0, fmt.Errorf("%w: the stored mark %s, the resource is guarded by lock %q", ErrWrongLock, s.mark, r.Lock)
	}
	return presented.Compare(s.mark)
}

func (r Rule) presentable(t revisionfence.Token) error {
	switch {
	case t.IsZero():
		return ErrNoToken
	case t.Lock() != r.Lock:
		return fmt.Errorf("%w: token %s, the resource is guarded by lock %q", ErrWrongLock, t, r.Lock)
	case r.implausible(t):
		return fmt.Errorf("%w: token %s is above %s, the largest that can have been issued", ErrImplausible, t, r.Ceiling)
	}
	return nil
}

func (r Rule) implausible(t revisionfence.Token) bool {
	return !r.Ceiling.IsZero() && t.Int64() > r.Ceiling.Int64()
}

// before is the largest token of the same lock that is smaller than t, or the
// zero Token if t is the smallest there is.
func before(t revisionfence.Token) revisionfence.Token {
	if t.Revision() > 1 {
		return remake(t.Lock(), t.Epoch(), t.Revision()-1)
	}
	if t.Epoch() > 0 {
		return remake(t.Lock(), t.Epoch()-1, revisionfence.MaxRevision)
	}
	return revisionfence.Token{}
}

// remake cannot fail: the name comes from a token and the numbers lie between
// those of valid ones.
func remake(lock string, epoch uint16, revision int64) revisionfence.Token {
	t, _ := revisionfence.New(lock, epoch, revision)
	return t
}
