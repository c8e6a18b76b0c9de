package etcdguard

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

const (
	// DefaultPrefix is where the coordinator keeps its locks.
	DefaultPrefix = "/etcd-fence/"
	// DefaultTimeout is a little longer than etcd itself takes to give up on a
	// request, which is about seven seconds, so that its own answer is heard.
	DefaultTimeout = 10 * time.Second

	maxPrefix = 1024
)

// Mode is what a guard goes by.
type Mode int

// Held lets an operation through if, and only if, the grant's lock key exists at
// the moment at which etcd applies the operation. It is the default.
const Held Mode = 0

// String returns the name of the mode.
func (m Mode) String() string {
	if m == Held {
		return "Held"
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
	Directory func(lock string) string

	// LockOf names the lock that guards a key. With it, a write under the grant of
	// any other lock is refused with [resourceguard.ErrWrongLock] before it is
	// sent, and so is an error of LockOf itself. It cannot answer for a range of
	// keys, so deleting a range is refused with [resourceguard.ErrInvalid].
	// Defaults to none: then it is up to the program to use the right grant.
	LockOf func(key string) (lock string, err error)

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
	switch {
	case c.Mode != Held:
		return c, fmt.Errorf("%w: Options.Mode %v: must be Held", resourceguard.ErrInvalid, c.Mode)
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
