package resourceguard

import (
	"context"
	"iter"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Guard is what every guard offers beside its own way of writing. Writing is not
// in it: "do this write under that token" looks different in SQL, in an etcd
// transaction and in an HTTP request, and a common form would take the write out
// of the atomic step.
//
// A guard may be used by any number of goroutines. Its methods return when ctx
// ends; errors carry an [Outcome]. A guard that keeps no marks returns
// [errors.ErrUnsupported] from Mark, Marks and SetFloor.
//
// Others may implement it; package guardtest checks that they got it right. New
// methods come as interfaces of their own.
type Guard interface {
	// Advance is the barrier of a new owner: once it has returned, no write with
	// a token lower than t is accepted. Call it after the grant and before the
	// first read, so that what is read cannot be changed by an old owner any
	// more. It is not a write: under [RejectEqual] the one write of the grant is
	// still to come. Advancing twice is the same as advancing once.
	//
	// It fails as [Rule.Advance] does.
	Advance(ctx context.Context, resource string, t revisionfence.Token) error

	// Mark returns the last accepted token of the resource, and false if none was
	// ever accepted. After Advance under [RejectEqual] it is the token just below
	// the one that advanced: see [Rule.Advance]. It fails with [ErrCorruptMark] if
	// the mark is unreadable.
	Mark(ctx context.Context, resource string) (revisionfence.Mark, bool, error)

	// Marks lists the marks of all resources in no particular order, for an
	// operator who compares them with what the authority issues next. An
	// unreadable mark is yielded as an [ErrCorruptMark] beside a Mark that has
	// the resource and no token, and the listing goes on; any other error is the
	// last thing yielded.
	Marks(ctx context.Context) iter.Seq2[revisionfence.Mark, error]

	// SetFloor is an operator's repair, after a resource was restored from a
	// backup or its mark was damaged: the mark of m.Resource becomes m.Token at
	// least, by the rules of [Rule.Floor]. The reason is required (1 to
	// [MaxReason] bytes, else [ErrInvalid]) and is put on record by the guard.
	SetFloor(ctx context.Context, m revisionfence.Mark, reason string) error
}
