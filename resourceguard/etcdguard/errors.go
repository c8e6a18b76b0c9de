package etcdguard

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
	"github.com/etcd-fence/etcd-fence/resourceguard"
)

var (
	// ErrUnfencedRead is a read that could show something other than what the
	// holder may rely on: a serializable one, which a member answers from what it
	// has, and one at a revision below the token, which is of somebody else's
	// tenure.
	ErrUnfencedRead = errors.New("read that no fence can cover")
	// ErrProtectedKey is a write to the keys of the coordinator or of a lock. It
	// would end, or forge, the grant that it is made under.
	ErrProtectedKey = errors.New("write to the keys of a lock")
	// ErrFormat is a record of the coordinator that this version cannot read.
	ErrFormat = errors.New("unreadable record in etcd")
	// ErrNoEpoch is a prefix without the coordinator's epoch record, where mode
	// HighWater stores no mark: no coordinator has been there yet, the prefix is
	// another one than the coordinator's, or the record was lost. Call the Ping of a
	// coordinator with this prefix once.
	ErrNoEpoch = errors.New("no epoch record")
)

// classify attaches the outcome to an error of etcd or of a context.
func classify(err error, readOnly bool) error {
	if readOnly || etcdonce.Definite(err) {
		return notApplied(err)
	}
	return resourceguard.WithOutcome(err, resourceguard.Unknown)
}

// notApplied is for what was refused here and never sent.
func notApplied(err error) error {
	return resourceguard.WithOutcome(err, resourceguard.NotApplied)
}

// errNoResource is refused by all guards, whatever Options.LockOf would say.
var errNoResource = fmt.Errorf("%w: the resource's name is empty", resourceguard.ErrInvalid)

// unsupportedError is a call of clientv3.KV that cannot be fenced. Its code is
// what clientv3's own KVs use for such a call.
type unsupportedError struct{ what string }

func (e *unsupportedError) Error() string { return "etcdguard: " + e.what }

func (e *unsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

func (e *unsupportedError) GRPCStatus() *status.Status {
	return status.New(codes.Unimplemented, e.Error())
}

func (e *unsupportedError) Outcome() resourceguard.Outcome { return resourceguard.NotApplied }

// endedError is a refusal by the lock itself and not by a mark. What it names as
// accepted is the present owner's token, which nobody need have used.
type endedError struct {
	*resourceguard.StaleError
	directory string // where the lock key was looked for
}

func (e *endedError) Error() string {
	var b strings.Builder
	if e.Resource != "" {
		fmt.Fprintf(&b, "resource %q: ", e.Resource)
	}
	fmt.Fprintf(&b, "token %s is stale: ", e.Presented)
	if e.Accepted.IsZero() {
		fmt.Fprintf(&b, "there is no lock key in %q, so that its grant has ended and nobody holds the lock, if that is where the lock's keys are", e.directory)
	} else {
		fmt.Fprintf(&b, "%s holds the lock now, by the keys in %q", e.Accepted, e.directory)
	}
	if e.Applied != nil {
		fmt.Fprintf(&b, "; this operation had been applied before, under %s", e.Applied.Mark)
	}
	b.WriteString("; acquire the lock again and read before writing")
	return b.String()
}

func (e *endedError) Unwrap() error { return e.StaleError }
