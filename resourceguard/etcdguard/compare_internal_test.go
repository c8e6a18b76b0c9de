package etcdguard

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

type compares []clientv3.Cmp

func (c compares) Fence() []clientv3.Cmp { return c }

// TestEachCompareIsNeeded: without it, and with all of the others, what it is there
// to refuse takes place.
func TestEachCompareIsNeeded(t *testing.T) {
	client := embedded.Start(t, nil).Client()
	guard, err := New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	for missing := range 3 {
		var keys []string
		var fence compares
		for i := range 3 {
			key := fmt.Sprintf("/etcd-fence/locks/l%d/%d-1", i, missing+1)
			resp, err := client.Put(t.Context(), key, "")
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
			fence = append(fence, clientv3.Compare(clientv3.CreateRevision(key), "=", resp.Header.Revision))
		}
		whole, err := guard.KV(fence)
		if err != nil {
			t.Fatal(err)
		}
		cut := *whole.(*fencedKV)
		cut.compares = slices.Delete(slices.Clone(cut.compares), missing, missing+1)

		if _, err := client.Delete(t.Context(), keys[missing]); err != nil {
			t.Fatal(err)
		}
		for name, op := range map[string]clientv3.Op{
			"put":    clientv3.OpPut("data", "5"),
			"delete": clientv3.OpDelete("data"),
			"get":    clientv3.OpGet("data"),
			"txn":    clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("data", "5")}, nil),
			"txn with compares": clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("data"), "<", 1000)},
				[]clientv3.Op{clientv3.OpPut("data", "5")}, nil),
		} {
			if _, err := whole.Do(t.Context(), op); !errors.Is(err, resourceguard.ErrStale) {
				t.Errorf("%s after grant %d has ended: %v, want it refused", name, missing, err)
			}
			if _, err := cut.Do(t.Context(), op); err != nil {
				t.Errorf("%s without compare %d: %v: another compare refuses the same, so one of them is not needed", name, missing, err)
			}
		}
	}
}
