package etcdguard

import (
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// ErrNotHeld is a Mutex that is not locked or an Election that is not won: never,
// not yet, or not any more.
var ErrNotHeld = errors.New("lock is not held")

// LockKey is a fence for a lock that etcd's concurrency package holds: see
// [FromMutex] and [FromElection]. It stands for one tenure and never changes,
// whatever becomes of what it was made from; the zero LockKey stands for none and
// is refused. It is a [Fenced] and a [revisionfence.Source].
type LockKey struct {
	key   string
	token revisionfence.Token
}

var (
	_ Fenced               = LockKey{}
	_ revisionfence.Source = LockKey{}
)

// FromMutex returns a fence for the present tenure of a locked Mutex. It is for
// programs that keep concurrency.Mutex for now:
//
//	m := concurrency.NewMutex(session, "/jobs/report")
//	guard, err := etcdguard.New(client, &etcdguard.Options{
//		Directory: func(lock string) string { return "/jobs/" + lock + "/" },
//	})
//	...
//	err = m.Lock(ctx)
//	...
//	tenure, err := etcdguard.FromMutex("report", m) // after each Lock
//	...
//	err = guard.Advance(ctx, tenure.Token().Lock(), tenure.Token()) // before the first read
//	...
//	kv, err := guard.KV(tenure)
//
// Options.Directory has to be set: it tells the guard where the keys of a lock
// are, which for a Mutex is its prefix and a slash. It is what a coordinator takes
// as its own Options.Directory when its turn comes, and both then exclude each
// other. The name of the lock is free otherwise, and shows in tokens and errors.
//
// The token is the create revision of the Mutex's key, which is not the revision
// of its Header. It is taken from the Mutex without a request to etcd, so that:
//
//   - FromMutex must not run at the same time as a method of the Mutex, which is
//     no more safe for that than before.
//   - It cannot know that the session has ended meanwhile. Etcd does, and refuses
//     each operation under the fence as stale.
//   - The token is of epoch 0, the only one there is until a coordinator's epoch
//     has been raised after a restore of etcd: see [LockKey.WithEpoch].
//
// A Mutex that is unlocked and locked again has the same key and another token:
// make a new fence. The old one stays refused, in mode HighWater once the new one
// has advanced.
//
// Mode HighWater stores marks under Options.Prefix, and none before a coordinator has
// put its epoch record there: call the Ping of a coordinator with that prefix once.
// Without it every operation fails with [ErrNoEpoch].
//
// It fails with [ErrNotHeld] if the Mutex was never locked, is unlocked, or only
// waits, where a waiter is known by a Header that is missing or older than its
// key; with [resourceguard.ErrInvalid] if m is nil; and with
// revisionfence.ErrInvalidName if no lock can have that name.
func FromMutex(lock string, m *concurrency.Mutex) (LockKey, error) {
	if m == nil {
		return LockKey{}, fmt.Errorf("etcdguard: %w: the Mutex is nil", resourceguard.ErrInvalid)
	}
	// IsOwner names the key and its create revision, which no method tells.
	owner := m.IsOwner()
	return lockKey(lock, string(owner.KeyBytes()), owner.GetCompare().GetCreateRevision(), m.Header())
}

// FromElection returns a fence for the present tenure of the winner of an
// Election. It is for programs that keep concurrency.Election for now, and all
// that [FromMutex] says holds for it: take it after each Campaign that returned
// without an error.
//
// Campaign does not look whether its session outlasted the waiting, so a fence can
// be that of a leader that never was. Etcd refuses it.
//
// An Election of ResumeElection has no Header before its first Proclaim and fails
// with [ErrNotHeld] until then. Proclaim proves that the key exists, and not that
// it is first: an Election that resumed the key of a candidate, or that sent
// Proclaim while it was one, cannot be told from the leader here. Guard.Advance
// can tell, and is due before the first read anyhow.
func FromElection(lock string, e *concurrency.Election) (LockKey, error) {
	if e == nil {
		return LockKey{}, fmt.Errorf("etcdguard: %w: the Election is nil", resourceguard.ErrInvalid)
	}
	return lockKey(lock, e.Key(), e.Rev(), e.Header())
}

// lockKey refuses whoever does not hold the lock as far as it knows itself.
func lockKey(lock, key string, created int64, header *pb.ResponseHeader) (LockKey, error) {
	switch {
	case created < 1 || key == "" || key == "\x00":
		return LockKey{}, fmt.Errorf("etcdguard: lock %q: %w: never locked, or given up", lock, notApplied(ErrNotHeld))
	case header.GetRevision() < created:
		// The header comes with the lock, and the key comes with the wish for it.
		return LockKey{}, fmt.Errorf("etcdguard: lock %q: %w: its key %q has only been waiting", lock, notApplied(ErrNotHeld), key)
	}
	token, err := revisionfence.New(lock, 0, created)
	if err != nil {
		return LockKey{}, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	return LockKey{key: key, token: token}, nil
}

// WithEpoch returns the same fence with a token of another epoch, 0 to
// revisionfence.MaxEpoch. It is needed where a coordinator works on the same
// Options.Prefix and its epoch has been raised: the tokens of its grants tell the
// epoch, and Guard.Advance refuses one of another epoch as stale. It fails with
// revisionfence.ErrOutOfRange, and with [resourceguard.ErrNoToken] for the zero
// LockKey.
func (k LockKey) WithEpoch(epoch uint16) (LockKey, error) {
	if k.token.IsZero() {
		return LockKey{}, fmt.Errorf("etcdguard: %w", resourceguard.ErrNoToken)
	}
	token, err := revisionfence.New(k.token.Lock(), epoch, k.token.Revision())
	if err != nil {
		return LockKey{}, fmt.Errorf("etcdguard: %w", notApplied(err))
	}
	return LockKey{key: k.key, token: token}, nil
}

// Token returns the fencing token of the tenure, zero for the zero LockKey.
func (k LockKey) Token() revisionfence.Token { return k.token }

// Key returns the lock key in etcd, whose create revision is the token.
func (k LockKey) Key() string { return k.key }

// Fence returns the compare that is true in etcd for as long as the tenure lasts,
// and none for the zero LockKey.
func (k LockKey) Fence() []clientv3.Cmp {
	if k.token.IsZero() {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(k.key), "=", k.token.Revision())}
}
