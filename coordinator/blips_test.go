package coordinator_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// Whoever only looks may look again: one request that fails, as when a member
// restarts, is no reason for the caller to hear of it.
func TestReadThatFailsOnceIsRepeated(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	holder, c := newCoordinator(t, etcd.Client(), steady), newCoordinator(t, client, steady)
	g := acquire(t, holder, "held")
	calls := map[string]func(lock string) error{
		"Status":    func(lock string) error { _, err := c.Status(t.Context(), lock); return err },
		"IsCurrent": func(string) error { _, err := c.IsCurrent(t.Context(), g.Token()); return err },
		"List": func(string) error {
			for _, err := range c.List(t.Context(), "") {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Observe": func(lock string) error {
			for _, err := range c.Observe(t.Context(), lock) {
				return err
			}
			return nil
		},
		"TryAcquireAny": func(string) error {
			got, err := c.TryAcquireAny(t.Context(), slices.Values([]string{"held", "free"}))
			if err == nil {
				release(t, got)
			}
			return err
		},
		"Evict": func(string) error { return c.Evict(t.Context(), g.Token(), "last") },
	}
	release(t, acquire(t, c, "warm"))
	for _, name := range []string{"Status", "IsCurrent", "List", "Observe", "TryAcquireAny", "Evict"} {
		for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded} {
			if name == "Evict" && code != codes.Unavailable {
				continue // once is enough for a grant
			}
			blip := w.FailBefore("Txn", 1, of(reads), wire.Code(code))
			if err := calls[name]("held"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if blip.Hits() != 1 {
				t.Errorf("%s made no read that failed", name)
			}
			blip.Remove()
		}
		if name == "Evict" {
			continue
		}
		// What is refused stays so, and is told at once.
		refusal := w.FailBefore("Txn", 1, of(reads), wire.Code(codes.PermissionDenied))
		if err := calls[name]("held"); err == nil {
			t.Errorf("%s: not told that etcd refuses it", name)
		}
		refusal.Remove()
	}
}
