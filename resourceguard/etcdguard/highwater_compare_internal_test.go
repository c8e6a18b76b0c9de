package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// bed is an etcd with a queue of lock keys, of the lock "l".
type bed struct {
	*testing.T
	client *clientv3.Client
	n      int
}

func (b *bed) put(key, value string) int64 {
	b.Helper()
	resp, err := b.client.Put(b.Context(), key, value)
	if err != nil {
		b.Fatal(err)
	}
	return resp.Header.Revision
}

func (b *bed) delete(key string) {
	b.Helper()
	if _, err := b.client.Delete(b.Context(), key); err != nil {
		b.Fatal(err)
	}
}

// enqueue puts one more key into the queue.
func (b *bed) enqueue() fence {
	b.Helper()
	b.n++
	f := fence{directory: DefaultPrefix + "locks/l/", owner: fmt.Sprintf("77-%d", b.n)}
	f.key = f.directory + f.owner
	var err error
	if f.token, err = revisionfence.New("l", 0, b.put(f.key, "")); err != nil {
		b.Fatal(err)
	}
	return f
}

// clear makes the lock free, and the resource new.
func (b *bed) clear() {
	b.Helper()
	if _, err := b.client.Delete(b.Context(), DefaultPrefix, clientv3.WithPrefix()); err != nil {
		b.Fatal(err)
	}
	b.put(DefaultPrefix+"epoch", `{"format":1,"epoch":0}`)
	b.put("data", "8")
}

// TestEachCompareOfHighWaterIsNeeded: without it, and with all of the others, what it
// is there to refuse takes place.
func TestEachCompareOfHighWaterIsNeeded(t *testing.T) {
	b := &bed{T: t, client: embedded.Start(t, nil).Client()}
	const markOf = DefaultPrefix + "marks/l"
	for _, test := range []struct {
		name, path string
		cut        func(*pb.Compare) bool
		policy     resourceguard.Policy
		// before comes before the write, and meanwhile between what it reads and
		// what it stores.
		before    func(g *Guard) fence
		meanwhile func(g *Guard, f fence)
		want      error
	}{
		{
			name: "steady: the mark, against a newer owner", path: "steady",
			cut: func(c *pb.Compare) bool { return c.Target == pb.Compare_VALUE },
			before: func(g *Guard) fence {
				f := b.enqueue()
				b.write(g, f)
				return f
			},
			meanwhile: func(_ *Guard, f fence) {
				b.delete(f.key)
				b.write(b.guard(resourceguard.AcceptEqual), b.enqueue())
			},
			want: resourceguard.ErrStale,
		},
		{
			name: "steady: the mark, against damage", path: "steady",
			cut: func(c *pb.Compare) bool { return c.Target == pb.Compare_VALUE },
			before: func(g *Guard) fence {
				f := b.enqueue()
				b.write(g, f)
				return f
			},
			meanwhile: func(*Guard, fence) { b.put(markOf, "damaged") },
			want:      resourceguard.ErrCorruptMark,
		},
		{
			name: "raise: the mark, against damage", path: "slow",
			cut:       func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD },
			before:    func(*Guard) fence { return b.enqueue() },
			meanwhile: func(*Guard, fence) { b.put(markOf, "damaged") },
			want:      resourceguard.ErrCorruptMark,
		},
		{
			name: "raise: the mark, against a second write of one grant", path: "slow",
			cut:    func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD },
			policy: resourceguard.RejectEqual,
			before: func(*Guard) fence { return b.enqueue() },
			meanwhile: func(_ *Guard, f fence) {
				b.write(b.guard(resourceguard.RejectEqual), f)
			},
			want: resourceguard.ErrStale,
		},
		{
			name: "raise: the lock key, against the end of the grant", path: "slow",
			cut: func(c *pb.Compare) bool { return c.Target == pb.Compare_CREATE && len(c.RangeEnd) == 0 },
			before: func(*Guard) fence {
				f := b.enqueue()
				b.enqueue() // has the lock next, and has not been here yet
				return f
			},
			meanwhile: func(_ *Guard, f fence) { b.delete(f.key) },
			want:      resourceguard.ErrStale,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				b.T = t
				b.clear()
				g := b.guard(test.policy)
				f := test.before(g)
				once := false
				g.without = func(path string, compares []clientv3.Cmp) []clientv3.Cmp {
					if path != test.path || once {
						return compares
					}
					once = true
					test.meanwhile(g, f)
					if whole {
						return compares
					}
					return slices.DeleteFunc(slices.Clone(compares), func(c clientv3.Cmp) bool { return test.cut(c.GetCompare()) })
				}
				err := b.try(g, f)
				switch {
				case !once:
					t.Errorf("the write did not go the way %q: %v", test.path, err)
				case whole && !errors.Is(err, test.want):
					t.Errorf("with all compares: %v, want %v", err, test.want)
				case !whole && err != nil:
					t.Errorf("without the compare: %v: another refuses the same, so one of them is not needed", err)
				}
			}
		})
	}
}

// TestQueueCompareIsNeeded: whoever was first when the mark was read stays so for as
// long as its key exists, unless etcd is restored in between to a moment when it was
// waiting. The view of before and the etcd of after are put together here.
func TestQueueCompareIsNeeded(t *testing.T) {
	b := &bed{T: t, client: embedded.Start(t, nil).Client()}
	for _, whole := range []bool{true, false} {
		b.clear()
		g := b.guard(resourceguard.AcceptEqual)
		b.enqueue() // owns
		f := b.enqueue()
		c := call{claims: []claim{{resource: "l", lock: "l", fence: &f}}, ops: []clientv3.Op{clientv3.OpPut("data", "5")}}
		v, err := g.look(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		key, err := b.client.Get(t.Context(), f.key)
		if err != nil {
			t.Fatal(err)
		}
		v.first = []*pb.RangeResponse{(*pb.RangeResponse)(key)}
		p, err := g.decide(c, v)
		if err != nil {
			t.Fatal(err)
		}
		if !whole {
			g.without = func(_ string, compares []clientv3.Cmp) []clientv3.Cmp {
				return slices.DeleteFunc(slices.Clone(compares), func(c clientv3.Cmp) bool { return len(c.GetCompare().RangeEnd) > 0 })
			}
		}
		if _, done, err := g.carryOut(t.Context(), c, p); err != nil || done == whole {
			t.Errorf("a waiter raises the mark, with all compares %v: done %v, %v", whole, done, err)
		}
	}
}

func (b *bed) guard(p resourceguard.Policy) *Guard {
	b.Helper()
	g, err := New(b.client, &Options{Mode: HighWater, Policy: p})
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func (b *bed) try(g *Guard, f fence) error {
	_, err := g.fencedBy([]fence{f}).Put(context.WithoutCancel(b.Context()), "data", "5")
	return err
}

func (b *bed) write(g *Guard, f fence) {
	b.Helper()
	if err := b.try(g, f); err != nil {
		b.Fatal(err)
	}
}
