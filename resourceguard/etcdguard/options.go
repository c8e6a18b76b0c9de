package etcdguard

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

const (
	// DefaultPrefix is where the coordinator keeps its locks.
	DefaultPrefix = "/etcd-fence/"
	// DefaultTimeout is a little longer than etcd itself takes to give up on a
	// request, which is about seven seconds, so that its own answer is heard.
	DefaultTimeout = 10 * time.Second
	// DefaultKeepOperations is how long a repetition of an operation is recognised.
	DefaultKeepOperations = 24 * time.Hour

	maxPrefix = 1024
)

// Mode is what a guard goes by.
type Mode int

const (
	// Held lets an operation through if, and only if, the grant's lock key exists
	// at the moment at which etcd applies the operation. It is the default.
	Held Mode = iota
	// HighWater lets an operation through if its token is the newest that the
	// resource has seen, which a mark in etcd keeps. It is what guards outside of
	// etcd do, and what one write for each grant and operation IDs need.
	HighWater
)

// String returns the name of the mode.
func (m Mode) String() string {
	switch m {
	case Held:
		return "Held"
	case HighWater:
		return "HighWater"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Options adjust a [Guard]. The zero value of each field is its default.
type Options struct {
	// Mode is what the guard goes by. Defaults to [Held].
	Mode Mode

	// Prefix is that of the coordinator whose locks are used: what lies under it
	// cannot be written through the guard. It must end in "/" and have at most
	// 1024 bytes. Defaults to [DefaultPrefix].
	Prefix string

	// Directory returns the directory in etcd of a lock's keys, ending in "/", for
	// a coordinator that was given the same function. Defaults to the directory
	// under Prefix that the coordinator uses.
	//
	// It does not tell the lock of a directory. So in mode HighWater several grants at
	// once, which name no lock, need Resource; else [Guard.KV] refuses them with
	// [resourceguard.ErrInvalid].
	Directory func(lock string) string

	// LockOf names the lock that guards a resource. With it, a write under the grant
	// of any other lock is refused with [resourceguard.ErrWrongLock] before it is
	// sent, and so is an error of LockOf itself.
	//
	// In mode Held the resource is the key. LockOf cannot answer for a range of
	// keys, so deleting a range is refused with [resourceguard.ErrInvalid].
	// Defaults to none: then it is up to the program to use the right grant.
	//
	// In mode HighWater it is called with the names that Resource returns, and
	// those that are given to Advance, SetFloor and Do. Defaults to the name
	// itself: a resource is called like the lock that guards it.
	LockOf func(resource string) (lock string, err error)

	// Resource names the resource that a key belongs to, in mode HighWater only:
	// each resource has a mark of its own, which every owner has to raise once. It
	// cannot answer for a range of keys, so with it reading or deleting a range is
	// refused with [resourceguard.ErrInvalid]; and so is an operation of
	// resourceguard.WithOperation whose keys are of several resources. Defaults to
	// one resource for each lock, named by the lock, for all of the keys.
	Resource func(key string) (resource string, err error)

	// Policy is what happens to a token that equals the mark. In mode Held there is
	// no mark, and it must be AcceptEqual. Defaults to AcceptEqual.
	Policy resourceguard.Policy

	// KeepOperations is how long the record of an operation is kept at least, by
	// the clocks of the programs that write them: as long as callers repeat. Those
	// of the mark's own token are kept longer. It must not be negative. Defaults to
	// [DefaultKeepOperations].
	KeepOperations time.Duration

	// Registerer gets the metrics: see the package comment. Several guards may
	// share one, and then count together. Defaults to none.
	Registerer prometheus.Registerer

	// Timeout bounds each call whose context has no deadline. It must be above 0.
	// Defaults to [DefaultTimeout].
	Timeout time.Duration
}

// withDefaults returns the options completed and checked.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.KeepOperations == 0 {
		c.KeepOperations = DefaultKeepOperations
	}
	switch {
	case c.Mode != Held && c.Mode != HighWater:
		return c, fmt.Errorf("%w: Options.Mode %v: must be Held or HighWater", resourceguard.ErrInvalid, c.Mode)
	case c.Policy != resourceguard.AcceptEqual && c.Policy != resourceguard.RejectEqual:
		return c, fmt.Errorf("%w: Options.Policy %v: must be AcceptEqual or RejectEqual", resourceguard.ErrInvalid, c.Policy)
	case c.Mode == Held && c.Policy != resourceguard.AcceptEqual:
		return c, fmt.Errorf("%w: Options.Policy %v: mode Held keeps no mark that a write could equal: use HighWater", resourceguard.ErrInvalid, c.Policy)
	case c.Mode == Held && c.Resource != nil:
		return c, fmt.Errorf("%w: Options.Resource: mode Held keeps no marks: use HighWater", resourceguard.ErrInvalid)
	case c.KeepOperations < 0:
		return c, fmt.Errorf("%w: Options.KeepOperations %v: must not be negative", resourceguard.ErrInvalid, c.KeepOperations)
	case !strings.HasSuffix(c.Prefix, "/") || len(c.Prefix) > maxPrefix:
		return c, fmt.Errorf("%w: Options.Prefix %.80q: must end in \"/\" and have at most %d bytes", resourceguard.ErrInvalid, c.Prefix, maxPrefix)
	case c.Timeout < 0:
		return c, fmt.Errorf("%w: Options.Timeout %v: must be above 0", resourceguard.ErrInvalid, c.Timeout)
	}
	return c, nil
}

// directory is where the keys of a lock are.
func (o *Options) directory(lock string) string {
	if o.Directory != nil {
		return o.Directory(lock)
	}
	return o.locks() + url.PathEscape(lock) + "/"
}

// lockIn is the inverse of directory: the name of the lock whose directory it is.
// Of a directory that the user has chosen the path is all that is known.
func (o *Options) lockIn(directory string) (string, error) {
	if o.Directory != nil {
		return strings.TrimSuffix(directory, "/"), nil
	}
	escaped, ok := strings.CutPrefix(strings.TrimSuffix(directory, "/"), o.locks())
	if ok {
		if lock, err := url.PathUnescape(escaped); err == nil && o.directory(lock) == directory {
			return lock, nil
		}
	}
	return "", fmt.Errorf("%w: %q is no directory of a lock under %q: is Options.Prefix, or Options.Directory, that of the coordinator?",
		resourceguard.ErrInvalid, directory, o.locks())
}

func (o *Options) locks() string { return o.Prefix + "locks/" }
func (o *Options) epoch() string { return o.Prefix + "epoch" }

// firstIn is the present owner of the lock with this directory.
func firstIn(directory string) clientv3.Op {
	return clientv3.OpGet(directory, append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...)
}
