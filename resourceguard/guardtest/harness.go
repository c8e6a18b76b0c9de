package guardtest

import (
	"context"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// TB is the part of [testing.TB] that a property uses. A [testing.T] is one.
//
// A harness that hands a testing.TB to other packages keeps the one that its
// constructor was given; failures of the harness itself may go to either.
type TB interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
}

// Harness is what the kit needs to know about a guard. Its functions may be
// called from several goroutines, except Open, Resource and Restart. They report
// what goes wrong, other than a refusal by the guard, with Fatalf.
type Harness struct {
	// Open opens the guard, configured as c says, in front of the resources of
	// this harness. Required. It is called several times, also with different
	// configurations; each call is like another process in front of one backend:
	// what it finds there must be what the earlier ones left. Cleaning up is the
	// harness's, with tb.Cleanup.
	Open func(tb TB, c Config) Subject

	// Resource makes a resource that has no value and no mark, is guarded by the
	// lock, and is found by every opened guard, those opened before included. It
	// returns the name that the guard knows it by. name is unique within the
	// harness: 1 to 100 bytes, not always ASCII. Required.
	Resource func(tb TB, name, lock string) (resource string)

	// Read reads the value of a resource without a token and not through the
	// guard. It returns false if there is none. Required.
	Read func(tb TB, resource string) (value []byte, exists bool)

	// Grant makes the next grant of a lock: its token is larger than those of
	// every earlier grant of the lock in this harness. Revisions 1 and 2 are never
	// granted, as in etcd. Required. A counter will do for a guard that does not
	// ask the authority. With AuthorityChecked the grant is real, and the kit has
	// ended the earlier one.
	Grant func(tb TB, lock string) Grant

	// EndGrant ends a grant as the end of its lease would, without the holder's
	// doing. Nil where nothing happens to it: where the guard does not ask.
	EndGrant func(tb TB, g Grant)

	// CorruptMark damages the stored mark of a resource, so that it cannot be
	// read as a token any more. Required unless Marks is lacking.
	CorruptMark func(tb TB, resource string)

	// Reasons returns the reasons that SetFloor put on record for a resource, in
	// any order. Required unless Floors is lacking.
	Reasons func(tb TB, resource string) []string

	// Restart restarts the backend. Nil if it cannot be; marks and results must
	// then at least survive another Open.
	Restart func(tb TB)

	// AuthorityChecked is a guard that asks the authority in the same step as the
	// write, so that it refuses from the moment a grant ends. A guard that decides
	// by its mark alone must go on accepting until a newer token has shown up. The
	// kit checks the one or the other.
	AuthorityChecked bool

	// RealTokensOnly is a guard that accepts a token only if the authority has
	// issued it, current or not. The kit then has no forged token accepted.
	// AuthorityChecked implies it.
	RealTokensOnly bool

	// Lacks is what the guard cannot do, each with the reason. The reason is shown
	// and must not be empty.
	Lacks map[Capability]string
}

func (h Harness) realTokensOnly() bool { return h.RealTokensOnly || h.AuthorityChecked }

// Config is what the kit varies about a guard.
type Config struct {
	// Policy is what happens to an equal token.
	Policy resourceguard.Policy
	// Ceiling is the largest token that can have been issued; zero for none.
	Ceiling revisionfence.Token
}

// Grant is one grant of a lock.
type Grant struct {
	// Token is the token of the grant.
	Token revisionfence.Token
	// Owner is unique to the grant.
	Owner string
}

// Write is a write to a resource under the grant.
func (g Grant) Write(resource string) resourceguard.Write {
	return resourceguard.Write{Resource: resource, Token: g.Token, Owner: g.Owner}
}

// Subject is the guard under test, with writing in one form.
//
// A token in a Write that [Harness.Grant] did not make is a forged one. The
// subject presents it like a genuine one, and forges whatever else belongs to it.
// It passes on the errors of the guard as they are.
type Subject interface {
	// Guard is the guard itself. Where Marks is lacking its Mark, Marks and
	// SetFloor are not called, nor is Advance.
	resourceguard.Guard
	// Put sets the value of the resource under the token.
	Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error)
	// Get reads the value under the token, and returns false if there is none. It
	// is not called where FencedReads is lacking.
	Get(ctx context.Context, w resourceguard.Write) (value []byte, exists bool, err error)
	// Delete removes the value under the token. It is not called where Deletes is
	// lacking.
	Delete(ctx context.Context, w resourceguard.Write) (resourceguard.Result, error)
}

// SlowPutter is a [Subject] that can be held up in the middle of a write.
type SlowPutter interface {
	// PutSlowly is Put, and calls during as late as the harness can: after a
	// guard that checks the token first would have checked it, and before the new
	// value is stored. That may be inside of the backend's transaction or critical
	// section: during does not wait for another write without bound. It may be
	// called several times.
	PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error)
}

// SlowDeleter is a [Subject] that can be held up in the middle of a deletion, as a
// [SlowPutter] can in the middle of a write.
type SlowDeleter interface {
	// DeleteSlowly is Delete, and calls during as PutSlowly does.
	DeleteSlowly(ctx context.Context, w resourceguard.Write, during func()) (resourceguard.Result, error)
}

// AnswerLoser is a [Subject] whose backend can fail between the effect and the
// answer. Where the harness can do that, it is how to see that the guard reports
// an unknown outcome as unknown.
type AnswerLoser interface {
	// PutLosingAnswer is Put whose answer gets lost on the way. The write takes
	// effect if apply is true, and otherwise not. It returns the guard's error.
	PutLosingAnswer(ctx context.Context, w resourceguard.Write, value []byte, apply bool) error
}

// Capability is something that not every backend can do.
type Capability string

const (
	// Marks: the guard stores the last accepted token of a resource.
	Marks Capability = "marks"
	// Floors: an operator can raise or repair a mark on record.
	Floors Capability = "floors"
	// RejectEqual: the policy of one write for each grant.
	RejectEqual Capability = "reject equal"
	// Ceiling: tokens that cannot have been issued are told apart.
	Ceiling Capability = "ceiling"
	// Operations: a repeated operation is recognised.
	Operations Capability = "operations"
	// Owners: equal tokens of two owners are told apart.
	Owners Capability = "owners"
	// LockBinding: the guard knows which lock guards a resource, so that it can
	// refuse a genuine token of another lock.
	LockBinding Capability = "lock binding"
	// FencedReads: reading under a token.
	FencedReads Capability = "fenced reads"
	// Deletes: the guarded value can be deleted.
	Deletes Capability = "deletes"
)

// Capabilities are all that a guard may lack.
func Capabilities() []Capability {
	return []Capability{Marks, Floors, RejectEqual, Ceiling, Operations, Owners, LockBinding, FencedReads, Deletes}
}
