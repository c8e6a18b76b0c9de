package coordinator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// What a caller got wrong is told before anything is asked of etcd, whatever
// else is the case, and never by a panic.
func TestAcquireOptionsAreCheckedBeforeAnyRequest(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	g := acquire(t, c, "held") // a busy lock hides nothing
	w.Reset()
	nothing := func(context.Context, *coordinator.Grant) error {
		t.Error("the function has run")
		return nil
	}
	fine := coordinator.Reason("fine")
	for name, opts := range map[string][]coordinator.AcquireOption{
		"nil option":               {nil},
		"nil option after another": {fine, nil, fine},
		"nil barrier":              {coordinator.Raise(nil)},
		"nil barrier after one":    {coordinator.Raise(func(context.Context, revisionfence.Token) error { return nil }, nil)},
		"no wait":                  {coordinator.WaitAtMost(0)},
		"negative wait":            {coordinator.WaitAtMost(-time.Second)},
		"negative, then fine":      {coordinator.WaitAtMost(-time.Second), coordinator.WaitAtMost(time.Second)},
		"no hold":                  {coordinator.MaxHold(0)},
		"negative hold":            {coordinator.MaxHold(-1)},
		"reason":                   {coordinator.Reason("a\nb")},
		"value":                    {coordinator.Value(make([]byte, coordinator.MaxValue+1))},
	} {
		for _, lock := range []string{"free", "held"} {
			for call, err := range map[string]error{
				"Acquire":       errOf(c.Acquire(t.Context(), lock, opts...)),
				"TryAcquire":    errOf(c.TryAcquire(t.Context(), lock, opts...)),
				"TryAcquireAny": errOf(c.TryAcquireAny(t.Context(), only(lock), opts...)),
				"AcquireAll":    allErr(c.AcquireAll(t.Context(), []string{lock, "b"}, opts...)),
				"Do":            c.Do(t.Context(), lock, nothing, opts...),
				"Lead":          c.Lead(t.Context(), lock, nothing, opts...),
			} {
				if !errors.Is(err, coordinator.ErrInvalidOption) {
					t.Errorf("%s of the %s lock, %s: %v", call, lock, name, err)
				}
			}
		}
	}
	for call, err := range map[string]error{
		"TryAcquire with a time to wait":    errOf(c.TryAcquire(t.Context(), "free", coordinator.WaitAtMost(time.Second))),
		"TryAcquireAny with a time to wait": errOf(c.TryAcquireAny(t.Context(), only("held"), coordinator.WaitAtMost(time.Second))),
		"TryAcquireAny of nil":              errOf(c.TryAcquireAny(t.Context(), nil)),
		"Do without a function":             c.Do(t.Context(), "free", nil),
		"Lead without a function":           c.Lead(t.Context(), "free", nil),
		"AcquireAll of nothing":             allErr(c.AcquireAll(t.Context(), nil)),
	} {
		if !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("%s: %v", call, err)
		}
	}
	// The session's own proofs are no concern of this.
	counts := w.Counts()
	delete(counts, "LeaseKeepAlive")
	delete(counts, "LeaseTimeToLive")
	for method, n := range counts {
		if n > 0 {
			t.Errorf("%d requests %s", n, method)
		}
	}
	release(t, g)
}

func allErr(all *coordinator.Grants, err error) error {
	if err == nil {
		return all.Err()
	}
	return err
}

func TestHookThatReturnsNoContextChangesNone(t *testing.T) {
	etcd := cluster(t, nil)
	opts := steady
	opts.Hooks.AcquireStart = func(context.Context, coordinator.AcquireStart) context.Context { return nil }
	c := newCoordinator(t, etcd.Client(), opts)
	release(t, acquire(t, c, "orders"))
}
