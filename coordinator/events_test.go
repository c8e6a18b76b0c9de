package coordinator_test

import (
	"context"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// reading tells of the reads by which a waiter looks for its place, after their
// answers came, and counts everything else that a client asks etcd's keys.
type reading struct {
	mu       sync.Mutex
	last     time.Time // when the latest was sent
	answered int
	asked    map[string]int // all requests, by method
	news     chan struct{}
}

func watchReads(w *wire.Wire) *reading {
	r := &reading{asked: make(map[string]int), news: make(chan struct{}, 1)}
	w.OnUnary(func(ctx context.Context, call *wire.Call) error {
		sent := time.Now()
		err := call.Send(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked[call.Method]++
		if err == nil && transaction(call) == reads {
			r.last, r.answered = sent, r.answered+1
			select {
			case r.news <- struct{}{}:
			default:
			}
		}
		return err
	})
	return r
}

// await waits for the next read.
func (r *reading) await(t *testing.T) {
	t.Helper()
	select {
	case <-r.news:
	case <-time.After(patience):
		t.Fatal("nobody looked for its place")
	}
}

// forget begins to count anew.
func (r *reading) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.asked)
	select {
	case <-r.news:
	default:
	}
}

// since is how many requests to etcd's keys there were, and how old the latest
// read of the place is.
func (r *reading) since() (requests int, age time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked["Txn"] + r.asked["Range"], time.Since(r.last)
}

// onEveryEvent calls f for each answer of a watch that has events.
func onEveryEvent(w *wire.Wire, f func(*pb.WatchResponse) error) *wire.MessageHook {
	return w.OnMessage(func(_ context.Context, m *wire.Message) error {
		if resp, ok := m.Payload.(*pb.WatchResponse); ok && !m.Sent && len(resp.Events) > 0 {
			return f(resp)
		}
		return nil
	})
}

func deletes(resp *pb.WatchResponse, key string) *mvccpb.Event {
	for _, ev := range resp.Events {
		if ev.Type == mvccpb.Event_DELETE && string(ev.Kv.Key) == key {
			return ev
		}
	}
	return nil
}

// second is for how long an answer of etcd vouches for the events after it.
const second = time.Second

// quickly repeats a step until its time was short enough to show something,
// which a loaded machine may not grant at once.
func quickly(t *testing.T, step func() (age time.Duration)) {
	t.Helper()
	for range 20 {
		if step() < second {
			return
		}
	}
	t.Skip("this machine takes a second for everything")
}

func TestQuietHandOffBetweenProcessesIsNotRead(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	r := watchReads(w)
	quickly(t, func() time.Duration {
		before := acquire(t, a, "orders")
		next := ask(t, b, "orders")
		r.await(t)
		r.forget()
		release(t, before)
		g := next.granted(t)
		n, age := r.since()
		if age < second && n != 0 {
			t.Errorf("%d requests after the release: %v", n, r.asked)
		}
		rises(t, before, g)
		stands(t, client, g)
		release(t, g)
		return age
	})
}

func TestWaitOfMoreThanASecondPaysOneRead(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	r := watchReads(w)
	before := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	// A proof of the lease leads to a look of its own: this is about the time
	// between two.
	for age := time.Duration(0); age < second+100*time.Millisecond; _, age = r.since() {
		r.await(t)
		<-time.After(second + 100*time.Millisecond)
	}
	r.forget()
	release(t, before)
	g := next.granted(t)
	if n, _ := r.since(); n != 1 {
		t.Errorf("%d requests after the release: %v", n, r.asked)
	}
	release(t, g)
}

// A client resumes a broken watch without telling, perhaps at a member that was
// restored. What shows is that the answers come from elsewhere.
func TestEventsFromElsewhereAreNotBelieved(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(*pb.ResponseHeader){
		"cluster": func(h *pb.ResponseHeader) { h.ClusterId++ },
		"member":  func(h *pb.ResponseHeader) { h.MemberId++ },
		"term":    func(h *pb.ResponseHeader) { h.RaftTerm++ },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := cluster(t, nil)
			client, w := tapped(t, etcd)
			a := newCoordinator(t, etcd.Client(), steady)
			b := newCoordinator(t, client, steady)
			r := watchReads(w)
			onEveryEvent(w, func(resp *pb.WatchResponse) error {
				forge(resp.Header)
				return nil
			})
			before := acquire(t, a, "orders")
			next := ask(t, b, "orders")
			r.await(t)
			r.forget()
			release(t, before)
			g := next.granted(t)
			if n, _ := r.since(); n < 1 {
				t.Error("granted without a read")
			}
			release(t, g)
		})
	}
}

// The same with a member that really was restarted.
func TestResumedWatchIsNotBelieved(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	r := watchReads(w)
	before := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	r.await(t)
	etcd.Restart(t)
	r.forget()
	r.await(t) // at the next proof, by the watch that was opened before
	r.forget()
	release(t, before)
	g := next.granted(t)
	if n, _ := r.since(); n < 1 {
		t.Error("granted without a read")
	}
	stands(t, client, g)
	release(t, g)
}

// All who stood ahead are gone, and so is the own key, of which the watch said
// nothing: who believes in the events owns the lock beside its owner.
func TestWaiterWhoseKeyIsGoneUnheardIsNotGranted(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	c := newCoordinator(t, etcd.Client(), steady)
	r := watchReads(w)
	before := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	own := string(queued(t, client, "orders", 2)[1].Key)
	r.await(t)

	dropped := make(chan struct{})
	onEveryEvent(w, func(resp *pb.WatchResponse) error {
		if deletes(resp, own) != nil {
			close(dropped)
			return wire.ErrDrop
		}
		return nil
	})
	if _, err := etcd.Client().Delete(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	<-dropped
	owner := ask(t, c, "orders")
	queued(t, client, "orders", 2)
	<-time.After(second) // until then the last look vouches for the key
	release(t, before)
	held := owner.granted(t)
	queued(t, client, "orders", 2) // it has come back, behind
	next.waits(t)
	release(t, held)
	g := next.granted(t)
	rises(t, held, g)
	release(t, g)
}

// One answer of a watch can say that all who stood ahead are gone, and last
// that the own key is.
func TestOwnDeletionInTheSameAnswerCounts(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, steady)
	c := newCoordinator(t, etcd.Client(), steady)
	r := watchReads(w)
	before := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	own := string(queued(t, client, "orders", 2)[1].Key)
	r.await(t)

	kept := make(chan *mvccpb.Event, 1)
	onEveryEvent(w, func(resp *pb.WatchResponse) error {
		if ev := deletes(resp, own); ev != nil {
			kept <- proto.Clone(ev).(*mvccpb.Event)
			return wire.ErrDrop
		}
		if deletes(resp, before.Key()) != nil {
			resp.Events = append(resp.Events, <-kept)
		}
		return nil
	})
	owner := ask(t, c, "orders")
	queued(t, client, "orders", 3)
	if _, err := etcd.Client().Txn(t.Context()).Then(clientv3.OpDelete(own)).Commit(); err != nil {
		t.Fatal(err)
	}
	release(t, before)
	held := owner.granted(t)
	queued(t, client, "orders", 2)
	next.waits(t)
	release(t, held)
	release(t, next.granted(t))
}

func TestSilentWatchIsHealedByTheNextProof(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	a := newCoordinator(t, etcd.Client(), steady)
	b := newCoordinator(t, client, hasty)
	r := watchReads(w)
	before := acquire(t, a, "orders")
	next := ask(t, b, "orders")
	r.await(t)
	onEveryEvent(w, func(*pb.WatchResponse) error { return wire.ErrDrop })
	release(t, before)
	release(t, next.granted(t))
}
