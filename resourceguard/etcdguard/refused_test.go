package etcdguard_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func TestNewRefuses(t *testing.T) {
	s := start(t, nil)
	namespaced := s.etcd.NewClient(t)
	namespaced.KV = namespace.NewKV(namespaced.KV, "app/")
	alreadyFenced := s.etcd.NewClient(t)
	alreadyFenced.KV = fenced(t, s.guard, acquire(t, s.truth, "l"))

	for name, test := range map[string]struct {
		client *clientv3.Client
		opts   *etcdguard.Options
		says   string
	}{
		"nil client":         {nil, nil, "no etcd client given"},
		"unconnected client": {clientv3.NewCtxClient(t.Context()), nil, "connection"},
		"namespaced client":  {namespaced, nil, "kvPrefix"},
		"fenced client":      {alreadyFenced, nil, "fencedKV"},
		"mode":               {s.client, &etcdguard.Options{Mode: 2}, "Options.Mode"},
		"policy":             {s.client, &etcdguard.Options{Mode: etcdguard.HighWater, Policy: 2}, "Options.Policy"},
		"policy of Held":     {s.client, &etcdguard.Options{Policy: resourceguard.RejectEqual}, "HighWater"},
		"resource of Held":   {s.client, &etcdguard.Options{Resource: func(k string) (string, error) { return k, nil }}, "HighWater"},
		"retention":          {s.client, &etcdguard.Options{KeepOperations: -1}, "Options.KeepOperations"},
		"prefix":             {s.client, &etcdguard.Options{Prefix: "/etcd-fence"}, "Options.Prefix"},
		"long prefix":        {s.client, &etcdguard.Options{Prefix: strings.Repeat("x", 1024) + "/"}, "Options.Prefix"},
		"timeout":            {s.client, &etcdguard.Options{Timeout: -time.Second}, "Options.Timeout"},
	} {
		_, err := etcdguard.New(test.client, test.opts)
		if !errors.Is(err, resourceguard.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want ErrInvalid that names %s", name, err, test.says)
		}
	}
}

func TestKVRefuses(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	key := g.key
	one := func(c clientv3.Cmp) etcdguard.Fenced {
		return fenceFunc(func() []clientv3.Cmp { return []clientv3.Cmp{c} })
	}
	created := func(key string, revision int64) clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
	}
	token := func(lock string, revision int64) revisionfence.Token {
		tok, err := revisionfence.New(lock, 0, revision)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	var many grants
	for range 65 {
		many = append(many, g)
	}
	for name, test := range map[string]struct {
		fenced etcdguard.Fenced
		want   error
	}{
		"nothing":              {nil, resourceguard.ErrNoToken},
		"nil grant":            {(*coordinator.Grant)(nil), resourceguard.ErrNoToken},
		"nil pointer":          {(*grant)(nil), resourceguard.ErrNoToken},
		"nil function":         {fenceFunc(nil), resourceguard.ErrNoToken},
		"token alone":          {etcdguard.FromToken(g.token), resourceguard.ErrNoToken},
		"no token":             {etcdguard.FromToken(nil), resourceguard.ErrNoToken},
		"no compares":          {grants{}, resourceguard.ErrNoToken},
		"zero token":           {grant{key: key}, resourceguard.ErrNoToken},
		"revision 0":           {one(created(key, 0)), resourceguard.ErrNoToken},
		"negative revision":    {one(created(key, -1)), resourceguard.ErrNoToken},
		"zero compare":         {one(clientv3.Cmp{}), resourceguard.ErrInvalid},
		"mod revision":         {one(clientv3.Compare(clientv3.ModRevision(key), "=", g.token.Revision())), resourceguard.ErrInvalid},
		"not equal":            {one(clientv3.Compare(clientv3.CreateRevision(key), "!=", 1)), resourceguard.ErrInvalid},
		"greater":              {one(clientv3.Compare(clientv3.CreateRevision(key), ">", 1)), resourceguard.ErrInvalid},
		"range":                {one(created(key, g.token.Revision()).WithPrefix()), resourceguard.ErrInvalid},
		"no key":               {one(created("", 5)), resourceguard.ErrInvalid},
		"no directory":         {one(created("lock", 5)), resourceguard.ErrInvalid},
		"directory itself":     {one(created(directory("l"), 5)), resourceguard.ErrInvalid},
		"another prefix":       {one(created("/app/locks/l/77-1", 5)), resourceguard.ErrInvalid},
		"escaped otherwise":    {one(created("/etcd-fence/locks/%6C/77-1", 5)), resourceguard.ErrInvalid},
		"no escape":            {one(created("/etcd-fence/locks/%zz/77-1", 5)), resourceguard.ErrInvalid},
		"deeper":               {one(created("/etcd-fence/locks/l/m/77-1", 5)), resourceguard.ErrInvalid},
		"absurd revision":      {one(created(key, 1<<60)), resourceguard.ErrInvalid},
		"token of other lock":  {grant{key: key, token: token("m", g.token.Revision())}, resourceguard.ErrInvalid},
		"one of several is no": {fenceFunc(func() []clientv3.Cmp { return append(g.Fence(), created(key, 0)) }), resourceguard.ErrNoToken},
		"token for two locks":  {doubled{g}, resourceguard.ErrInvalid},
		"65 grants":            {many, resourceguard.ErrInvalid},
	} {
		_, err := s.guard.KV(test.fenced)
		if !errors.Is(err, test.want) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if name == "token alone" && !strings.Contains(err.Error(), "give the grant itself, or use mode HighWater") {
			t.Errorf("%s: does not say what to do: %v", name, err)
		}
	}
	lying := lying{grant: g, token: token("l", g.token.Revision()+1)}
	if _, err := s.guard.KV(lying); !errors.Is(err, resourceguard.ErrInvalid) {
		t.Errorf("a token of another revision than the compare: %v", err)
	}
}

// TestTwoTenuresOfOneLock: of two grants of one lock one has ended, or never began. The
// mark of the other must not let it through.
func TestTwoTenuresOfOneLock(t *testing.T) {
	for _, mode := range []etcdguard.Mode{etcdguard.Held, etcdguard.HighWater} {
		s := start(t, &etcdguard.Options{Mode: mode})
		ended := acquire(t, s.truth, "l")
		s.etcd.Expire(t, ended)
		owner, waiter := acquire(t, s.truth, "l"), acquire(t, s.truth, "l")
		other := acquire(t, s.truth, "m")
		for _, gs := range []grants{{ended, owner}, {owner, ended}, {owner, waiter}, {waiter, owner}, {owner, other, ended}} {
			kv, err := s.guard.KV(gs)
			if err == nil {
				_, err = kv.Put(t.Context(), "data", "5")
			}
			wantRefused(t, mode.String(), err, resourceguard.ErrInvalid)
		}
		if _, err := fenced(t, s.guard, grants{owner, other, owner}).Put(t.Context(), "data", "7"); err != nil {
			t.Errorf("%v: one grant, given twice: %v", mode, err)
		}
	}
}

type doubled struct{ grant }

func (d doubled) Fence() []clientv3.Cmp { return append(d.grant.Fence(), d.grant.Fence()...) }

type lying struct {
	grant
	token revisionfence.Token
}

func (l lying) Token() revisionfence.Token { return l.token }

// TestFenceIsTakenAsItWas: a grant's compares do not change, and nobody changes
// them for it.
func TestFenceIsTakenAsItWas(t *testing.T) {
	s := start(t, nil)
	compares := acquire(t, s.truth, "l").Fence()
	kv := fenced(t, s.guard, fenceFunc(func() []clientv3.Cmp { return compares }))
	compares[0].WithKeyBytes([]byte("/etcd-fence/locks/other/1-1"))
	if _, err := kv.Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
}

func TestUnfencedReads(t *testing.T) {
	s := start(t, nil)
	g := acquire(t, s.truth, "l")
	kv := fenced(t, s.guard, g)
	s.put(t, "k", "v")
	before, at := clientv3.WithRev(g.token.Revision()-1), clientv3.WithRev(g.token.Revision())
	ctx := t.Context()
	for name, read := range map[string]func() error{
		"serializable": func() error { _, err := kv.Get(ctx, "k", clientv3.WithSerializable()); return err },
		"below token":  func() error { _, err := kv.Get(ctx, "k", before); return err },
		"below, serializable": func() error {
			_, err := kv.Get(ctx, "k", before, clientv3.WithSerializable())
			return err
		},
		"in Do": func() error { _, err := kv.Do(ctx, clientv3.OpGet("k", before)); return err },
		"in Txn": func() error {
			_, err := kv.Txn(ctx).Then(clientv3.OpPut("k", "w"), clientv3.OpGet("k", before)).Commit()
			return err
		},
		"in Else": func() error {
			_, err := kv.Txn(ctx).Else(clientv3.OpGet("k", clientv3.WithSerializable())).Commit()
			return err
		},
		"nested": func() error {
			_, err := kv.Txn(ctx).Then(clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpGet("k", before)})).Commit()
			return err
		},
	} {
		if err := read(); !errors.Is(err, etcdguard.ErrUnfencedRead) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want %v", name, err, etcdguard.ErrUnfencedRead)
		}
	}
	for _, opts := range [][]clientv3.OpOption{{at}, {at, clientv3.WithSerializable()}} {
		if _, err := kv.Get(ctx, "k", opts...); err != nil {
			t.Errorf("at the token's own revision: %v", err)
		}
	}
	// Of several grants the newest counts: it is not known which one guards "k".
	two := fenced(t, s.guard, grants{g, acquire(t, s.truth, "m")})
	if _, err := two.Get(ctx, "k", at); !errors.Is(err, etcdguard.ErrUnfencedRead) {
		t.Errorf("below the newer of two tokens: %v", err)
	}
	s.wantValue(t, "k", "v")
}

func TestProtectedKeys(t *testing.T) {
	s := start(t, &etcdguard.Options{Directory: func(lock string) string { return "app/locks/" + lock + "/" }})
	g := acquireIn(t, s.truth, "l", "app/locks/l/")
	kv := fenced(t, s.guard, g)
	ctx := t.Context()
	prefix := clientv3.WithPrefix()
	for name, op := range map[string]clientv3.Op{
		"own lock key":       clientv3.OpDelete(g.key),
		"a place in line":    clientv3.OpPut("app/locks/l/0-1", ""),
		"the directory":      clientv3.OpDelete("app/locks/l/", prefix),
		"all locks":          clientv3.OpDelete("app/locks/", prefix),
		"all of the app":     clientv3.OpDelete("app/", prefix),
		"everything":         clientv3.OpDelete("", prefix),
		"from before":        clientv3.OpDelete("app/l", clientv3.WithFromKey()),
		"range up to inside": clientv3.OpDelete("app/", clientv3.WithRange("app/locks/l/0")),
		"the prefix itself":  clientv3.OpPut("/etcd-fence/", ""),
		"the epoch":          clientv3.OpPut("/etcd-fence/epoch", ""),
		"a session":          clientv3.OpDelete("/etcd-fence/sessions/1"),
		"nested": clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{
			clientv3.OpGet("k"), clientv3.OpPut("/etcd-fence/x", ""),
		}, nil)}),
	} {
		_, err := kv.Do(ctx, op)
		if !errors.Is(err, etcdguard.ErrProtectedKey) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want %v", name, err, etcdguard.ErrProtectedKey)
		}
	}
	for name, op := range map[string]clientv3.Op{
		"beside the prefix":    clientv3.OpPut("/etcd-fence", ""),
		"after the prefix":     clientv3.OpDelete("/etcd-fence0", prefix),
		"up to the directory":  clientv3.OpDelete("app/", clientv3.WithRange("app/locks/l/")),
		"from behind it":       clientv3.OpDelete("app/locks/l0", clientv3.WithFromKey()),
		"another directory":    clientv3.OpPut("app/locks/m/0", ""),
		"reading the lock key": clientv3.OpGet("app/locks/", prefix),
	} {
		if _, err := kv.Do(ctx, op); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatCannotBeFenced(t *testing.T) {
	s := start(t, nil)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	ctx := t.Context()
	if _, err := kv.Compact(ctx, 1); !unsupported(err) || status.Code(err) != codes.Unimplemented {
		t.Errorf("Compact: %v", err)
	}
	if _, err := kv.GetStream(ctx, "k"); !unsupported(err) || status.Code(err) != codes.Unimplemented {
		t.Errorf("GetStream: %v", err)
	}
	if _, err := kv.Do(ctx, clientv3.Op{}); !errors.Is(err, resourceguard.ErrInvalid) {
		t.Errorf("Op of no kind: %v", err)
	}
	with := resourceguard.WithOperation(ctx, resourceguard.Operation{ID: "1"})
	if _, err := kv.Put(with, "k", "v"); !unsupported(err) {
		t.Errorf("operation: %v: the caller relies on it", err)
	}
	if _, err := kv.Get(with, "k"); err != nil {
		t.Errorf("reading in the course of an operation: %v", err)
	}
	if n := s.wire.Calls(""); n != 1 {
		t.Errorf("%d requests, want that of the Get alone", n)
	}
}

func TestLockOf(t *testing.T) {
	broken := errors.New("broken")
	s := start(t, &etcdguard.Options{LockOf: func(key string) (string, error) {
		kind, lock, _ := strings.Cut(key, ":")
		if kind != "order" {
			return "", fmt.Errorf("%w: %q", broken, key)
		}
		return lock, nil
	}})
	a, b := acquire(t, s.truth, "a"), acquire(t, s.truth, "b")
	ctx := t.Context()
	put := clientv3.OpPut
	for _, test := range []struct {
		fenced etcdguard.Fenced
		op     clientv3.Op
		want   error
	}{
		{a, put("order:a", ""), nil},
		{a, clientv3.OpDelete("order:a"), nil},
		{a, put("order:b", ""), resourceguard.ErrWrongLock},
		{b, put("order:a", ""), resourceguard.ErrWrongLock},
		{a, clientv3.OpDelete("order:b"), resourceguard.ErrWrongLock},
		{a, clientv3.OpTxn(nil, []clientv3.Op{put("order:a", ""), put("order:b", "")}, nil), resourceguard.ErrWrongLock},
		{grants{a, b}, clientv3.OpTxn(nil, []clientv3.Op{put("order:a", ""), put("order:b", "")}, nil), nil},
		{a, put("other:a", ""), broken},
		{a, clientv3.OpDelete("order:", clientv3.WithPrefix()), resourceguard.ErrInvalid},
		{a, clientv3.OpGet("order:", clientv3.WithPrefix()), nil},
	} {
		_, err := fenced(t, s.guard, test.fenced).Do(ctx, test.op)
		if !errors.Is(err, test.want) || err != nil && resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%s: %v, want %v", show(test.op), err, test.want)
		}
	}
	if err := s.guard.Advance(ctx, "order:b", a.token); !errors.Is(err, resourceguard.ErrWrongLock) {
		t.Errorf("Advance: %v", err)
	}
}

func TestTxnPanicsLikeAnyOther(t *testing.T) {
	s := start(t, nil)
	kv := fenced(t, s.guard, acquire(t, s.truth, "l"))
	for name, f := range map[string]func(clientv3.Txn){
		"If twice":        func(txn clientv3.Txn) { txn.If().If() },
		"If after Then":   func(txn clientv3.Txn) { txn.Then().If() },
		"If after Else":   func(txn clientv3.Txn) { txn.Else().If() },
		"Then twice":      func(txn clientv3.Txn) { txn.Then().Then() },
		"Then after Else": func(txn clientv3.Txn) { txn.Else().Then() },
		"Else twice":      func(txn clientv3.Txn) { txn.Else().Else() },
	} {
		for which, txn := range map[string]clientv3.Txn{"plain": s.truth.Txn(t.Context()), "fenced": kv.Txn(t.Context())} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: %s does not panic", name, which)
					}
				}()
				f(txn)
			}()
		}
	}
}
