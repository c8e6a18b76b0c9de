package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// Coordinator decides, through etcd, who may hold a lock now. One is enough for
// a process; it is safe for use by any number of goroutines.
type Coordinator struct {
	client  *clientv3.Client
	kv      clientv3.KV
	leases  leases
	lessor  clientv3.Lease // leases, unless a test has put its own in its place
	watcher clientv3.Watcher
	opts    Options
	keys    layout
	log     *slog.Logger
	metrics *metrics
	now     clock

	// callTimeout bounds one request, openTimeout the opening of a session.
	callTimeout, openTimeout time.Duration

	// counts are for Health and the metrics.
	counts struct{ held, waiting, releasing atomic.Int64 }
	// leaveFleet ends the reporting of gauges.
	leaveFleet func()

	// base ends when the coordinator, or the client under it, is closed.
	base context.Context
	stop context.CancelFunc
	// closing ends when Close begins; base, under which it still cleans up, later.
	closing context.Context
	refuse  context.CancelFunc // ends closing
	shut    chan struct{}      // closed when the first Close has returned

	mu         sync.Mutex
	running    crew // functions under Do
	background crew // goroutines of our own
	watches    crew // watches that have not begun

	closed  bool // nothing new begins
	drained bool // no goroutine is started any more
	// unanswered is a lease that was asked for, and that may exist.
	unanswered clientv3.LeaseID
	orphans    int // leases that etcd has not confirmed to be gone
	// orphaned is why the last of the orphans could not be revoked, if etcd said so.
	orphaned error
	current  *session
	opening  *opening
	trouble  error             // why there is no session though there should be
	queues   map[string]*queue // by directory
	below    directories
	unbegun  map[string]int // watches that were given up before they began, by directory
}

// New returns a coordinator that works through the client. It does no I/O:
// call [Coordinator.Ping] to learn at start-up whether everything is in place.
// The client stays the caller's, who closes it after the coordinator. Nil
// options are the defaults.
//
// The client must be a plain one: if its KV, Lease or Watcher were replaced, by
// the namespace package say, use [Options.Prefix] instead. It fails with
// [ErrInvalidOption].
func New(client *clientv3.Client, opts *Options) (*Coordinator, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: no etcd client given", ErrInvalidOption)
	}
	if err := etcdonce.Check(client); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Coordinator{
		client: client, kv: etcdonce.New(client), leases: newLeases(client), watcher: client.Watcher,
		opts: o, keys: layout{prefix: o.Prefix, anywhere: o.Directory != nil}, log: o.Logger, now: systemClock,
		callTimeout: min(max(o.TTL/2, time.Second), 5*time.Second),
		openTimeout: 5 * time.Second,
		queues:      make(map[string]*queue),
		below:       make(directories),
		unbegun:     make(map[string]int),
	}
	c.lessor = c.leases
	c.leaveFleet = func() {}
	if c.metrics, err = newMetrics(c); err != nil {
		return nil, err
	}
	c.base, c.stop = context.WithCancel(client.Ctx())
	c.closing, c.refuse = context.WithCancel(context.Background())
	c.shut = make(chan struct{})
	return c, nil
}

// spawnLocked runs f in a goroutine that Close waits for. It does nothing and
// returns false once Close has stopped waiting.
func (c *Coordinator) spawnLocked(f func()) bool { return c.spawnInLocked(&c.background, f) }

func (c *Coordinator) spawnInLocked(w *crew, f func()) bool {
	if c.drained {
		return false
	}
	w.working++
	go func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			w.doneLocked()
		}()
		f()
	}()
	return true
}

// crew counts what is at work. Unlike a WaitGroup it may grow while somebody
// waits for it to be idle.
type crew struct {
	working int
	idle    chan struct{} // closed at 0, if anybody waits
}

func (w *crew) doneLocked() {
	if w.working--; w.working == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

// await waits until the crew is idle, or until ctx ends, and reports which.
func (c *Coordinator) await(ctx context.Context, w *crew) bool {
	c.mu.Lock()
	if w.working == 0 {
		c.mu.Unlock()
		return true
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// Ping reports whether this coordinator can do its work: etcd has a quorum, its
// lease API works, the epoch record is in order, and the client's user may read
// and write what lies under the prefix. It takes a lease if there is none yet. An
// [ErrLost] says that the lease, or what hangs on it, was just found to be gone;
// asked again, Ping takes another.
func (c *Coordinator) Ping(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ping: %w", endOf(ctx))
	}
	s, err := c.session(ctx)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	bound, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	// A transaction is checked for what it might do: this one does nothing, and
	// fails unless every kind of request that locks need is permitted. A user
	// who may read only part of locks/ would see the wrong key at the front of a
	// queue.
	probe := c.keys.locks() + "ping"
	may := []clientv3.Op{clientv3.OpPut(s.key, s.value, clientv3.WithLease(s.lease))}
	look := clientv3.OpGet(s.key, clientv3.WithKeysOnly())
	if c.opts.Directory == nil {
		may = append(may, clientv3.OpPut(probe, "", clientv3.WithLease(s.lease)), clientv3.OpDelete(probe+"/"))
		look = clientv3.OpGet(c.keys.locks(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	resp, err := c.kv.Txn(bound).
		If(clientv3.Compare(clientv3.CreateRevision(c.keys.epoch()), "<", 0)). // never
		Then(may...).
		Else(look, clientv3.OpGet(c.keys.epoch()), clientv3.OpGet(s.key, clientv3.WithKeysOnly())).
		Commit()
	if err != nil {
		return fmt.Errorf("ping: user and permissions under %s: %w", c.keys.prefix, answered(ctx, err))
	}
	if err := s.check(resp.Responses[1].GetResponseRange().Kvs, resp.Responses[2].GetResponseRange().Kvs); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// check says whether the session is still of the present epoch.
func (s *session) check(epoch, session []*mvccpb.KeyValue) error {
	if len(epoch) == 0 {
		return &RestoredError{fmt.Sprintf("the epoch record %s is gone", s.c.keys.epoch())}
	}
	if _, err := decodeEpoch(epoch[0]); err != nil {
		return err
	}
	if createRevision(session) != s.create {
		s.keyGone()
		return s.over()
	}
	return nil
}

// Close ends everything: nothing new is granted, waiters get [ErrClosed], and
// the contexts of all grants end with [LostClosed]. Then it waits, until ctx
// ends, for the functions under Do to return and their locks to be released.
// Last it revokes the lease, which removes whatever is left.
//
// If ctx ends before etcd has confirmed that, Close goes on for
// [Options.CleanupTimeout] and returns an [ErrUnsettled]: the locks are free
// when the lease runs out, which nobody renews any more. The client is not
// closed. A second Close waits for the first, for as long as its own ctx allows,
// and does not cut it short.
//
// A function under Do or Lead that called Close would wait for itself. With the
// context that it got, Close fails at once with [ErrWaitsForItself], and changes
// nothing; with another one, Close returns only when that has ended.
func (c *Coordinator) Close(ctx context.Context) error {
	if c.runs(ctx) {
		return fmt.Errorf("close: %w: it was called under Do or Lead: let that return first", ErrWaitsForItself)
	}
	c.mu.Lock()
	var lost []*LostError
	first := !c.closed
	if first {
		defer close(c.shut)
		c.closed = true
		c.refuse()
		for _, q := range c.queues {
			for w := q.frontLocked(); w != nil; w = q.frontLocked() {
				q.answerLocked(w, result{err: ErrClosed})
			}
			if q.stop != nil {
				q.stop()
			}
			if e := q.entry; e != nil && e.grant != nil {
				lost = append(lost, e.grant.loseLocked(LostClosed)...)
			}
		}
	}
	c.mu.Unlock()
	c.reportLost(lost)
	if !first {
		if err := c.awaitFirst(ctx); err != nil {
			return err
		}
	}

	c.await(ctx, &c.running)
	c.mu.Lock()
	s := c.current
	c.buryUnansweredLocked()
	c.mu.Unlock()
	if s != nil {
		s.end(LostClosed)
	}
	return c.drain(ctx)
}

// awaitFirst waits for the first Close. Whoever has less time than that must not cut
// it short: functions under Do may be at work, for which it keeps the locks.
func (c *Coordinator) awaitFirst(ctx context.Context) error {
	wait, cancel := graceful(ctx, c.opts.CleanupTimeout)
	defer cancel()
	select {
	case <-c.shut:
		return nil
	case <-wait.Done():
		return fmt.Errorf("close: %w: the first Close goes on: %w", ErrUnsettled, endOf(ctx))
	}
}

// drain lets what runs in the background finish, and ends it when the time is
// over.
func (c *Coordinator) drain(ctx context.Context) error {
	wait, cancel := graceful(ctx, c.opts.CleanupTimeout)
	defer cancel()
	clean := c.await(wait, &c.background)
	// A watch that does not begin is no reason to say that something is left.
	begin, cancel := context.WithTimeout(wait, c.callTimeout)
	defer cancel()
	c.await(begin, &c.watches)
	c.stop()
	c.leaveFleet()
	var why error
	for drained := false; !drained; {
		c.await(context.WithoutCancel(ctx), &c.background)
		c.await(context.WithoutCancel(ctx), &c.watches)
		c.mu.Lock()
		drained = c.background.working == 0 && c.watches.working == 0
		c.drained = drained
		clean = clean && c.orphans == 0
		why = c.orphaned
		c.mu.Unlock()
	}
	if clean {
		return nil
	}
	err := fmt.Errorf("close: %w: the lease was not confirmed to be revoked; it ends within its time to live", ErrUnsettled)
	if why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// graceful returns a context that ends a while after ctx does.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return late, func() {
		stop()
		cancel(context.Canceled)
	}
}

// codeOf is the gRPC code of an error of etcd's client, whose own error type
// hides it from the status package.
func codeOf(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return st.GRPCStatus().Code()
	}
	return codes.Unknown
}
