package coordinator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

func TestOptionsOutOfRangeAreRefusedBeforeAnyRequest(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	w.Reset()
	for field, options := range map[string][]coordinator.Options{
		"TTL": {
			{TTL: -time.Second}, {TTL: time.Nanosecond}, {TTL: time.Second - 1}, {TTL: 24*time.Hour + 1}, {TTL: 1e9 * time.Second},
		},
		"CleanupTimeout": {{CleanupTimeout: -1}, {CleanupTimeout: time.Minute + 1}},
		"Prefix":         {{Prefix: "no-slash-at-the-end"}, {Prefix: strings.Repeat("x", 1024) + "/"}},
		"Identity":       {{Identity: "two\nlines"}, {Identity: "\xff"}, {Identity: strings.Repeat("x", 257)}},
	} {
		for _, o := range options {
			c, err := coordinator.New(client, &o)
			if !errors.Is(err, coordinator.ErrInvalidOption) || c != nil {
				t.Errorf("%s %+v: %v", field, o, err)
			} else if !strings.Contains(err.Error(), field) {
				t.Errorf("the error does not name %s: %v", field, err)
			}
		}
	}
	c := newCoordinator(t, client, steady)
	for field, option := range map[string]coordinator.AcquireOption{
		"WaitAtMost":    coordinator.WaitAtMost(0),
		"WaitAtMost -1": coordinator.WaitAtMost(-time.Second),
		"Reason":        coordinator.Reason("a\x00b"),
		"Reason \xff":   coordinator.Reason("\xff"),
		"Reason long":   coordinator.Reason(strings.Repeat("x", 1025)),
	} {
		field, _, _ = strings.Cut(field, " ")
		if _, err := c.Acquire(t.Context(), "orders", option); !errors.Is(err, coordinator.ErrInvalidOption) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := c.TryAcquire(t.Context(), "orders", coordinator.WaitAtMost(time.Second)); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("a try that waits: %v", err)
	}
	if n := w.Calls(""); n != 0 {
		t.Errorf("%d requests: %v", n, w.Counts())
	}
}

func TestOptionsInRangeAreTaken(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	w.Reset()
	for _, o := range []*coordinator.Options{
		nil, {}, {TTL: time.Second}, {TTL: 24 * time.Hour}, {TTL: 1500 * time.Millisecond}, {Prefix: "/"}, {Prefix: strings.Repeat("x", 1023) + "/"},
		{CleanupTimeout: time.Minute}, {CleanupTimeout: 1}, {Identity: strings.Repeat("x", 256)}, {Identity: "Zürich"},
	} {
		if _, err := coordinator.New(client, o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if n := w.Calls(""); n != 0 {
		t.Errorf("New sends %d requests: %v", n, w.Counts())
	}
	// Leases count whole seconds.
	c := newCoordinator(t, client, coordinator.Options{TTL: 1500 * time.Millisecond})
	g := acquire(t, c, "orders")
	if g.TTL() != 2*time.Second {
		t.Errorf("TTL %v for 1.5 s", g.TTL())
	}
	release(t, g)
}

func TestClientThatCannotServeIsRefused(t *testing.T) {
	etcd := cluster(t, nil)
	replaced := etcd.NewClient(t)
	replaced.KV = namespace.NewKV(replaced.KV, "elsewhere/")
	for name, client := range map[string]*clientv3.Client{
		"nil": nil, "without a connection": clientv3.NewCtxClient(t.Context()), "of a namespace": replaced,
	} {
		if _, err := coordinator.New(client, nil); !errors.Is(err, coordinator.ErrInvalidOption) {
			t.Errorf("client %s: %v", name, err)
		}
	}
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	w.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Acquire(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v", err)
	}
	if _, err := c.TryAcquire(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("try: %v", err)
	}
	if err := c.Do(ctx, "orders", func(context.Context, *coordinator.Grant) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("do: %v", err)
	}
	if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ping: %v", err)
	}
	if n := w.Calls(""); n != 0 {
		t.Errorf("%d requests: %v", n, w.Counts())
	}
}
