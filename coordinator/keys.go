package coordinator

import (
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// layout is where things live under a prefix. The formats are golden: see
// testdata/keys.golden.
type layout struct {
	prefix   string
	anywhere bool // Options.Directory says where locks lie
}

func (l layout) epoch() string    { return l.prefix + "epoch" }
func (l layout) sessions() string { return l.prefix + "sessions/" }
func (l layout) locks() string    { return l.prefix + "locks/" }
func (l layout) marks() string    { return l.prefix + "marks/" }
func (l layout) ops() string      { return l.prefix + "ops/" }
func (l layout) floors() string   { return l.prefix + "floors/" }

func (l layout) session(lease clientv3.LeaseID) string {
	return l.sessions() + leaseHex(lease)
}

// eviction is where the holder of a lock key learns that it was evicted.
func (l layout) eviction(lease clientv3.LeaseID, key string) string {
	return l.session(lease) + "/evicted/" + leaf(key)
}

// directory is the queue of a lock. Escaping the name keeps "a" and "a/b" from
// sharing a prefix, and everything that a user types inside locks/.
func (l layout) directory(lock string) string {
	return l.locks() + url.PathEscape(lock) + "/"
}

// isDirectory reports whether d has the form of a directory of this layout.
func (l layout) isDirectory(d string) bool {
	name, ok := strings.CutPrefix(d, l.locks())
	return ok && len(name) > 1 && strings.IndexByte(name, '/') == len(name)-1
}

// lockKey names one attempt to get one lock. The serial is never used twice
// under a lease, so no key of this name can ever belong to another attempt.
func lockKey(directory string, lease clientv3.LeaseID, serial uint64) string {
	return directory + leaseHex(lease) + "-" + strconv.FormatUint(serial, 10)
}

func leaseHex(lease clientv3.LeaseID) string { return strconv.FormatInt(int64(lease), 16) }

// leaf is the last segment of a lock key.
func leaf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// isLockKeyOf reports whether key has the form of a lock key of this lease, and
// with which serial. Keys of other forms are never ours to delete. With
// Options.Directory, where a lock key can lie anywhere, it is the last segment
// that has the form: whether a lock lies there, only who used it knows.
func (l layout) isLockKeyOf(lease clientv3.LeaseID, key string) (n uint64, ok bool) {
	if strings.HasPrefix(key, l.prefix) || !l.anywhere {
		rest, ok := strings.CutPrefix(key, l.locks())
		if !ok || strings.Count(rest, "/") != 1 {
			return 0, false
		}
	}
	serial, ok := strings.CutPrefix(leaf(key), leaseHex(lease)+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(serial, 10, 64)
	return n, err == nil && strconv.FormatUint(n, 10) == serial
}
