package etcdguard

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// maxFences is how many locks one KV can stand for. Then half of etcd's limit of
// 128 compares and operations is left for the program's own.
const maxFences = 64

// Fenced is what can be fenced by: a grant of the coordinator, or several grants
// at once. One that is also a [revisionfence.Source] has exactly one compare.
type Fenced interface {
	// Fence returns compares that etcd finds true for exactly as long as the grant
	// lasts. Each says that the create revision of a lock key equals a token's
	// revision, and nothing else.
	//
	// It must not return them before the lock is held: the key of a waiter exists
	// as well.
	Fence() []clientv3.Cmp
}

// fence is one lock of a Fenced.
type fence struct {
	key       string // of the grant
	directory string // of the lock, with the slash
	token     revisionfence.Token
	owner     string // the last segment of the key; "" if only a token is known
	epochless bool   // the token is of the epoch on record, which is not known yet
}

// fences reads what Fence returned. Everything that is not plainly "this lock key
// was created at this revision" is refused: it could be true without a grant.
func (o *Options) fences(f Fenced) ([]fence, error) {
	if isNil(f) {
		return nil, fmt.Errorf("%w: nothing to fence by", resourceguard.ErrNoToken)
	}
	source, isSource := f.(revisionfence.Source)
	if isSource && source.Token().IsZero() {
		return nil, resourceguard.ErrNoToken
	}
	compares := f.Fence()
	switch n := len(compares); {
	case n == 0 && isSource && o.Mode == HighWater:
		t := source.Token()
		return []fence{{directory: o.directory(t.Lock()), token: t}}, nil
	case n == 0 && isSource:
		return nil, fmt.Errorf("%w that mode Held can check: it compares the lock's key, and this fence has a token and no key; give the grant itself, or use mode HighWater", resourceguard.ErrNoToken)
	case n == 0:
		return nil, fmt.Errorf("%w: the fence has no compares", resourceguard.ErrNoToken)
	case n > maxFences:
		return nil, fmt.Errorf("%w: the fence has %d compares, at most %d are possible", resourceguard.ErrInvalid, n, maxFences)
	case isSource && n > 1:
		return nil, fmt.Errorf("%w: the fence has one token and %d compares: no token stands for two locks", resourceguard.ErrInvalid, n)
	}
	result := make([]fence, len(compares))
	for i, c := range compares {
		key, revision, err := ownership(c.GetCompare())
		if err != nil {
			return nil, err
		}
		slash := strings.LastIndexByte(key, '/') + 1
		result[i] = fence{key: key, directory: key[:slash], owner: key[slash:], epochless: !isSource}
		if isSource {
			err = result[i].present(o, source.Token(), revision)
		} else {
			err = result[i].derive(o, revision)
		}
		if err != nil {
			return nil, err
		}
		if err := result[i].alone(result[:i]); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// alone refuses a second tenure of a lock: at most one of two can hold it, and a
// lock has one mark, which would let the fence through by either.
func (f *fence) alone(others []fence) error {
	for _, o := range others {
		if o.directory == f.directory && (o.key != f.key || o.token.Revision() != f.token.Revision()) {
			return fmt.Errorf("%w: the fence compares %q at revision %d and %q at revision %d, two tenures of one lock",
				resourceguard.ErrInvalid, o.key, o.token.Revision(), f.key, f.token.Revision())
		}
	}
	return nil
}

// isNil also sees a nil pointer in the interface, whose methods would panic.
func isNil(f any) bool {
	if f == nil {
		return true
	}
	switch v := reflect.ValueOf(f); v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice:
		return v.IsNil()
	default:
		return false
	}
}

// ownership takes a compare apart.
func ownership(c *pb.Compare) (key string, revision int64, err error) {
	key, revision = string(c.GetKey()), c.GetCreateRevision()
	slash := strings.LastIndexByte(key, '/')
	switch {
	case c.GetTarget() != pb.Compare_CREATE || c.GetResult() != pb.Compare_EQUAL || len(c.GetRangeEnd()) != 0:
		return "", 0, fmt.Errorf("%w: the fence has a compare that is not \"create revision of one key = …\": %v", resourceguard.ErrInvalid, c)
	case slash < 1 || slash == len(key)-1:
		return "", 0, fmt.Errorf("%w: the fence compares %q, which is no key in the directory of a lock", resourceguard.ErrInvalid, key)
	case revision < 1:
		// Of a key that does not exist this is true.
		return "", 0, fmt.Errorf("%w: the fence compares %q with revision %d", resourceguard.ErrNoToken, key, revision)
	}
	return key, revision, nil
}

// present takes the token that the grant itself names.
func (f *fence) present(o *Options, t revisionfence.Token, revision int64) error {
	if t.Revision() != revision {
		return fmt.Errorf("%w: the token is %s and the fence compares with revision %d", resourceguard.ErrInvalid, t, revision)
	}
	if want := o.directory(t.Lock()); want != f.directory {
		return fmt.Errorf("%w: the token is %s, whose keys are in %q, and the fence compares one in %q: is Options.Prefix, or Options.Directory, that of the coordinator?",
			resourceguard.ErrInvalid, t, want, f.directory)
	}
	f.token = t
	return nil
}

// derive makes the token out of the lock key, where several grants name none. The
// key does not tell the epoch, and only error messages would.
func (f *fence) derive(o *Options, revision int64) error {
	if o.Mode == HighWater && o.Directory != nil && o.Resource == nil {
		// A mark named by the path would stand beside that of the lock's own name,
		// and an owner who goes by the one would not see who raised the other.
		return fmt.Errorf("%w: the fence has no token, and Options.Directory does not tell which lock %q is, whose mark decides: set Options.Resource, or fence by one grant",
			resourceguard.ErrInvalid, f.directory)
	}
	lock, err := o.lockIn(f.directory)
	if err != nil {
		return err
	}
	if f.token, err = revisionfence.New(lock, 0, revision); err != nil {
		return fmt.Errorf("%w: the fence on %q: %w", resourceguard.ErrInvalid, f.key, err)
	}
	return nil
}

// compare is true for as long as the grant lasts.
func (f *fence) compare() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(f.key), "=", f.token.Revision())
}

// holds reports whether the first key of the directory is that of the grant.
func (f *fence) holds(first *pb.RangeResponse) bool {
	kvs := first.GetKvs()
	return len(kvs) > 0 && string(kvs[0].Key) == f.key && kvs[0].CreateRevision == f.token.Revision()
}

// ownerIn returns the token of whoever owns the lock, which is the key with the
// smallest create revision, or the zero token.
func ownerIn(first *pb.RangeResponse, lock string, epoch uint16) revisionfence.Token {
	if len(first.GetKvs()) == 0 {
		return revisionfence.Token{}
	}
	// A revision that no token can have is no reason to withhold the refusal.
	t, _ := revisionfence.FromKey(lock, epoch, first.Kvs[0])
	return t
}

// epochIn reads the epoch record. There is none where no coordinator has been: the
// lock keys are another program's, and nobody has ever counted an epoch. Mode Held
// stores nothing and can do without.
func epochIn(record *pb.RangeResponse) (uint16, error) {
	const knownFormat = 1
	if len(record.GetKvs()) == 0 {
		return 0, nil
	}
	var r struct {
		Format int    `json:"format"`
		Epoch  uint16 `json:"epoch"`
	}
	kv := record.Kvs[0]
	if err := json.Unmarshal(kv.Value, &r); err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrFormat, kv.Key, err)
	}
	if r.Format < 1 || r.Format > knownFormat || r.Epoch > revisionfence.MaxEpoch {
		return 0, fmt.Errorf("%w: %s has format %d and epoch %d, known are format %d and epochs up to %d",
			ErrFormat, kv.Key, r.Format, r.Epoch, knownFormat, revisionfence.MaxEpoch)
	}
	return r.Epoch, nil
}
