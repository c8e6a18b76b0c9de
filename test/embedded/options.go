package embedded

import (
	"errors"
	"fmt"
	"runtime"

	"go.etcd.io/etcd/server/v3/embed"
)

// Options changes what [Start] and [Run] set up. Nil is the same as the zero
// value: one member inside this process, with data that is removed at the end.
type Options struct {
	// Members is the number of members: 1, 3, 5 or 7.
	// Defaults to 1.
	Members int

	// Dir is where the members keep their data. It is created when missing and
	// never removed, so that a later cluster of as many members can start from
	// the same data.
	// Defaults to a new temporary directory that goes away with the cluster.
	Dir string

	// Process runs each member in a child process instead of in this one, which
	// makes Pause, Resume and Kill the real thing. Unix only.
	// Defaults to false.
	Process bool

	// Binary is the path of an etcd server program that each member runs, version
	// 3.5 or later, instead of the etcd that is linked into this program. All
	// that is true of Process is true of it; Config can change what has a flag
	// in every version. Unix only.
	// Defaults to the environment variable ETCD_FENCE_TEST_ETCD, so that a
	// whole test suite can be run against another version, and to none.
	Binary string

	// TLS makes the members and their clients prove who they are with
	// certificates of a throwaway authority, see [Cluster.CertFiles]. Members
	// speak with each other in the clear all the same.
	// Defaults to false.
	TLS bool

	// Auth makes the members ask for users and passwords.
	// Defaults to nil: everybody may do everything.
	Auth *Auth

	// Fsync makes the member wait for the disk as a real one does. A test gains
	// nothing from it; a measurement may.
	// Defaults to false.
	Fsync bool

	// Config is called with the configuration of each member just before it
	// starts, also at each restart, for anything that has no option here. In
	// process mode only numbers, strings and booleans can be changed: the rest
	// does not reach the child, and changing it is refused. So is a change of the
	// name, the directory, or the addresses that this package looks for the member
	// at; further addresses can be appended.
	// Defaults to no change.
	Config func(*embed.Config)
}

// BinaryEnv is the environment variable that stands for an Options.Binary that is
// not set.
const BinaryEnv = "ETCD_FENCE_TEST_ETCD"

// ErrUnsupported is returned for what a cluster of this kind, or this operating
// system, cannot do: Pause without Options.Process, Options.Process on Windows, a
// change of configuration that does not reach a member in another process, or
// after which this package would not find the member.
var ErrUnsupported = errors.New("embedded: not supported")

func (o *Options) validate() error {
	if (o.Process || o.Binary != "") && !processMode {
		return fmt.Errorf("%w: Options.Process and Options.Binary on %s (they need a Unix)", ErrUnsupported, runtime.GOOS)
	}
	if o.Members != 0 && !possible(o.Members) {
		return fmt.Errorf("embedded: Options.Members is %d, it must be 1, 3, 5 or 7", o.Members)
	}
	if o.Auth != nil {
		return o.Auth.validate()
	}
	return nil
}

// possible says whether there can be so many members. An even number tolerates
// no more faults than the odd one below it.
func possible(n int) bool { return n > 0 && n <= maxMembers && n%2 == 1 }

// maxMembers is what etcd itself recommends as the most.
const maxMembers = 7

// TB is the part of testing.TB that this package uses. *testing.T, *testing.B,
// *testing.F and the T of most test libraries satisfy it.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}
