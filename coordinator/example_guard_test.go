package coordinator_test

import (
	"context"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// TestExamplesWorkWithEitherMode: whoever copies an example may choose the mode of
// the guard afterwards.
func TestExamplesWorkWithEitherMode(t *testing.T) {
	etcd := embedded.Start(t, nil)
	c, err := coordinator.New(etcd.Client(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i, mode := range []etcdguard.Mode{etcdguard.Held, etcdguard.HighWater} {
		guard, err := etcdguard.New(etcd.Client(), &etcdguard.Options{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		cron := &nightly{c, guard}
		if did, err := cron.run(ctx, []string{"2026-12-30", "2026-12-31"}[i]); err != nil || !did {
			t.Errorf("%v: cron job: did it %v, %v", mode, did, err)
		}
		controller := &replica{c, guard}
		err = controller.lead(ctx, func(ctx context.Context, g *coordinator.Grant) error {
			_, err := controller.advance(ctx, g)
			return err
		})
		if err != nil {
			t.Errorf("%v: controller: %v", mode, err)
		}
		workers := &pool{c: c, guard: guard, jobs: []string{"job of " + mode.String()}}
		if err := workers.work(ctx, 1); err != nil || workers.did.Load() != 1 {
			t.Errorf("%v: pool: did %d jobs, %v", mode, workers.did.Load(), err)
		}
	}
}
