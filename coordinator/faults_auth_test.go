package coordinator_test

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// Auth tokens live for much less than a lock is held and waited for, and simple
// ones are lost with a member that restarts (etcd-io/etcd#11954, #12615).
func TestAuthTokensExpireWhileHoldingAndWaiting(t *testing.T) {
	long(t)
	const tokenTTL = 3 * time.Second
	for name, jwt := range map[string]bool{"simple": false, "JWT": true} {
		t.Run(name, func(t *testing.T) {
			etcd, asUser := guarded(t, embedded.Auth{TokenTTL: tokenTTL, JWT: jwt})
			root := etcd.Client()
			label(t)
			t.Cleanup(func() { nothingLeft(t, root) })
			client, w := tapped(t, etcd, asUser)
			opts := coordinator.Options{TTL: 6 * time.Second}
			holder, waiter := newCoordinator(t, client, opts), newCoordinator(t, client, opts)
			g := acquire(t, holder, "orders")
			waits := ask(t, waiter, "orders")
			lasts := func() {
				t.Helper()
				if err := g.Err(); err != nil {
					t.Fatalf("the holder lost its lock: %v", err)
				}
				waits.waits(t)
			}
			for start := time.Now(); time.Since(start) < 2*tokenTTL; pause() {
				lasts()
			}
			for member := range 3 {
				etcd.Restart(t, member)
			}
			back := time.Now()
			eventually(t, "a proof since", func() bool { return holder.Health().ProofAge < time.Since(back) })
			lasts()
			release(t, g)
			h := waits.granted(t)
			rises(t, g, h)
			release(t, h)
			release(t, acquire(t, holder, "orders"))
			if n := w.Calls("Authenticate"); n > 200 {
				t.Errorf("asked for a token %d times", n)
			}

			// A user that is gone is told so, and does not wait.
			ctx := within(t, patience)
			if _, err := root.UserDelete(ctx, "locks"); err != nil {
				t.Fatal(err)
			}
			refused := is(rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrPermissionDenied, rpctypes.ErrUserNotFound)
			if _, err := holder.Acquire(ctx, "orders"); err == nil || !refused(err) {
				t.Errorf("a user that was deleted: %v", err)
			}
			if _, err := root.UserAdd(ctx, "locks", "secret"); err != nil {
				t.Fatal(err)
			}
			if _, err := root.UserGrantRole(ctx, "locks", "locks"); err != nil {
				t.Fatal(err)
			}
		})
	}
}
