package coordinator_test

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// A guard that asks etcd knows of a loss before its holder's next proof. Who
// returns the guard's error, as one does, has lost and not resigned.
func TestRefusedTokenIsALoss(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *clientv3.Client, *coordinator.Coordinator, *coordinator.Grant) error{
		"evicted": func(t *testing.T, _ *clientv3.Client, operator *coordinator.Coordinator, g *coordinator.Grant) error {
			return operator.Evict(within(t, patience), g.Token(), "a test")
		},
		"lock key deleted": func(t *testing.T, client *clientv3.Client, _ *coordinator.Coordinator, g *coordinator.Grant) error {
			_, err := client.Delete(within(t, patience), g.Key())
			return err
		},
		"lease revoked": func(t *testing.T, client *clientv3.Client, _ *coordinator.Coordinator, g *coordinator.Grant) error {
			_, err := client.Revoke(within(t, patience), g.Lease())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := cluster(t, nil)
			client := etcd.Client()
			c, operator := newCoordinator(t, client, steady), newCoordinator(t, client, steady)
			guard, err := etcdguard.New(client, nil)
			if err != nil {
				t.Fatal(err)
			}
			tenure := func(ctx context.Context, g *coordinator.Grant) error {
				kv, err := guard.KV(g)
				if err != nil {
					return err
				}
				if err := end(t, client, operator, g); err != nil {
					t.Error(err)
				}
				_, err = kv.Put(ctx, "value", "late")
				if g.Err() != nil {
					t.Logf("known before the guard's error was returned: %v", g.Err())
				}
				return err
			}

			err = c.Do(within(t, patience), "orders", tenure)
			if !errors.Is(err, resourceguard.ErrStale) || !errors.Is(err, coordinator.ErrLost) {
				t.Errorf("Do: %v, want the guard's error and the loss", err)
			}
			tenures := 0
			err = c.Lead(within(t, patience), "orders", func(ctx context.Context, g *coordinator.Grant) error {
				if tenures++; tenures > 2 {
					return nil
				}
				return tenure(ctx, g)
			})
			if err != nil || tenures != 3 {
				t.Errorf("Lead: %v after %d tenures, want that it contends again", err, tenures)
			}
		})
	}
}

// A guard refuses a token for other reasons, too: it was used up, or it is not the
// grant's own.
func TestRefusedTokenOfAGrantThatStandsIsNoLoss(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	release(t, acquire(t, c, "orders"))
	older, err := revisionfence.New("orders", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		presented func(*coordinator.Grant) revisionfence.Token
		looks     int
	}{
		"used up":       {(*coordinator.Grant).Token, 1},
		"another token": {func(*coordinator.Grant) revisionfence.Token { return older }, 0},
	} {
		for _, call := range []struct {
			name string
			of   func(context.Context, string, func(context.Context, *coordinator.Grant) error, ...coordinator.AcquireOption) error
		}{{"Do", c.Do}, {"Lead", c.Lead}} {
			txns := count(w)
			var stale error
			err := call.of(within(t, patience), "orders", func(_ context.Context, g *coordinator.Grant) error {
				stale = &resourceguard.StaleError{Presented: tt.presented(g), Accepted: g.Token()}
				return stale
			})
			if err != stale {
				t.Errorf("%s, %s: %v, want the function's error as it is", call.name, name, err)
			}
			if n := txns.of(reads); n != tt.looks {
				t.Errorf("%s, %s: etcd was asked %d times, want %d", call.name, name, n, tt.looks)
			}
		}
	}
}
