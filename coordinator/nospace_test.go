package coordinator_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// A full etcd refuses whatever puts a key, and takes what only deletes: locks are
// given back, whatever became of their acquires before.
func TestFullEtcdKeepsNoLockTaken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *full){
		"acquire": func(t *testing.T, f *full) {
			f.alarm(t, true)
			ask(t, f.c, "a").refused(t)
		},
		"try": func(t *testing.T, f *full) {
			f.alarm(t, true)
			if _, err := f.c.TryAcquire(within(t, patience), "a"); !errors.Is(err, rpctypes.ErrNoSpace) {
				t.Error(err)
			}
		},
		"acquire all": func(t *testing.T, f *full) {
			f.alarm(t, true)
			if _, err := f.c.AcquireAll(within(t, patience), []string{"a", "b"}); !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, coordinator.ErrUnsettled) {
				t.Error(err)
			}
		},
		"acquire by a process that has no session": func(t *testing.T, f *full) {
			c := newCoordinator(t, f.etcd.Client(), steady)
			f.alarm(t, true)
			ask(t, c, "a").refused(t)
		},
		"release": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			f.alarm(t, true)
			release(t, g)
		},
		"release after an acquire of which copies may be under way": func(t *testing.T, f *full) {
			txns := count(f.w)
			f.w.DropReply("Txn", 1, of(enters))
			g := acquire(t, f.c, "a")
			before := f.fence(t, g.Lease())
			f.alarm(t, true)
			release(t, g)
			queued(t, f.etcd.Client(), "a", 0)
			f.alarm(t, false)
			eventually(t, "copies are kept out", func() bool { return f.fence(t, g.Lease()) > before })
			if arrives(t, txns.last(t, enters)) {
				t.Error("a copy of the acquire has put the key again")
			}
		},
		"hand on": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			next := ask(t, f.c, "a")
			f.alarm(t, true)
			release(t, g)
			next.refused(t)
		},
		"set value": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a", coordinator.Value([]byte("before")))
			f.alarm(t, true)
			if err := g.SetValue(within(t, patience), []byte("after")); !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, coordinator.ErrUnsettled) {
				t.Errorf("%v, and it was not set", err)
			}
			st, err := f.c.Status(within(t, patience), "a")
			if err != nil || string(st.Holder.Value) != "before" {
				t.Errorf("%q, %v", st.Holder.Value, err)
			}
			release(t, g)
		},
		"evict": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			f.alarm(t, true)
			if err := f.c.Evict(within(t, patience), g.Token(), "to make room"); err != nil {
				t.Fatal(err)
			}
			queued(t, f.etcd.Client(), "a", 0)
			if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
				t.Error(err)
			}
		},
		"evict what ends meanwhile": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			f.alarm(t, true)
			evicting := f.w.Hold("Txn", wire.When(evicts))
			result := make(chan error, 1)
			go func() { result <- f.c.Evict(within(t, patience), g.Token(), "to make room") }()
			held(t, evicting)
			release(t, g)
			evicting.Release()
			if err := receive(t, result, "Evict"); !errors.Is(err, coordinator.ErrNotHeld) {
				t.Errorf("%v, and nothing was evicted", err)
			}
		},
		"evict, and the second attempt is refused": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			f.alarm(t, true)
			f.w.FailBefore("Txn", 1, wire.Code(codes.PermissionDenied), wire.When(func(call *wire.Call) bool {
				return transaction(call) != reads && !evicts(call)
			}))
			if err := f.c.Evict(within(t, patience), g.Token(), "to make room"); !errors.Is(err, coordinator.ErrUnsettled) || !denied(err) {
				t.Errorf("%v, and the first attempt may have done it", err)
			}
			release(t, g)
		},
		"settle, and nobody wants the lock": func(t *testing.T, f *full) {
			f.after(t, enters, func() { f.alarm(t, true) })
			settle := f.w.Hold("Txn", of(settles))
			a := ask(t, f.c, "a")
			held(t, settle)
			queued(t, f.etcd.Client(), "a", 1)
			a.cancel()
			a.left(t)
			settle.Release()
		},
		"settle, and the lock is wanted": func(t *testing.T, f *full) {
			f.after(t, enters, func() { f.alarm(t, true) })
			g := ask(t, f.c, "a").granted(t)
			stands(t, f.etcd.Client(), g)
			release(t, g)
		},
		"settle an attempt at several": func(t *testing.T, f *full) {
			f.after(t, entersAll, func() { f.alarm(t, true) })
			if _, err := f.c.AcquireAll(within(t, patience), []string{"a", "b"}); !errors.Is(err, rpctypes.ErrNoSpace) {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFull(t)
			test(t, f)
			queued(t, f.etcd.Client(), "a", 0)
			queued(t, f.etcd.Client(), "b", 0)
			f.alarm(t, false)
			release(t, acquire(t, f.c, "a"))
		})
	}
}

// An acquire that had no space is over. The session key, which keeps copies out, is
// not moved for it, now or later: each process would ask a full etcd for more, over
// and over.
func TestAcquireWithoutSpaceOwesNothing(t *testing.T) {
	t.Parallel()
	f := newFull(t)
	txns := count(f.w)
	f.alarm(t, true)
	ask(t, f.c, "a").refused(t)
	if _, err := f.c.TryAcquire(within(t, patience), "a"); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Error(err)
	}
	if _, err := f.c.AcquireAll(within(t, patience), []string{"a", "b"}); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Error(err)
	}
	f.alarm(t, false)
	// Nor if it was applied: what it has put is all that came of it.
	f.refuse(enters)
	g := acquire(t, f.c, "a")
	release(t, g)
	f.refuse(entersAll)
	all := acquireAll(t, f.c, []string{"a", "b"})
	releaseAll(t, all)
	if n, looked := txns.of(settles), txns.of(looks); n != 0 || looked != 6 {
		t.Errorf("%d settles, and %d looks for 6 acquires", n, looked)
	}
}

// The member that finds out that etcd is full applies the request all the same
// (etcd, server/etcdserver/apply, quotaApplierV3). What was applied must neither be
// forgotten nor be taken for another's.
func TestNoSpaceMayHaveBeenApplied(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *full){
		"lease": func(t *testing.T, f *full) {
			client, w := tapped(t, f.etcd)
			c := newCoordinator(t, client, steady)
			appliedAndRefused(w, func(call *wire.Call) bool { return call.Method == "LeaseGrant" })
			ask(t, c, "a").refused(t)
			release(t, acquire(t, c, "a"))
		},
		enrols: func(t *testing.T, f *full) {
			client, w := tapped(t, f.etcd)
			c := newCoordinator(t, client, steady)
			f.w = w
			f.refuse(enrols)
			ask(t, c, "a").refused(t)
			release(t, acquire(t, c, "a"))
		},
		enters: func(t *testing.T, f *full) {
			f.refuse(enters)
			g := acquire(t, f.c, "a")
			stands(t, f.etcd.Client(), g)
			queued(t, f.etcd.Client(), "a", 1)
			release(t, g)
		},
		"enter, by a try": func(t *testing.T, f *full) {
			f.refuse(enters)
			g, err := f.c.TryAcquire(within(t, patience), "a")
			if err != nil {
				t.Fatal(err)
			}
			stands(t, f.etcd.Client(), g)
			release(t, g)
		},
		entersAll: func(t *testing.T, f *full) {
			f.refuse(entersAll)
			all := acquireAll(t, f.c, []string{"a", "b"})
			queued(t, f.etcd.Client(), "a", 1)
			if err := all.Release(within(t, patience)); err != nil {
				t.Error(err)
			}
		},
		releases: func(t *testing.T, f *full) {
			f.w.DropReply("Txn", 1, of(enters))
			g := acquire(t, f.c, "a")
			f.refuse(releases)
			release(t, g)
		},
		handsOn: func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			next := ask(t, f.c, "a")
			f.refuse(handsOn)
			release(t, g)
			h := next.granted(t)
			rises(t, g, h)
			stands(t, f.etcd.Client(), h)
			release(t, h)
		},
		settles: func(t *testing.T, f *full) {
			f.w.DropReply("Txn", 1, of(enters))
			f.refuse(settles)
			g := acquire(t, f.c, "a")
			stands(t, f.etcd.Client(), g)
			release(t, g)
		},
		writes: func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			set := func(value string, want ...error) {
				t.Helper()
				err := g.SetValue(within(t, patience), []byte(value))
				for _, want := range want {
					if !errors.Is(err, want) {
						t.Errorf("set %q: %v, want %v", value, err, want)
					}
				}
				if len(want) == 0 && (err != nil || published(t, f.c, g) != value) {
					t.Errorf("set %q: %v; published %q", value, err, published(t, f.c, g))
				}
			}
			// From the write on, nothing more can be put.
			var full sync.Once
			hook := f.w.OnUnary(func(ctx context.Context, call *wire.Call) error {
				err := call.Send(ctx)
				if err == nil && setsValue(call) {
					full.Do(func() { f.alarm(t, true) })
					err = rpctypes.ErrGRPCNoSpace
				}
				return err
			})
			set("applied")
			hook.Remove()
			f.alarm(t, false)
			set("next")
			// The look is refused.
			f.refuse(writes)
			f.w.FailBefore("Txn", 1, of(reads), wire.Code(codes.PermissionDenied))
			set("unclear", rpctypes.ErrNoSpace, coordinator.ErrUnsettled)
			set("last")
			release(t, g)
		},
		"evict": func(t *testing.T, f *full) {
			g := acquire(t, f.c, "a")
			f.refuse(releases)
			if err := f.c.Evict(within(t, patience), g.Token(), "an operator"); err != nil {
				t.Error(err)
			}
			if err := g.Release(within(t, patience)); !errors.Is(err, coordinator.ErrNotHeld) {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFull(t)
			test(t, f)
			queued(t, f.etcd.Client(), "a", 0)
			queued(t, f.etcd.Client(), "b", 0)
		})
	}
}

// full is an etcd that is about to be full, and a process that has a session.
type full struct {
	etcd *embedded.Cluster
	c    *coordinator.Coordinator
	w    *wire.Wire
}

func newFull(t *testing.T) *full {
	t.Helper()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	f := &full{etcd: etcd, w: w, c: newCoordinator(t, client, steady)}
	release(t, acquire(t, f.c, "warm"))
	return f
}

// alarm makes etcd full, or ends that.
func (f *full) alarm(t *testing.T, on bool) {
	t.Helper()
	action := pb.AlarmRequest_DEACTIVATE
	if on {
		action = pb.AlarmRequest_ACTIVATE
	}
	maintenance := pb.NewMaintenanceClient(f.etcd.Client().ActiveConnection())
	if _, err := maintenance.Alarm(within(t, patience), &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Error(err)
	}
}

// fence is the revision that acquires under a lease compare.
func (f *full) fence(t *testing.T, lease clientv3.LeaseID) int64 {
	t.Helper()
	resp, err := f.etcd.Client().Get(within(t, patience), sessionsPrefix, clientv3.WithPrefix()) // a keys-only answer of 3.7 names no lease
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if clientv3.LeaseID(kv.Lease) == lease {
			return kv.ModRevision
		}
	}
	t.Fatal("no session key")
	return 0
}

// after applies the next transaction of a kind, calls then, and loses the answer.
func (f *full) after(t *testing.T, kind string, then func()) {
	t.Helper()
	once := false
	f.w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if call.Method == "Txn" && transaction(call) == kind && !once {
			once = true
			then()
			return errLost
		}
		return err
	})
}

// refuse applies the next transaction of a kind and says that there is no space.
func (f *full) refuse(kind string) {
	appliedAndRefused(f.w, func(call *wire.Call) bool { return call.Method == "Txn" && transaction(call) == kind })
}

func appliedAndRefused(w *wire.Wire, is func(*wire.Call) bool) {
	once := false
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		err := call.Send(ctx)
		if err == nil && !once && is(call) {
			once = true
			return rpctypes.ErrGRPCNoSpace
		}
		return err
	})
}

// refused waits for a caller to be told that there is no space, and nothing worse.
func (a *asking) refused(t *testing.T) {
	t.Helper()
	if err := a.failed(t); !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, coordinator.ErrUnsettled) {
		t.Errorf("%v, want that there is no space", err)
	}
}

// left waits for a caller that was made to leave.
func (a *asking) left(t *testing.T) {
	t.Helper()
	if err := a.failed(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
