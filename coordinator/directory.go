package coordinator

import (
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// maxDirectory bounds what Options.Directory may return; etcd keys can be longer.
const maxDirectory = 4 << 10

// directory is where the queue of a lock lies in etcd.
func (c *Coordinator) directory(lock string) (string, error) {
	if err := revisionfence.CheckName(lock); err != nil {
		return "", err
	}
	if c.opts.Directory == nil {
		return c.keys.directory(lock), nil
	}
	d := c.opts.Directory(lock)
	switch {
	case !strings.HasSuffix(d, "/") || len(d) > maxDirectory:
		return "", fmt.Errorf("%w: Options.Directory puts lock %q into %q: a directory ends in \"/\" and has at most %d bytes", ErrInvalidName, lock, d, maxDirectory)
	case strings.HasPrefix(c.keys.prefix, d), strings.HasPrefix(d, c.keys.prefix) && !c.keys.isDirectory(d):
		return "", fmt.Errorf("%w: Options.Directory puts lock %q into %q, where this package keeps other things", ErrInvalidName, lock, d)
	}
	return d, nil
}

// directoryHash stands for a directory where thousands of them are remembered for
// long, and where one mistaken for another in 2^64 does no harm.
func directoryHash(d string) uint64 { return maphash.String(directorySeed, d) }

var directorySeed = maphash.MakeSeed()

// directories are those in use, and how many of them lie below each place. It is
// kept only with Options.Directory: escaped names cannot lie below one another.
type directories map[string]int

// claimLocked refuses a directory that lies below another that is in use, or
// above one: the keys of the one would stand in the queue of the other.
func (c *Coordinator) claimLocked(directory string) error {
	if c.opts.Directory == nil {
		return nil
	}
	if c.below[directory] > 0 {
		return fmt.Errorf("%w: directory %q has the directory of another lock below it", ErrInvalidName, directory)
	}
	for place := range above(directory) {
		if c.queues[place] != nil {
			return fmt.Errorf("%w: directory %q lies below %q, the directory of another lock", ErrInvalidName, directory, place)
		}
	}
	for place := range above(directory) {
		c.below[place]++
	}
	return nil
}

// vanishLocked removes a queue that nobody needs any more.
func (c *Coordinator) vanishLocked(q *queue) {
	if c.queues[q.directory] != q {
		return // it has vanished, and another may stand in its place
	}
	delete(c.queues, q.directory)
	if c.opts.Directory == nil {
		return
	}
	for place := range above(q.directory) {
		if c.below[place]--; c.below[place] == 0 {
			delete(c.below, place)
		}
	}
}

// above yields the places above a directory: "/a/" and "/" for "/a/b/".
func above(directory string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := len(directory) - 2; i >= 0; i-- {
			if directory[i] == '/' && !yield(directory[:i+1]) {
				return
			}
		}
	}
}
