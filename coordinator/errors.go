package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// The kinds of error that this package returns. Match them with errors.Is; the
// types below carry the details.
var (
	// ErrBusy means that somebody else holds the lock, or stands before the
	// caller in its queue. It arrives as a *[BusyError].
	ErrBusy = errors.New("the lock is held")
	// ErrLost means that the grant ended before its holder released it. It
	// arrives as a *[LostError]. A lost grant stays lost.
	ErrLost = errors.New("the grant is lost")
	// ErrNotHeld means that a release changed nothing, because the grant was
	// no longer there to release.
	ErrNotHeld = errors.New("the grant is not held")
	// ErrAlreadyHeld means that the context belongs to a live grant of the same
	// lock. Locks are not re-entrant: waiting would be waiting for oneself.
	ErrAlreadyHeld = errors.New("the lock is already held under this context; pass its Grant down instead of acquiring it again")
	// ErrUnsettled means that etcd has not told whether a request took effect.
	// The caller does not own the lock. What the request may have left behind is
	// being removed in the background, or ends with the session's lease.
	ErrUnsettled = errors.New("the outcome is not known yet")
	// ErrRestored means that what etcd holds is older than what it held before:
	// tokens issued now could repeat. It arrives as a *[RestoredError].
	ErrRestored = errors.New("etcd was restored from a backup, or its epoch record was removed")
	// ErrFormat means that a record in etcd was written by a newer version of
	// this package, or cannot be read at all.
	ErrFormat = errors.New("a record in etcd cannot be understood")
	// ErrInvalidName means that a lock may not have this name.
	ErrInvalidName = revisionfence.ErrInvalidName
	// ErrInvalidOption means that an option is out of its range.
	ErrInvalidOption = errors.New("invalid option")
	// ErrNoAnswer means that etcd did not answer within the coordinator's own
	// bounds, which are a few seconds; the caller's context had not ended.
	ErrNoAnswer = errors.New("etcd has not answered")
	// ErrWaitsForItself means that [Coordinator.Close] was called by a function
	// that runs under Do or Lead, for which Close waits.
	ErrWaitsForItself = errors.New("the call would wait for itself")
	// ErrClosed means that the coordinator was closed.
	ErrClosed = errors.New("the coordinator is closed")
)

// BusyError says who holds the lock. It is an [ErrBusy].
type BusyError struct {
	// Lock is the lock that was asked for.
	Lock string
	// Holder is who held it when the coordinator last looked. Its zero value
	// means that this is not known: the lock was changing hands.
	Holder Holder
}

// Error names the lock and its holder.
func (e *BusyError) Error() string {
	if e.Holder.IsZero() {
		return fmt.Sprintf("lock %q is busy: it is changing hands", e.Lock)
	}
	return fmt.Sprintf("lock %q is held by %s", e.Lock, e.Holder)
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// LostReason says why a grant ended before it was released.
type LostReason string

// The reasons for which a grant can be lost.
const (
	// LostExpired: etcd has no such lease any more, and the trust window had closed.
	LostExpired LostReason = "lease expired"
	// LostRevoked: etcd has no such lease any more, though it was not yet due.
	LostRevoked LostReason = "lease revoked"
	// LostKeyDeleted: somebody deleted the lock key or the session key.
	LostKeyDeleted LostReason = "key deleted"
	// LostUnproven: the lease could not be proven alive in time. It may still
	// live at etcd; it is given up all the same, and never trusted again.
	LostUnproven LostReason = "lease unproven"
	// LostEvicted: an operator ended the grant.
	LostEvicted LostReason = "evicted"
	// LostRestored: etcd was restored from a backup. Reserved: nothing ends with
	// it yet.
	LostRestored LostReason = "etcd restored"
	// LostClosed: the coordinator was closed.
	LostClosed LostReason = "coordinator closed"
	// LostHeldTooLong: the grant was held past its limit.
	LostHeldTooLong LostReason = "held too long"
	// LostForgotten: the Grant became garbage without having been released.
	LostForgotten LostReason = "forgotten"
)

var lostReasons = []LostReason{
	LostExpired, LostRevoked, LostKeyDeleted, LostUnproven, LostEvicted, LostRestored, LostClosed, LostHeldTooLong, LostForgotten,
}

// LostError says which grant was lost, when and why. It is an [ErrLost], and
// the cause with which the grant's context ends.
type LostError struct {
	// Token is the token of the lost grant.
	Token revisionfence.Token
	// Reason is why it was lost.
	Reason LostReason
	// Detail says more, for people: who evicted the grant and why, say.
	Detail string
	// At is when this process noticed, by its own clock: for people, not for
	// comparing.
	At time.Time
}

// Error names the token, the reason and the time.
func (e *LostError) Error() string {
	text := fmt.Sprintf("grant %s was lost at %s: %s", e.Token, e.At.UTC().Format(time.RFC3339Nano), e.Reason)
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	return text
}

// Is reports whether target is [ErrLost], or [ErrClosed] and the reason.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.Reason == LostClosed
}

// RestoredError says what showed that etcd went back in time. It is an
// [ErrRestored].
type RestoredError struct {
	// Evidence is what was seen.
	Evidence string
}

// Error gives the evidence and the way out.
func (e *RestoredError) Error() string {
	return fmt.Sprintf("no token is issued: %s; tokens could repeat; use a new Options.Prefix, and new lock names where marks are kept outside of etcd", e.Evidence)
}

// Is reports whether target is [ErrRestored].
func (e *RestoredError) Is(target error) bool { return target == ErrRestored }

// noAnswerError is a request that etcd did not answer in time. It hides the end of
// a context that is not the caller's, whom it would mislead.
type noAnswerError struct{ err error }

func (e *noAnswerError) Error() string { return ErrNoAnswer.Error() + ": " + e.err.Error() }

func (e *noAnswerError) Is(target error) bool { return target == ErrNoAnswer }

// ownBound turns the end of one of our own contexts into an [ErrNoAnswer].
func ownBound(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &noAnswerError{err}
	}
	return err
}

// answered is the error of a request that was made under a bound of our own,
// within the ctx of a caller.
func answered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return ownBound(err)
}

// errReleased is how a grant's context ends when its holder releases it.
var errReleased = fmt.Errorf("released by its holder: %w", ErrNotHeld)
