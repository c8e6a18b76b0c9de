package etcdguard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// The tests of this file and its neighbour are a matrix: faults, and operations
// in both modes, under each kind of fence. All operations go on, each on a key of
// its own, while a fault happens, and after it. The history of the keys must be
// what the operations were told: what was applied is there, once; what was not is
// not; and once there is another owner, nothing more.

// fault is a row.
type fault struct {
	name  string
	cause func(*testing.T, *stage)
	// over ends it, after each operation has met it.
	over func(*testing.T, *stage)
	// with is what failing looks like meanwhile. Without it nothing may fail.
	with func(error) bool
	// ends tells that the grants end with it.
	ends bool
	// writesFail tells that no write can succeed before it is over.
	writesFail bool
}

// stage is where a fault strikes.
type stage struct {
	etcd   *embedded.Cluster
	truth  *clientv3.Client
	client *clientv3.Client // of the guard
	path   embedded.Proxies

	writers []*writer
}

// owned is what fences in the matrix.
type owned interface {
	etcdguard.Fenced
	Token() revisionfence.Token
}

// writer is an owner, whose operations are all under way.
type writer struct {
	guard *etcdguard.Guard
	mode  etcdguard.Mode
	lock  string
	fence owned
	key   string
	lease clientv3.LeaseID
	kv    clientv3.KV
	ops   []*operation
}

// operation is one that is made over and over.
type operation struct {
	name string
	do   func(ctx context.Context, key, value string) error
	// reads tells that it stores nothing.
	reads bool

	key      string
	attempts atomic.Int64

	mu       sync.Mutex
	outcomes map[string]resourceguard.Outcome // by value
	wrong    []error
	last     error
}

func (w *writer) operations(truth *clientv3.Client) []*operation {
	return []*operation{
		{name: "Put", do: func(ctx context.Context, key, value string) error {
			_, err := w.kv.Put(ctx, key, value)
			return err
		}},
		{name: "Txn", do: func(ctx context.Context, key, value string) error {
			resp, err := w.kv.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), ">", -1)).Then(clientv3.OpPut(key, value), clientv3.OpGet(key)).Commit()
			if err == nil && (!resp.Succeeded || len(resp.Responses) != 2) {
				return fmt.Errorf("a wrong answer: %v", resp)
			}
			return err
		}},
		{name: "Delete", do: func(ctx context.Context, key, value string) error {
			if _, err := truth.Put(ctx, key+"/"+value, ""); err != nil {
				return errNotTried
			}
			_, err := w.kv.Delete(ctx, key+"/"+value)
			return err
		}},
		{name: "Get", reads: true, do: func(ctx context.Context, key, _ string) error {
			_, err := w.kv.Get(ctx, key)
			return err
		}},
		{name: "Advance", reads: true, do: func(ctx context.Context, _, _ string) error {
			return w.guard.Advance(ctx, w.lock, w.fence.Token())
		}},
	}
}

var errNotTried = errors.New("nothing was tried")

const attemptTime = 2 * time.Second

// attempt makes the operation once.
func (o *operation) attempt(ctx context.Context, f *fault) {
	bound, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	value := fmt.Sprint(o.attempts.Load())
	start := time.Now()
	err := o.do(bound, o.key, value)
	took := time.Since(start)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempts.Add(1)
	if errors.Is(err, errNotTried) {
		return
	}
	o.last = err
	outcome := resourceguard.Applied
	if err != nil {
		outcome = resourceguard.OutcomeOf(err)
	}
	o.outcomes[value] = outcome
	stale := errors.Is(err, resourceguard.ErrStale)
	switch {
	case took > attemptTime+2*time.Second:
		o.wrong = append(o.wrong, fmt.Errorf("it returned after %v", took))
	case err != nil && outcome == resourceguard.Applied, stale && outcome != resourceguard.NotApplied:
		o.wrong = append(o.wrong, fmt.Errorf("outcome %v of %w", outcome, err))
	case err == nil, stale && f.ends:
	case f.with == nil || !f.with(err):
		o.wrong = append(o.wrong, err)
	}
}

// met waits until the operation was begun and ended again since.
func (o *operation) met(t *testing.T) {
	t.Helper()
	before, end := o.attempts.Load(), time.Now().Add(30*time.Second)
	for o.attempts.Load() < before+2 {
		if time.Now().After(end) {
			t.Fatalf("%s has not ended", o.key)
		}
		time.Sleep(time.Millisecond)
	}
}

// fencesBy are the kinds of fence. Each takes a lock and names its key and lease.
var fencesBy = map[string]func(t *testing.T, client *clientv3.Client, lock string) (owned, string, clientv3.LeaseID){
	"grant": func(t *testing.T, client *clientv3.Client, lock string) (owned, string, clientv3.LeaseID) {
		g := acquireIn(t, client, lock, jobs(lock))
		return g, g.key, g.lease
	},
	"FromMutex": func(t *testing.T, client *clientv3.Client, lock string) (owned, string, clientv3.LeaseID) {
		s := session(t, client)
		m := concurrency.NewMutex(s, strings.TrimSuffix(jobs(lock), "/"))
		must(t, m.Lock(soon(t)))
		k, err := etcdguard.FromMutex(lock, m)
		must(t, err)
		return k, m.Key(), s.Lease()
	},
	"FromElection": func(t *testing.T, client *clientv3.Client, lock string) (owned, string, clientv3.LeaseID) {
		s := session(t, client)
		e := concurrency.NewElection(s, strings.TrimSuffix(jobs(lock), "/"))
		must(t, e.Campaign(soon(t), "me"))
		k, err := etcdguard.FromElection(lock, e)
		must(t, err)
		return k, e.Key(), s.Lease()
	},
}

func (s *stage) prepare(t *testing.T, name string) {
	t.Helper()
	s.writers = nil
	putEpoch(t, s.truth)
	for _, mode := range []etcdguard.Mode{etcdguard.Held, etcdguard.HighWater} {
		guard := newGuard(t, s.client, &etcdguard.Options{Mode: mode, Directory: jobs})
		for by, take := range fencesBy {
			w := &writer{guard: guard, mode: mode, lock: strings.ReplaceAll(fmt.Sprintf("%s-%v-%s", name, mode, by), " ", "-")}
			w.fence, w.key, w.lease = take(t, s.truth, w.lock)
			must(t, guard.Advance(soon(t), w.lock, w.fence.Token()))
			w.kv = fenced(t, guard, w.fence)
			for _, o := range w.operations(s.truth) {
				o.key, o.outcomes = "data/"+w.lock+"/"+o.name, make(map[string]resourceguard.Outcome)
				w.ops = append(w.ops, o)
			}
			s.writers = append(s.writers, w)
		}
	}
}

// each does something with every operation at once.
func (s *stage) each(do func(*operation)) {
	var all sync.WaitGroup
	for _, w := range s.writers {
		for _, o := range w.ops {
			all.Go(func() { do(o) })
		}
	}
	all.Wait()
}

// history is what happened to keys below data/, from now on.
type history struct {
	done   chan struct{}
	values map[string][]string // put, in order
	gone   map[string]bool     // deleted
}

func (s *stage) record(t *testing.T) *history {
	t.Helper()
	h := &history{done: make(chan struct{}), values: make(map[string][]string), gone: make(map[string]bool)}
	now, err := s.truth.Get(soon(t), "data/")
	must(t, err)
	next := now.Header.Revision + 1
	go func() {
		defer close(h.done)
		// A watch ends when users change.
		for ended := false; !ended && t.Context().Err() == nil; {
			watching, stop := context.WithCancel(t.Context())
			for resp := range s.truth.Watch(watching, "data/", clientv3.WithPrefix(), clientv3.WithRev(next)) {
				if ended = h.take(resp.Events); ended {
					break
				}
				if n := len(resp.Events); n > 0 {
					next = resp.Events[n-1].Kv.ModRevision + 1
				}
			}
			stop()
		}
	}()
	return h
}

// take reports whether the end has been seen.
func (h *history) take(events []*clientv3.Event) (ended bool) {
	for _, ev := range events {
		switch key := string(ev.Kv.Key); {
		case key == "data/end":
			return true
		case ev.Type == clientv3.EventTypeDelete:
			h.gone[key] = true
		default:
			h.values[key] = append(h.values[key], string(ev.Kv.Value))
		}
	}
	return false
}

func (s *stage) end(t *testing.T, h *history) {
	t.Helper()
	if _, err := s.truth.Put(soon(t), "data/end", fmt.Sprint(time.Now())); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.done:
	case <-soon(t).Done():
		t.Fatal("the history does not end")
	}
}

// strike causes a fault while everything is done by all, and judges it.
func (f fault) strike(t *testing.T, s *stage) {
	t.Helper()
	t.Run(f.name, func(t *testing.T) {
		start := time.Now()
		s.prepare(t, f.name)
		h := s.record(t)
		loop, stop := context.WithCancel(t.Context())
		var loops sync.WaitGroup
		for _, w := range s.writers {
			for _, o := range w.ops {
				loops.Go(func() {
					for loop.Err() == nil {
						o.attempt(t.Context(), &f)
						time.Sleep(5 * time.Millisecond) // so that all get a turn
					}
				})
			}
		}
		defer func() {
			stop()
			loops.Wait()
		}()
		s.each(func(o *operation) { o.met(t) })
		f.cause(t, s)
		s.each(func(o *operation) { o.met(t) })
		if f.writesFail {
			for _, w := range s.writers {
				for _, o := range w.ops[:2] {
					o.mu.Lock()
					if o.last == nil {
						t.Errorf("%s succeeded", o.key)
					}
					o.mu.Unlock()
				}
			}
		}
		if f.over != nil {
			f.over(t, s)
		}
		s.each(func(o *operation) { o.met(t) })
		stop()
		loops.Wait()
		// Now that it is over, everything goes on, or is over too.
		for _, w := range s.writers {
			for _, o := range w.ops {
				o.attempt(t.Context(), &f)
			}
		}
		s.succeed(t)
		s.end(t, h)
		attempts := int64(0)
		for _, w := range s.writers {
			for _, o := range w.ops {
				attempts += o.attempts.Load()
				t.Run(fmt.Sprintf("%v/%s", w.lock, o.name), func(t *testing.T) { f.judge(t, w, o, h) })
			}
		}
		t.Logf("%d attempts in %v", attempts, time.Since(start))
	})
}

// succeed has another owner take each lock, and write. From then on the old one
// is refused whatever it does.
func (s *stage) succeed(t *testing.T) {
	t.Helper()
	for _, w := range s.writers {
		_, _ = s.truth.Revoke(soon(t), w.lease) // the fault may have been that
		next := acquireIn(t, s.truth, w.lock, jobs(w.lock))
		guard := newGuard(t, s.truth, &etcdguard.Options{Mode: w.mode, Directory: jobs})
		must(t, guard.Advance(soon(t), w.lock, next.token))
		kv := fenced(t, guard, next)
		for _, o := range w.ops {
			if _, err := kv.Put(soon(t), o.key, "next"); err != nil {
				t.Errorf("the next owner's Put: %v", err)
			}
			if err := o.do(soon(t), o.key, "late"); !errors.Is(err, resourceguard.ErrStale) {
				t.Errorf("%s under the old token %s: %v", o.key, w.fence.Token(), err)
			}
		}
		_, err := s.truth.Revoke(soon(t), next.lease)
		must(t, err)
	}
}

// judge compares what an operation was told with what has happened.
func (f fault) judge(t *testing.T, w *writer, o *operation, h *history) {
	for _, err := range o.wrong {
		t.Error(err)
		break // the others are alike
	}
	switch held := w.mode == etcdguard.Held; {
	case !f.ends && o.last != nil:
		t.Errorf("afterwards: %v", o.last)
	case f.ends && held && !errors.Is(o.last, resourceguard.ErrStale):
		t.Errorf("after the end of the grant: %v", o.last)
	}
	if o.reads {
		return
	}
	seen := make(map[string]int)
	for i, value := range h.values[o.key] {
		if seen[value]++; value == "next" && i != len(h.values[o.key])-1 {
			t.Errorf("written after the next owner: %v", h.values[o.key][i+1:])
		}
	}
	for value, outcome := range o.outcomes {
		n := seen[value]
		if o.name == "Delete" {
			if n = 0; h.gone[o.key+"/"+value] {
				n = 1
			}
		}
		if n > 1 || outcome == resourceguard.Applied && n != 1 || outcome == resourceguard.NotApplied && n != 0 {
			t.Errorf("%s %s was told %v, and happened %d times", o.key, value, outcome, n)
		}
	}
}
