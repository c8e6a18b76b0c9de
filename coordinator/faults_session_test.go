package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// The session of a try is found to be over just before its request is sent. That
// is no silence of etcd's: it is asked again, with another session. Whoever found
// out is told so in a way that can be matched.
func TestTryWhoseSessionEndsUnderItAsksAgain(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	old := acquire(t, c, "other")
	session := sessionsPrefix + strings.Split(old.Owner(), "-")[0]
	var once sync.Once
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		if transaction(call) == enters {
			once.Do(func() {
				if resp, err := etcd.Client().Delete(ctx, session); err != nil || resp.Deleted != 1 {
					t.Errorf("delete %s: %v, %v", session, resp, err)
				}
				if err := c.Ping(within(t, patience)); !errors.Is(err, coordinator.ErrLost) {
					t.Errorf("ping of a session that is gone: %v", err)
				}
				<-ctx.Done()
			})
		}
		return call.Send(ctx)
	})
	g, err := c.TryAcquire(within(t, patience), "orders")
	if err != nil {
		t.Fatal(err)
	}
	release(t, g)
}
