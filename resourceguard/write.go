package resourceguard

import (
	"context"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Bounds of what travels with a write, in bytes. They are what every backend can
// store and every header can carry.
const (
	// MaxOwner is the longest Write.Owner.
	MaxOwner = 1024
	// MaxOperationID is the longest Operation.ID.
	MaxOperationID = 255
	// MaxDigest is the longest Operation.Digest: that of SHA-512.
	MaxDigest = 64
	// MaxReason is the longest reason of [Guard.SetFloor].
	MaxReason = 1024
)

// Write is what travels with a guarded write besides its payload. Three things
// identify it, and none can stand in for another: the token says whether this
// tenure is still the newest, the owner says who sent it, and the operation says
// whether this very operation was applied before.
type Write struct {
	// Resource is the name that the guard knows the resource by. Required.
	Resource string
	// Token is the token of the grant that the write is made under. Required.
	Token revisionfence.Token
	// Owner is unique to the grant, also where a restored authority issued one
	// token twice: the key of the grant is. A guard that stores it refuses an
	// equal token of another owner with [ErrOwnerMismatch]. At most [MaxOwner]
	// bytes; the empty Owner is not checked.
	Owner string
	// Operation makes a repetition harmless. The zero Operation is none.
	Operation Operation
}

// Check reports a write that no guard can carry out: [ErrNoToken] for the zero
// token, [ErrInvalid] for anything else.
func (w Write) Check() error {
	switch {
	case w.Resource == "":
		return fmt.Errorf("%w: Write.Resource is empty", ErrInvalid)
	case w.Token.IsZero():
		return ErrNoToken
	case len(w.Owner) > MaxOwner:
		return fmt.Errorf("%w: Write.Owner has %d bytes, at most %d are allowed", ErrInvalid, len(w.Owner), MaxOwner)
	}
	return w.Operation.Check()
}

// Operation is the identity of one operation, chosen by the caller before the
// first attempt and kept for every repetition.
//
// A guard that has applied an operation answers its repetition with the saved
// result and applies nothing. The token is checked all the same: a repetition
// with a stale token is refused, and [StaleError.Applied] says that it had been
// applied before.
type Operation struct {
	// ID is unique among the operations on the resource: 1 to [MaxOperationID]
	// bytes of valid UTF-8 without control characters. The empty ID is no
	// operation.
	ID string
	// Digest is a fingerprint of what the operation does, such as a SHA-256 of
	// the request: at most [MaxDigest] bytes. The same ID with another digest is
	// refused with [ErrOperationReused]. Without digests a reused ID is answered
	// with the result of the first operation.
	Digest []byte
}

// IsZero reports whether o is no operation.
func (o Operation) IsZero() bool { return o.ID == "" && len(o.Digest) == 0 }

// Check reports an operation outside of the bounds, as [ErrInvalid]. No
// operation is fine.
func (o Operation) Check() error {
	switch {
	case o.IsZero():
		return nil
	case o.ID == "":
		return fmt.Errorf("%w: Operation.Digest is set and Operation.ID is empty", ErrInvalid)
	case len(o.ID) > MaxOperationID:
		return fmt.Errorf("%w: Operation.ID has %d bytes, at most %d are allowed", ErrInvalid, len(o.ID), MaxOperationID)
	case len(o.Digest) > MaxDigest:
		return fmt.Errorf("%w: Operation.Digest has %d bytes, at most %d are allowed", ErrInvalid, len(o.Digest), MaxDigest)
	case !utf8.ValidString(o.ID):
		return fmt.Errorf("%w: Operation.ID is not valid UTF-8", ErrInvalid)
	}
	for i, r := range o.ID {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: Operation.ID has the control character %U at byte %d", ErrInvalid, r, i)
		}
	}
	return nil
}

// Result is what a guarded write gave.
type Result struct {
	// Replayed says that the operation had been applied before: nothing was
	// applied now, and Value is the saved one.
	Replayed bool
	// Value is what the operation returned, in the form of the guard that ran it.
	Value []byte
	// Mark is the mark under which the operation was applied. It is the token of
	// the write that applied it, which for a replay may be an earlier tenure's.
	Mark revisionfence.Token
}

type operationKey struct{}

// WithOperation returns a context that carries the operation to a guard whose
// calls have no room for it, such as one behind an interface of another library.
// It stands for one operation: do not write twice under one such context.
func WithOperation(ctx context.Context, o Operation) context.Context {
	return context.WithValue(ctx, operationKey{}, o)
}

// OperationFromContext returns the operation that [WithOperation] put into the
// context, and false if there is none.
func OperationFromContext(ctx context.Context) (Operation, bool) {
	o, ok := ctx.Value(operationKey{}).(Operation)
	return o, ok && !o.IsZero()
}

// CheckReason reports a reason that [Guard.SetFloor] does not take, as
// [ErrInvalid].
func CheckReason(reason string) error {
	switch {
	case reason == "":
		return fmt.Errorf("%w: the reason is empty, and it is what the record is for", ErrInvalid)
	case len(reason) > MaxReason:
		return fmt.Errorf("%w: the reason has %d bytes, at most %d are allowed", ErrInvalid, len(reason), MaxReason)
	}
	return nil
}
