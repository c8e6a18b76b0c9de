package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// different are names that are easily taken for each other, or for a path.
var different = []string{
	"foo", "foo/", "foo/bar", "fo", "foo//bar", "/foo", "//foo", "FOO", "foo ", " foo",
	"/", "//", ".", "..", "./foo", "../foo", "foo/..", "../../epoch", "../sessions/1",
	"é", "e\u0301", // one letter in its two normal forms
	"%", "%2F", "%2f", "a/b", "a%2Fb", "a%252Fb", "+", "a+b", "a b", "a%20b",
	"1234-1", "foo/1234-1", "foo?", "foo#", "foo:bar", "foo@1", "*", "\\", "\"", "💡", "\ufeff",
	strings.Repeat("x", 1024), strings.Repeat("x", 1023), strings.Repeat("é", 512), strings.Repeat("%", 1024),
}

func TestDifferentNamesAreDifferentLocks(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	a, b := newCoordinator(t, client, steady), newCoordinator(t, client, steady)
	held := make(map[string]*coordinator.Grant)
	for _, name := range different {
		g, err := a.TryAcquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%.20q is not free while others are held: %v", name, err)
		}
		if g.Lock() != name || g.Token().Lock() != name {
			t.Errorf("asked for %.20q, granted %.20q", name, g.Lock())
		}
		held[name] = g
	}
	keys := make(map[string]string)
	for name, g := range held {
		stands(t, client, g)
		rest, below := strings.CutPrefix(g.Key(), locksPrefix)
		if strings.Count(rest, "/") != 1 || !below {
			t.Errorf("%.20q has the key %q", name, g.Key())
		}
		if other, ok := keys[rest]; ok {
			t.Errorf("%.20q and %.20q have one key", name, other)
		}
		keys[rest] = name
		var busy *coordinator.BusyError
		if _, err := b.TryAcquire(t.Context(), name); !errors.As(err, &busy) || busy.Lock != name || busy.Holder.Token != g.Token() {
			t.Errorf("%.20q is held, and another process gets %v", name, err)
		}
	}
	// Each is released without disturbing the rest.
	for name, g := range held {
		release(t, g)
		next, err := b.TryAcquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%.20q is free: %v", name, err)
		}
		rises(t, g, next)
		held[name] = next
	}
	for name, g := range held {
		stands(t, client, g)
		if err := g.Err(); err != nil {
			t.Errorf("%.20q: %v", name, err)
		}
	}
}

func TestInvalidNamesAreRefusedBeforeAnyRequest(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	w.Reset()
	for _, name := range []string{
		"", "\x00", "foo\x00", "foo\nbar", "\x7f", "\u0085", "foo\xff", "\xc3", strings.Repeat("x", 1025), strings.Repeat("é", 513),
	} {
		if _, err := c.Acquire(t.Context(), name); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("acquire %.20q: %v", name, err)
		}
		if _, err := c.TryAcquire(t.Context(), name); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("try %.20q: %v", name, err)
		}
		if err := c.Do(t.Context(), name, func(context.Context, *coordinator.Grant) error { return nil }); !errors.Is(err, coordinator.ErrInvalidName) {
			t.Errorf("do %.20q: %v", name, err)
		}
	}
	if n := w.Calls(""); n != 0 {
		t.Errorf("%d requests: %v", n, w.Counts())
	}
}

// Somebody else's keys in the directory of a lock count for the order, are
// named, and stay.
func TestForeignKeysAreRespectedAndReported(t *testing.T) {
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	txns := count(w)
	c := newCoordinator(t, client, steady)
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []struct {
		key  string
		opts []clientv3.OpOption
		says string
	}{
		{directory("orders"), nil, "on no lease: it stays until somebody deletes it"}, // the directory itself
		{directory("orders") + "stray", nil, "on no lease: it stays until somebody deletes it"},
		{directory("orders") + "below/stray", nil, "on no lease: it stays until somebody deletes it"},
		{directory("orders") + "leased", []clientv3.OpOption{clientv3.WithLease(lease.ID)}, "a program that is not etcd-fence"},
		// Like ours, but without a value that could be read.
		{directory("orders") + fmt.Sprintf("%x-1", lease.ID), []clientv3.OpOption{clientv3.WithLease(lease.ID)}, "a program that is not etcd-fence"},
	} {
		if _, err := client.Put(t.Context(), foreign.key, "foreign", foreign.opts...); err != nil {
			t.Fatal(err)
		}
		_, err := c.TryAcquire(t.Context(), "orders")
		var busy *coordinator.BusyError
		if !errors.As(err, &busy) || busy.Holder.Key != foreign.key || !busy.Holder.Token.IsZero() || busy.Holder.Identity != "" {
			t.Fatalf("try behind %q: %v", foreign.key, err)
		}
		for _, part := range []string{foreign.says, fmt.Sprintf("%q", foreign.key)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not say %q: %v", part, err)
			}
		}
		txns.reset()
		waiter := ask(t, c, "orders")
		txns.looked(t)
		waiter.waits(t)
		waiter.cancel()
		if err := waiter.failed(t); !errors.As(err, &busy) || busy.Holder.Key != foreign.key {
			t.Errorf("wait behind %q: %v", foreign.key, err)
		}
		kvs := queue(t, client, "orders")
		if len(kvs) != 1 || string(kvs[0].Key) != foreign.key || kvs[0].Version != 1 {
			t.Fatalf("the foreign key was touched: %v", kvs)
		}
		// It goes, and the lock is free.
		waiter = ask(t, c, "orders")
		queued(t, client, "orders", 2)
		if _, err := client.Delete(t.Context(), foreign.key); err != nil {
			t.Fatal(err)
		}
		release(t, waiter.granted(t))
	}
	// One that comes later stands behind, and does not disturb.
	g := acquire(t, c, "orders")
	if _, err := client.Put(t.Context(), directory("orders")+"0", ""); err != nil {
		t.Fatal(err)
	}
	stands(t, client, g)
	release(t, g)
	if _, err := client.Delete(t.Context(), directory("orders")+"0"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
}

// Keys beside the directory of a lock are nobody's business.
func TestKeysBesideTheDirectoryDoNotBlock(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	c := newCoordinator(t, client, steady)
	beside := []string{
		strings.TrimSuffix(directory("orders"), "/"), strings.TrimSuffix(directory("orders"), "/") + "0",
		directory("orders2") + "1", locksPrefix, locksPrefix + "order/1",
	}
	for _, key := range beside {
		if _, err := client.Put(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
	}
	g, err := c.TryAcquire(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	release(t, g)
	for _, key := range beside {
		if deleted, err := client.Delete(t.Context(), key); err != nil || deleted.Deleted != 1 {
			t.Errorf("%q: %v, %v", key, deleted, err)
		}
	}
}

// Two processes that call themselves the same are two all the same, and one that
// was started again gets another token (kubernetes/kubernetes#22775).
func TestSameIdentityIsNotTheSameHolder(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	opts := steady
	opts.Identity = "worker-1"
	a, b := newCoordinator(t, client, opts), newCoordinator(t, client, opts)
	g := acquire(t, a, "orders")
	var busy *coordinator.BusyError
	if _, err := b.TryAcquire(t.Context(), "orders"); !errors.As(err, &busy) || busy.Holder.Identity != "worker-1" {
		t.Errorf("try under the same identity: %v", err)
	}
	waiter := ask(t, b, "orders")
	queued(t, client, "orders", 2)
	waiter.waits(t)
	if err := a.Close(within(t, patience)); err != nil { // the process ends
		t.Fatal(err)
	}
	next := waiter.granted(t)
	rises(t, g, next)
	again := newCoordinator(t, client, opts) // and is started again
	back := acquireBehind(t, client, again, next)
	rises(t, g, back)
	if back.Key() == g.Key() || back.Owner() == g.Owner() || back.Lease() == g.Lease() {
		t.Errorf("started again, and holds %s as before", back.Key())
	}
	release(t, back)
}

// Two prefixes are two authorities.
func TestPrefixesAreApart(t *testing.T) {
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	one, two := steady, steady
	two.Prefix = "/elsewhere/"
	a, b := newCoordinator(t, client, one), newCoordinator(t, client, two)
	g, h := acquire(t, a, "orders"), acquire(t, b, "orders")
	if want := "/elsewhere/locks/" + url.PathEscape("orders") + "/" + h.Owner(); h.Key() != want {
		t.Errorf("key %q, want %q", h.Key(), want)
	}
	release(t, g)
	release(t, h)
	if resp, err := client.Get(t.Context(), "/elsewhere/", clientv3.WithPrefix(), clientv3.WithKeysOnly()); err != nil || len(resp.Kvs) != 2 {
		t.Errorf("under the other prefix: %v, %v, want the epoch and the session", resp, err)
	}
}
