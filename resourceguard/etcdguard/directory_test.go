package etcdguard_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
)

// TestOneLockHasOneMark, in whichever way its grants are presented and wherever its
// keys are: who was accepted in one way refuses older tokens in every other.
func TestOneLockHasOneMark(t *testing.T) {
	jobs := func(lock string) string { return "/jobs/" + lock + "/" }
	for name, opts := range map[string]etcdguard.Options{
		"default":             {},
		"directory":           {Directory: jobs},
		"resource":            {Resource: func(string) (string, error) { return "l", nil }},
		"directory, resource": {Directory: jobs, Resource: func(string) (string, error) { return "l", nil }},
		"directory, resource, lock": {
			Directory: jobs,
			Resource:  func(string) (string, error) { return "r", nil },
			LockOf:    func(string) (string, error) { return "l", nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts.Mode = etcdguard.HighWater
			s := start(t, &opts)
			resource := "l"
			if opts.LockOf != nil {
				resource = "r"
			}
			ways := map[string]func(g grant, value string) error{
				"grant":  s.putBy(t, func(g grant) etcdguard.Fenced { return g }),
				"grants": s.putBy(t, func(g grant) etcdguard.Fenced { return grants{g} }),
				"token":  s.putBy(t, func(g grant) etcdguard.Fenced { return etcdguard.FromToken(g) }),
				"do": func(g grant, value string) error {
					_, _, err := s.guard.Do(t.Context(), resourceguard.Write{Resource: resource, Token: g.token}, clientv3.OpPut("data", value))
					return err
				},
			}
			dir := directory("l")
			if opts.Directory != nil {
				dir = jobs("l")
			}
			older := acquireIn(t, s.truth, "l", dir)
			for way, put := range ways {
				err := put(older, "old")
				switch unnamed := way == "grants" && opts.Directory != nil && opts.Resource == nil; {
				case unnamed && errors.Is(err, resourceguard.ErrInvalid):
					delete(ways, way)
				case unnamed || err != nil:
					t.Fatalf("%s: %v", way, err)
				}
			}
			for newer, raise := range ways {
				s.etcd.Expire(t, older)
				owner := acquireIn(t, s.truth, "l", dir)
				if err := raise(owner, "new"); err != nil {
					t.Fatalf("%s: %v", newer, err)
				}
				for way, put := range ways {
					wantRefused(t, way+" after "+newer, put(older, "5"), resourceguard.ErrStale)
				}
				s.wantValue(t, "data", "new")
				s.wantMarkText(t, resource, owner.text())
				older = owner
			}
		})
	}
}

// putBy is a way to put under a grant.
func (s *setup) putBy(t *testing.T, f func(grant) etcdguard.Fenced) func(grant, string) error {
	return func(g grant, value string) error {
		kv, err := s.guard.KV(f(g))
		if err != nil {
			return err
		}
		_, err = kv.Put(t.Context(), "data", value)
		return err
	}
}
