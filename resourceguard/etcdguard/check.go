package etcdguard

import (
	"bytes"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// check refuses what the fence cannot cover, and reports whether the operations
// only read.
func (kv *fencedKV) check(ops []clientv3.Op) (reads bool, err error) {
	reads = true
	for op := range leaves(ops) {
		switch {
		case op.IsGet():
			err = kv.checkRead(op)
		case op.IsPut(), op.IsDelete():
			reads = false
			err = kv.checkWrite(op)
		default:
			err = fmt.Errorf("%w: an operation of no kind", resourceguard.ErrInvalid)
		}
		if err != nil {
			return false, err
		}
	}
	return reads, nil
}

func (kv *fencedKV) checkRead(op clientv3.Op) error {
	switch rev := op.Rev(); {
	case rev > 0 && rev < kv.floor:
		return fmt.Errorf("%w: get %q at revision %d, the token is of revision %d", ErrUnfencedRead, op.KeyBytes(), rev, kv.floor)
	case rev <= 0 && op.IsSerializable():
		// With a revision the answer is the same whoever gives it. The software
		// transactions of clientv3/concurrency read like that.
		return fmt.Errorf("%w: serializable get %q", ErrUnfencedRead, op.KeyBytes())
	}
	return nil
}

func (kv *fencedKV) checkWrite(op clientv3.Op) error {
	key, end := op.KeyBytes(), op.RangeBytes()
	for _, r := range kv.protected {
		if r.touchedBy(key, end) {
			return fmt.Errorf("%w: %s reaches into %q", ErrProtectedKey, describe(key, end), r.first)
		}
	}
	if kv.guard.opts.Mode == HighWater {
		return nil // the claims tell
	}
	if kv.guard.opts.LockOf != nil && len(end) > 0 {
		return fmt.Errorf("%w: delete %s: Options.LockOf cannot tell which lock guards a range", resourceguard.ErrInvalid, describe(key, end))
	}
	return kv.guard.bound(string(key), kv.fences)
}

// bound refuses a key that another lock guards than those of the fences.
func (g *Guard) bound(key string, fences []fence) error {
	if g.opts.LockOf == nil {
		return nil
	}
	lock, err := g.opts.LockOf(key)
	if err != nil {
		return fmt.Errorf("the lock that guards %q: %w", key, err)
	}
	directory := g.opts.directory(lock)
	if !slices.ContainsFunc(fences, func(f fence) bool { return f.directory == directory }) {
		return fmt.Errorf("%w: %q is guarded by lock %q, and the token is %s", resourceguard.ErrWrongLock, key, lock, fences[0].token)
	}
	return nil
}

// keyRange is the keys from first up to, and without, last.
type keyRange struct{ first, last []byte }

// under is the range of all keys with the prefix.
func under(prefix string) keyRange {
	return keyRange{[]byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))}
}

// touchedBy reports whether the key, or the range [key, end), meets r. As
// everywhere in etcd an end of "\x00" has no upper bound.
func (r keyRange) touchedBy(key, end []byte) bool {
	if len(end) == 0 {
		return bytes.Compare(r.first, key) <= 0 && bytes.Compare(key, r.last) < 0
	}
	unbounded := len(end) == 1 && end[0] == 0
	return bytes.Compare(key, r.last) < 0 && (unbounded || bytes.Compare(r.first, end) < 0)
}

func describe(key, end []byte) string {
	if len(end) == 0 {
		return fmt.Sprintf("%q", key)
	}
	return fmt.Sprintf("%q … %q", key, end)
}

// leaves yields the operations, and those of nested transactions.
func leaves(ops []clientv3.Op) func(yield func(clientv3.Op) bool) {
	return func(yield func(clientv3.Op) bool) { walk(ops, yield) }
}

func walk(ops []clientv3.Op, yield func(clientv3.Op) bool) bool {
	for _, op := range ops {
		if op.IsTxn() {
			_, then, otherwise := op.Txn()
			if !walk(then, yield) || !walk(otherwise, yield) {
				return false
			}
		} else if !yield(op) {
			return false
		}
	}
	return true
}

// resourceOf names what an error is about: the first key that would have been
// written, or else read.
func resourceOf(ops []clientv3.Op) string {
	var first string
	for op := range leaves(ops) {
		if !op.IsGet() {
			return string(op.KeyBytes())
		}
		if first == "" {
			first = string(op.KeyBytes())
		}
	}
	return first
}

// onlyReads reports whether no operation writes.
func onlyReads(ops []clientv3.Op) bool {
	for op := range leaves(ops) {
		if !op.IsGet() {
			return false
		}
	}
	return true
}
