package resourceguard

import (
	"errors"
	"fmt"
	"strings"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Refusals. Each means that the call changed nothing: [OutcomeOf] is
// [NotApplied].
var (
	// ErrStale is a token that is lower than the last accepted one, or equal to
	// it under [RejectEqual]. The error is a [*StaleError].
	ErrStale = errors.New("stale fencing token")
	// ErrWrongLock is a token, or a stored mark, of another lock than the one
	// that guards the resource. Tokens of two locks have no order.
	ErrWrongLock = errors.New("token of another lock")
	// ErrNoToken is a write without a token. It is the error of revisionfence.
	ErrNoToken = revisionfence.ErrNoToken
	// ErrImplausible is a token larger than any that the authority can have
	// issued: forged, damaged, or from before a restore of the authority.
	ErrImplausible = errors.New("implausible fencing token")
	// ErrCorruptMark is a stored mark that cannot be read. Writes are refused
	// until an operator has repaired it with [Guard.SetFloor]: it is never taken
	// for "no mark".
	ErrCorruptMark = errors.New("unreadable mark")
	// ErrOperationReused is an operation ID that was used before for something
	// else: the digests differ.
	ErrOperationReused = errors.New("operation ID used for another operation")
	// ErrOwnerMismatch is a token that equals the mark and comes from another
	// owner. An authority never issues a token twice, unless it was restored from
	// a backup.
	ErrOwnerMismatch = errors.New("two owners with one fencing token: the authority was probably restored from a backup")
	// ErrBlocked is a mark that could not be raised in time since a writer of an
	// older token has not finished. Try again.
	ErrBlocked = errors.New("a writer of an older token has not finished")
	// ErrInvalid is a call or an option that no guard can carry out. The message
	// names the field and what is allowed.
	ErrInvalid = errors.New("invalid")
)

// refusals are all NotApplied. errors.ErrUnsupported is what a guard returns from
// a method that its backend has no means for.
var refusals = []error{
	ErrStale, ErrWrongLock, ErrNoToken, ErrImplausible, ErrCorruptMark,
	ErrOperationReused, ErrOwnerMismatch, ErrBlocked, ErrInvalid,
	errors.ErrUnsupported,
}

// StaleError is the refusal of a token that is not the newest any more. It is
// [ErrStale].
//
// The way out is never to repeat the call: acquire the lock again, advance, and
// read again, since what was known under the old token may have changed.
type StaleError struct {
	// Resource is the resource that was not changed.
	Resource string
	// Presented is the token that was refused.
	Presented revisionfence.Token
	// Accepted is the last accepted token. In a guard that asks the authority it
	// is the token of the present owner, and zero when there is none.
	Accepted revisionfence.Token
	// Applied is the saved result if the same operation had been applied before,
	// by this caller or by an earlier attempt of it. It is nil if the operation
	// was not applied, or had no ID, or if its result is kept no longer.
	Applied *Result
}

// Error names the resource, both tokens and the way out.
func (e *StaleError) Error() string {
	var b strings.Builder
	if e.Resource != "" {
		fmt.Fprintf(&b, "resource %q: ", e.Resource)
	}
	switch {
	case e.Accepted.IsZero():
		fmt.Fprintf(&b, "token %s is stale: its grant has ended and nobody holds the lock", e.Presented)
	case e.Accepted == e.Presented:
		fmt.Fprintf(&b, "token %s is stale: it has been used, and one write is allowed for each grant", e.Presented)
	default:
		fmt.Fprintf(&b, "token %s is stale: %s has been accepted", e.Presented, e.Accepted)
	}
	if e.Applied != nil {
		fmt.Fprintf(&b, "; this operation had been applied before, under %s", e.Applied.Mark)
	}
	b.WriteString("; acquire the lock again and read before writing")
	return b.String()
}

// Is makes the error an [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// StaleToken is the token that was refused.
func (e *StaleError) StaleToken() revisionfence.Token { return e.Presented }

// Outcome is [NotApplied]: this call changed nothing, whatever an earlier one of
// the same operation did.
func (e *StaleError) Outcome() Outcome { return NotApplied }

// ForResource names the resource in an error of [Rule.Admit], [Rule.Advance] or
// [Rule.Floor], which do not know it: it fills in [StaleError.Resource], and puts
// the name in front of any other error. A nil err stays nil.
func ForResource(resource string, err error) error {
	if err == nil {
		return nil
	}
	if stale, ok := errors.AsType[*StaleError](err); ok {
		if stale.Resource == "" {
			stale.Resource = resource
		}
		return err
	}
	return fmt.Errorf("resource %q: %w", resource, err)
}

// CheckOwner is for a guard that stores the owner beside the mark: call it when
// the presented token equals the mark. It returns [ErrOwnerMismatch] if both
// owners are known and differ. An empty owner is one that is not known: that of a
// mark which [Guard.Advance] has raised, until a write with an equal token stores its
// own.
func CheckOwner(stored, presented string) error {
	if stored == "" || presented == "" || stored == presented {
		return nil
	}
	return fmt.Errorf("%w: %q is on record, %q was presented", ErrOwnerMismatch, stored, presented)
}
