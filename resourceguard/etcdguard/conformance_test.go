package etcdguard_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// lacks is what mode Held cannot do, since it keeps nothing.
var lacks = map[guardtest.Capability]string{
	guardtest.Marks:       "mode Held asks etcd who owns the lock, and stores nothing",
	guardtest.Floors:      "without marks there is none to raise",
	guardtest.RejectEqual: "without marks nobody knows that a grant has written",
	guardtest.Operations:  "mode Held stores no results",
	guardtest.Owners:      "the lock key is the owner: two cannot present one",
}

func TestConformance(t *testing.T) {
	guardtest.Run(t, newHarness)
}

// TestWhatIsSkipped: exactly what needs a state.
func TestWhatIsSkipped(t *testing.T) {
	var got []string
	for _, p := range guardtest.Properties() {
		if p.Skip(guardtest.Harness{Lacks: lacks}) != "" {
			got = append(got, p.Name)
		}
	}
	want := []string{
		"MarkNeverLowered", "AdvanceFencesBeforeFirstWrite", "UnreadableMarkRefusesWrites", "MarksListsAll",
		"RejectsEqualTokenByPolicy", "AdvanceLeavesTheOneWrite", "OwnerMismatch",
		"RepeatedOperationAppliesOnce", "OperationWithOtherDigestRefused", "OperationNeverAdmitsOldToken",
		"StaleRepeatSaysApplied", "RepeatByNewerOwnerFencesOlder",
		"FloorRaisesAndIsAudited", "FloorRepairsPoisonedMark",
		"OneWriteAmongCompetitors", "OperationIDsAreDistinct", "RepeatedDeleteAppliesOnce",
		"OperationAdmitsNoOtherToken", "OperationAdmitsNoOtherOwner",
		"AdvanceHoldsOtherProcessesOff", "AdvanceSettlesWhatIsRead", "AdvanceIsOneStep",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("skipped:\n%q\nwant:\n%q", got, want)
	}
}

// harness is one etcd with its locks.
type harness struct {
	*setup
	mu     sync.Mutex
	locks  map[string]string // by key
	leases map[string]grant  // by last segment of the lock key
}

func newHarness(t *testing.T) guardtest.Harness {
	h := &harness{setup: start(t, nil), locks: make(map[string]string), leases: make(map[string]grant)}
	h.wire.OnUnary(meddle)
	return guardtest.Harness{
		AuthorityChecked: true,
		Lacks:            lacks,
		Open: func(tb guardtest.TB, _ guardtest.Config) guardtest.Subject {
			return &subject{newGuard(tb, h.client, &etcdguard.Options{LockOf: h.lockOf})}
		},
		Resource: func(_ guardtest.TB, name, lock string) string {
			h.mu.Lock()
			defer h.mu.Unlock()
			key := "data/" + name
			h.locks[key] = lock
			return key
		},
		Read: func(tb guardtest.TB, resource string) ([]byte, bool) {
			value, exists := h.value(tb, resource)
			return []byte(value), exists
		},
		Grant: func(tb guardtest.TB, lock string) guardtest.Grant {
			h.put(tb, "other", "writes come between") // a token is never 1 or 2
			g := acquire(tb, h.truth, lock)
			h.mu.Lock()
			defer h.mu.Unlock()
			owner := g.key[len(directory(lock)):]
			h.leases[owner] = g
			return guardtest.Grant{Token: g.token, Owner: owner}
		},
		EndGrant: func(_ guardtest.TB, g guardtest.Grant) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.etcd.Expire(t, h.leases[g.Owner])
		},
		Restart: func(guardtest.TB) { h.etcd.Restart(t) },
	}
}

func (h *harness) lockOf(key string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lock, ok := h.locks[key]; ok {
		return lock, nil
	}
	return "", fmt.Errorf("no resource %q", key)
}

// subject is a guard whose KV writes one key.
type subject struct{ *etcdguard.Guard }

var (
	_ guardtest.Subject     = (*subject)(nil)
	_ guardtest.SlowPutter  = (*subject)(nil)
	_ guardtest.AnswerLoser = (*subject)(nil)
)

// kv makes the grant from what the kit knows of it.
func (s *subject) kv(w resourceguard.Write) (clientv3.KV, error) {
	return s.KV(grant{key: directory(w.Token.Lock()) + w.Owner, token: w.Token})
}

func (s *subject) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	kv, err := s.kv(w)
	if err != nil {
		return resourceguard.Result{}, err
	}
	if _, err := kv.Put(ctx, w.Resource, string(value)); err != nil {
		return resourceguard.Result{}, err
	}
	return resourceguard.Result{Mark: w.Token}, nil
}

func (s *subject) Delete(ctx context.Context, w resourceguard.Write) (resourceguard.Result, error) {
	kv, err := s.kv(w)
	if err != nil {
		return resourceguard.Result{}, err
	}
	if _, err := kv.Delete(ctx, w.Resource); err != nil {
		return resourceguard.Result{}, err
	}
	return resourceguard.Result{Mark: w.Token}, nil
}

func (s *subject) Get(ctx context.Context, w resourceguard.Write) ([]byte, bool, error) {
	kv, err := s.kv(w)
	if err != nil {
		return nil, false, err
	}
	resp, err := kv.Get(ctx, w.Resource)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, false, err
	}
	return resp.Kvs[0].Value, true, nil
}

// meddling travels in the context of a single call down to the wire.
type meddling func(ctx context.Context, call *wire.Call) error

type meddlingKey struct{}

func meddle(ctx context.Context, call *wire.Call) error {
	if m, ok := ctx.Value(meddlingKey{}).(meddling); ok {
		return m(ctx, call)
	}
	return call.Send(ctx)
}

func (s *subject) PutSlowly(ctx context.Context, w resourceguard.Write, value []byte, during func()) (resourceguard.Result, error) {
	return s.Put(context.WithValue(ctx, meddlingKey{}, meddling(func(ctx context.Context, call *wire.Call) error {
		during() // the request is ready, and has not left
		return call.Send(ctx)
	})), w, value)
}

func (s *subject) PutLosingAnswer(ctx context.Context, w resourceguard.Write, value []byte, apply bool) error {
	_, err := s.Put(context.WithValue(ctx, meddlingKey{}, meddling(func(ctx context.Context, call *wire.Call) error {
		if apply {
			if err := call.Send(ctx); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "the connection broke")
	})), w, value)
	return err
}

func TestUnsupportedWithoutMarks(t *testing.T) {
	s := start(t, nil)
	if _, _, err := s.guard.Mark(t.Context(), "r"); !unsupported(err) {
		t.Errorf("Mark: %v", err)
	}
	if err := s.guard.SetFloor(t.Context(), revisionfence.Mark{}, "why"); !unsupported(err) {
		t.Errorf("SetFloor: %v", err)
	}
	n := 0
	for _, err := range s.guard.Marks(t.Context()) {
		if n++; !unsupported(err) {
			t.Errorf("Marks: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("Marks yields %d times, want one error", n)
	}
}
