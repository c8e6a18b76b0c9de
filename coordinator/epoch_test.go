package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

const epochKey = coordinator.DefaultPrefix + "epoch"

// A recovery starts a new epoch between two steps of opening a session. Its
// tokens must be of the new one.
func TestSessionIsOfTheEpochUnderWhichItsKeyWasCreated(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	before := newCoordinator(t, etcd.Client(), steady)
	old := acquire(t, before, "orders")
	release(t, old)
	c := newCoordinator(t, client, steady)
	request := w.Hold("Txn", of(enrols))
	a := ask(t, c, "orders")
	held(t, request)
	changeEpoch(t, etcd.Client(), func(record map[string]any) { record["epoch"] = 1 })
	request.Release()
	g := a.granted(t)
	if g.Token().Epoch() != 1 {
		t.Errorf("token %s under epoch 1", g.Token())
	}
	rises(t, old, g)
	release(t, g)
}

// changeEpoch rewrites the epoch record.
func changeEpoch(t *testing.T, client *clientv3.Client, change func(map[string]any)) {
	t.Helper()
	resp, err := client.Get(t.Context(), epochKey)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("read the epoch: %v, %v", resp, err)
	}
	record := make(map[string]any)
	if err := json.Unmarshal(resp.Kvs[0].Value, &record); err != nil {
		t.Fatal(err)
	}
	change(record)
	value, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), epochKey, string(value)); err != nil {
		t.Fatal(err)
	}
}

// missingBeside removes the epoch record where something else of ours lies.
func missingBeside(key string) func(*testing.T, *clientv3.Client) {
	return func(t *testing.T, client *clientv3.Client) {
		key := coordinator.DefaultPrefix + key
		if _, err := client.Txn(t.Context()).Then(clientv3.OpDelete(epochKey), clientv3.OpPut(key, "1@orders")).Commit(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = client.Delete(context.WithoutCancel(t.Context()), key) })
	}
}

func TestEpochRecordThatMustNotBeActedOn(t *testing.T) {
	open := func(t *testing.T, client *clientv3.Client) {
		c := newCoordinator(t, client, steady)
		release(t, acquire(t, c, "orders"))
		if err := c.Close(within(t, patience)); err != nil { // and no session is left
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		spoil func(*testing.T, *clientv3.Client)
		want  error
	}{
		"of a newer format": {func(t *testing.T, client *clientv3.Client) {
			changeEpoch(t, client, func(record map[string]any) { record["format"] = 2 })
		}, coordinator.ErrFormat},
		"without a format": {func(t *testing.T, client *clientv3.Client) {
			changeEpoch(t, client, func(record map[string]any) { delete(record, "format") })
		}, coordinator.ErrFormat},
		"of another cluster": {func(t *testing.T, client *clientv3.Client) {
			changeEpoch(t, client, func(record map[string]any) { record["cluster"] = "1234" })
		}, coordinator.ErrRestored},
		"unreadable": {func(t *testing.T, client *clientv3.Client) {
			if _, err := client.Put(t.Context(), epochKey, "{"); err != nil {
				t.Fatal(err)
			}
		}, coordinator.ErrFormat},
		"missing beside marks":         {missingBeside("marks/stock"), coordinator.ErrRestored},
		"missing beside saved results": {missingBeside("ops/stock/1"), coordinator.ErrRestored},
		"missing beside floors":        {missingBeside("floors/stock/00000000000000000001"), coordinator.ErrRestored},
		"missing beside a session": {func(t *testing.T, client *clientv3.Client) {
			acquire(t, newCoordinator(t, client, steady), "held")
			if _, err := client.Delete(t.Context(), epochKey); err != nil {
				t.Fatal(err)
			}
		}, coordinator.ErrRestored},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := cluster(t, nil)
			client := etcd.Client()
			open(t, client)
			test.spoil(t, client)
			c := newCoordinator(t, client, steady)
			if g, err := c.Acquire(within(t, patience), "orders"); !errors.Is(err, test.want) {
				t.Errorf("acquire: %v, %v, want %v", g, err, test.want)
			}
			if g, err := c.TryAcquire(within(t, patience), "orders"); !errors.Is(err, test.want) {
				t.Errorf("try: %v, %v, want %v", g, err, test.want)
			}
			if err := c.Ping(within(t, patience)); !errors.Is(err, test.want) {
				t.Errorf("ping: %v, want %v", err, test.want)
			}
		})
	}
}

// A field that a later version added under the same format is none of our
// business.
func TestUnknownFieldsOfTheEpochRecordAreIgnored(t *testing.T) {
	etcd := cluster(t, nil)
	client := etcd.Client()
	release(t, acquire(t, newCoordinator(t, client, steady), "orders"))
	changeEpoch(t, client, func(record map[string]any) { record["added"] = "later" })
	c := newCoordinator(t, client, steady)
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, acquire(t, c, "orders"))
}

// Many processes start at once on an empty prefix: one writes the record.
func TestEpochRecordIsWrittenOnce(t *testing.T) {
	etcd := cluster(t, nil)
	client := etcd.Client()
	var all sync.WaitGroup
	for range 8 {
		c := newCoordinator(t, client, steady)
		all.Go(func() {
			if err := c.Ping(within(t, patience)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	resp, err := client.Get(t.Context(), epochKey)
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Version != 1 || resp.Kvs[0].Lease != 0 {
		t.Errorf("epoch record: %v, %v", resp, err)
	}
}
