package etcdguard_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// TestWrongNameAfterAFloor: a floor knows no owner, and whoever names himself first is
// it; but not against the lock key.
func TestWrongNameAfterAFloor(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	g := acquire(t, s.truth, "l")
	if err := s.guard.SetFloor(ctx, revisionfence.Mark{Resource: "l", Token: g.token}, "test"); err != nil {
		t.Fatal(err)
	}
	for _, op := range []clientv3.Op{clientv3.OpPut("data", "5"), clientv3.OpGet("data")} {
		_, _, err := s.guard.Do(ctx, resourceguard.Write{Resource: "l", Token: g.token, Owner: "host-7"}, op)
		wantRefused(t, "another name", err, resourceguard.ErrOwnerMismatch)
	}
	s.wantMarkText(t, "l", g.token.String())
	if _, err := fenced(t, s.guard, g).Put(ctx, "data", "7"); err != nil {
		t.Errorf("the owner: %v", err)
	}
	s.wantMarkText(t, "l", g.text())
}

// TestAnyDamageIsRepaired: a record of what was there must not stand in the way, however
// much that is.
func TestAnyDamageIsRepaired(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	g := acquire(t, s.truth, "l")
	const kept = 16 << 10
	for _, damage := range []string{"\x00", "\xff\xfe", strings.Repeat("x", kept), strings.Repeat("x", kept+1), strings.Repeat("\x00", 1<<20)} {
		name := fmt.Sprintf("%.4q, %d bytes", damage, len(damage))
		s.put(t, markKey("l"), damage)
		_, err := fenced(t, s.guard, g).Put(ctx, "data", "7")
		wantRefused(t, name, err, resourceguard.ErrCorruptMark)
		if err := s.guard.SetFloor(ctx, revisionfence.Mark{Resource: "l", Token: g.token}, name); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := fenced(t, s.guard, g).Put(ctx, "data", "7"); err != nil {
			t.Errorf("%s, repaired: %v", name, err)
		}
		resp, err := s.truth.Get(ctx, etcdguard.DefaultPrefix+"floors/l/", clientv3.WithLastKey()...)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("record: %v, %v", resp, err)
		}
		var record struct {
			Before, Reason string
			Cut            int
		}
		if err := json.Unmarshal(resp.Kvs[0].Value, &record); err != nil {
			t.Fatal(err)
		}
		before := strings.Map(func(r rune) rune { return r }, damage[:min(len(damage), kept)]) // as UTF-8
		if record.Before != before || record.Reason != name || record.Cut != max(0, len(damage)-kept) {
			t.Errorf("%s: the record has %d bytes, cut %d, reason %q", name, len(record.Before), record.Cut, record.Reason)
		}
	}
}
