package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// The tests of this file and its neighbours are a matrix: its rows are faults, its
// columns the calls. A fault is caused once, with all calls in flight, each on a
// lock of its own; then each call is judged. For all cells the same must be so:
// no two grants of a lock are trusted at once, tokens rise, calls return in
// time, what they return is documented, and afterwards another process gets the
// lock and nothing is left at etcd.

// fault is a row.
type fault struct {
	name string
	// ttl is that of the process whose calls are judged. Defaults to a minute.
	ttl time.Duration
	// cause brings the fault about.
	cause func(*testing.T, *scene)
	// over ends it. A fault without it is over when cause returns, and the calls
	// are made meanwhile; with it, they are made between the two.
	over func(*testing.T, *scene)

	// lost is why grants end. Without it they last.
	lost []coordinator.LostReason
	// reads and writes are what etcd may answer to what is asked meanwhile.
	reads, writes answer
	// full tells that what only deletes is done all the same.
	full bool
	// waits is how waiting ends. Without it, it goes on.
	waits func(error) bool
	// holderDies tells that the process that holds the locks is the one struck.
	holderDies bool
	// given is the time that each call is given. Defaults to ten seconds.
	given time.Duration
}

// answer is what may become of a request.
type answer struct {
	must bool             // it has to fail
	with func(error) bool // what failing looks like; without it, it has to succeed
}

// is accepts errors of these kinds.
func is(kinds ...error) func(error) bool {
	return func(err error) bool {
		for _, kind := range kinds {
			if errors.Is(err, kind) {
				return true
			}
		}
		return false
	}
}

func (a answer) check(what string, err error) error {
	switch {
	case err == nil && a.must:
		return fmt.Errorf("%s succeeded", what)
	case err != nil && (a.with == nil || !a.with(err)):
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// scene is where a fault strikes: two processes and the locks that they share.
type scene struct {
	fault
	etcd   *embedded.Cluster
	truth  *clientv3.Client // is never struck
	client *clientv3.Client // of the process whose calls are judged
	wire   *wire.Wire
	path   embedded.Proxies // between that and etcd

	c     *coordinator.Coordinator // whose calls are judged
	other *coordinator.Coordinator // of another process
	opts  coordinator.Options      // of c

	// mortal is the process that holds the locks, if that is to die.
	mortal  *mortal
	mortals []*mortal // of all modes

	mu     sync.Mutex
	grants map[string][]*coordinator.Grant // of each lock, in order
	dead   map[string]*deadGrant           // of each lock, before them
	guard  *etcdguard.Guard
}

// elsewhere is Options.Directory of a test.
func elsewhere(lock string) string { return "/elsewhere/" + lock + "/" }

func (s *scene) directory(lock string) string {
	if s.opts.Directory != nil {
		return s.opts.Directory(lock)
	}
	return directory(lock)
}

// granted takes a new grant into the account: at this moment no earlier one of
// its lock may be trusted.
func (s *scene) granted(g *coordinator.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, earlier := range s.grants[g.Lock()] {
		if earlier.Err() == nil {
			return fmt.Errorf("%s was granted while %s is held", g.Token(), earlier.Token())
		}
		if order, err := g.Token().Compare(earlier.Token()); err != nil || order <= 0 {
			return fmt.Errorf("token %s after %s: %w", g.Token(), earlier.Token(), err)
		}
	}
	if dead := s.dead[g.Lock()]; dead != nil {
		if order, err := g.Token().Compare(dead.token); err != nil || order <= 0 {
			return fmt.Errorf("token %s after %s: %w", g.Token(), dead.token, err)
		}
	}
	s.grants[g.Lock()] = append(s.grants[g.Lock()], g)
	return nil
}

// acquire is acquire of the process that is judged.
func (s *scene) acquire(t *testing.T, lock string, opts ...coordinator.AcquireOption) *coordinator.Grant {
	t.Helper()
	g := acquire(t, s.c, lock, opts...)
	if err := s.granted(g); err != nil {
		t.Error(err)
	}
	return g
}

// holding is a lock that another process holds.
type holding struct {
	token revisionfence.Token
	grant *coordinator.Grant
}

func (h holding) leave(t *testing.T) {
	t.Helper()
	if h.grant != nil {
		release(t, h.grant)
	}
}

// hold has another process hold a lock.
func (s *scene) hold(t *testing.T, lock string) holding {
	t.Helper()
	if s.mortal != nil {
		dead := s.mortal.hold(t, lock)
		s.dead[lock] = dead
		return holding{token: dead.token}
	}
	g := acquire(t, s.other, lock)
	if err := s.granted(g); err != nil {
		t.Error(err)
	}
	return holding{g.Token(), g}
}

// queued waits until so many keys stand in the queue of a lock.
func (s *scene) queued(t *testing.T, lock string, n int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d keys in the queue of %q", n, lock), func() bool {
		resp, err := s.truth.Get(t.Context(), s.directory(lock), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == n
	})
}

// free fails unless another process gets the lock now. Then whoever had it
// before can write no more, and the new holder can.
func (s *scene) free(t *testing.T, lock string) {
	t.Helper()
	g := acquire(t, s.other, lock)
	if err := s.granted(g); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	var writers []etcdguard.Fenced
	for _, writer := range s.grants[lock] {
		writers = append(writers, writer)
	}
	if dead := s.dead[lock]; dead != nil {
		writers = append(writers, dead)
	}
	s.mu.Unlock()
	for _, writer := range writers {
		kv, err := s.guard.KV(writer)
		if err != nil {
			t.Fatal(err)
		}
		_, err = kv.Put(within(t, patience), "stock/"+lock, g.Token().String())
		if now := writer == etcdguard.Fenced(g); now && err != nil || !now && !errors.Is(err, resourceguard.ErrStale) {
			t.Errorf("a write under %v while %s holds the lock: %v", writer.Fence(), g.Token(), err)
		}
	}
	release(t, g)
}

// cell is a call in flight.
type cell struct {
	// during is made while the fault goes on, with an error if it went wrong.
	during func(context.Context) error
	// again tells that it is made over and over until the fault is over.
	again bool
	// judge looks at what has become of it.
	judge func(*testing.T)
}

// column brings a call into flight.
type column struct {
	name    string
	prepare func(t *testing.T, s *scene, lock string) cell
	// unlisted tells that the call needs a prefix of its own.
	unlisted bool
}

// run is a cell that runs.
type run struct {
	cell
	scene      *scene
	name, lock string
	done       chan struct{}
	verdict    error
}

// make makes the call.
func (r *run) make(ctx context.Context, struck <-chan struct{}) {
	defer close(r.done)
	if r.during == nil {
		return
	}
	for {
		bound, cancel := context.WithTimeout(ctx, r.scene.given)
		start := time.Now()
		err := r.during(bound)
		cancel()
		if took := time.Since(start); err == nil && took > r.scene.given+coordinator.DefaultCleanupTimeout+time.Second {
			err = fmt.Errorf("it returned after %v", took)
		}
		if r.verdict = err; err != nil || !r.again {
			return
		}
		select {
		case <-struck:
			return
		default:
			pause()
		}
	}
}

// strike causes a fault with all calls in flight and judges each of them.
func (f fault) strike(t *testing.T, s *scene) {
	t.Helper()
	t.Run(f.name, func(t *testing.T) {
		if f.given == 0 {
			f.given = 10 * time.Second
		}
		if f.ttl == 0 {
			f.ttl = steady.TTL
		}
		start := time.Now()
		label(t)
		t.Cleanup(func() { s.nothingLeft(t) })
		var runs []*run
		var scenes []*scene
		for _, mode := range []string{"prefix", "directory"} {
			at := s.open(t, f, mode)
			for _, column := range columns {
				if column.unlisted && mode == "directory" {
					continue
				}
				r := &run{scene: at, name: mode + "/" + column.name, done: make(chan struct{})}
				r.lock = fmt.Sprintf("%d", len(runs))
				r.cell = column.prepare(t, at, r.lock)
				runs = append(runs, r)
			}
			scenes = append(scenes, at)
		}
		prepared := time.Since(start)

		s := scenes[0] // they have everything but the processes in common
		if s.mortal != nil {
			s.mortals = []*mortal{s.mortal, scenes[1].mortal}
		}
		struck := make(chan struct{})
		begin := func() {
			for _, r := range runs {
				go r.make(t.Context(), struck)
			}
		}
		s.wire.Reset()
		began := time.Now()
		if f.over == nil {
			begin()
			f.cause(t, s)
		} else {
			f.cause(t, s)
			begin()
		}
		close(struck)
		for _, r := range runs {
			<-r.done
		}
		if f.over != nil {
			f.over(t, s)
		}
		lasted := time.Since(began)
		for method, n := range s.wire.Counts() {
			most := 20 + int(10*lasted.Seconds())
			switch method {
			case "Txn", "Range", "Authenticate":
				if f.over == nil {
					continue // the calls themselves are repeated
				}
				most += 4 * len(runs)
			}
			if n > most { // nothing may ask without a pause
				t.Errorf("%d times %s in %v, want at most %d", n, method, lasted, most)
			}
		}
		for _, r := range runs {
			t.Run(r.name, func(t *testing.T) {
				if r.verdict != nil {
					t.Error(r.verdict)
				}
				r.judge(t)
				r.scene.free(t, r.lock)
			})
		}
		t.Logf("%d cells: prepared in %v, the fault took %v, judged in %v; requests %v", len(runs), prepared, lasted, time.Since(began)-lasted, s.wire.Counts())
	})
}

// open makes the processes of a scene.
func (s *scene) open(t *testing.T, f fault, mode string) *scene {
	t.Helper()
	at := &scene{fault: f, etcd: s.etcd, truth: s.truth, client: s.client, wire: s.wire, path: s.path, grants: make(map[string][]*coordinator.Grant), dead: make(map[string]*deadGrant)}
	at.opts = coordinator.Options{TTL: f.ttl, Identity: "judged"}
	others := coordinator.Options{TTL: steady.TTL, Identity: "other"}
	if mode == "directory" {
		at.opts.Directory, others.Directory = elsewhere, elsewhere
	}
	if f.holderDies {
		at.mortal = newMortal(t, s.etcd, mode)
	}
	at.c, at.other = newCoordinator(t, s.client, at.opts), newCoordinator(t, s.truth, others)
	var err error
	if at.guard, err = etcdguard.New(s.truth, &etcdguard.Options{Directory: at.opts.Directory}); err != nil {
		t.Fatal(err)
	}
	return at
}

// nothingLeft waits for leases that nobody could be told to end. Each member
// answers from what it has applied, and the client asks them in turn.
func (s *scene) nothingLeft(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	eventually(t, "no lease is left", func() bool {
		for range 2 * len(s.etcd.Endpoints()) {
			if leases, err := s.truth.Leases(ctx); err != nil || len(leases.Leases) != 0 {
				return false
			}
		}
		return true
	})
	nothingLeft(t, s.truth)
	resp, err := s.truth.Get(ctx, "/elsewhere/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || resp.Count != 0 {
		t.Errorf("left in the directories: %v, %v", resp, err)
	}
}
