package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// session is one lease of this process, and all that hangs on it. It begins
// when its session key has been created under the present epoch, and is over
// for good as soon as anything casts doubt on it.
type session struct {
	c      *Coordinator
	lease  clientv3.LeaseID
	ttl    time.Duration // as granted
	epoch  uint16
	key    string
	value  string
	create int64                // create revision of the session key: never changes
	inner  *concurrency.Session // keeps the lease alive; decides nothing

	// ctx ends when the session is over, with its reason as the cause. It ends
	// only through end, so that nothing can outlive its session unnoticed.
	ctx    context.Context
	cancel context.CancelCauseFunc
	unhook func() bool // from the end of the coordinator's base context
	// buried is closed when etcd is known to have no such lease any more, or
	// nobody asks it any more.
	buried chan struct{}

	// mu guards the trust window and the fence that acquires compare with.
	mu     sync.Mutex
	proof  instant // when the last proof that succeeded was SENT
	mod    int64   // mod revision of the session key: rises with each settle
	ticked chan struct{}

	draining chan struct{} // closed while little trusted time is left
	dry      bool          // draining is closed

	// Guarded by Coordinator.mu.
	serial  uint64
	entries map[string]*entry // lock keys whose fate is not known to be "gone"
	ended   bool              // the lease is known to be gone
	// used are the directories in which the session asked for locks, for the
	// audit; only with Options.Directory. There can be very many.
	used map[uint64]struct{}

	settling settler
}

// margin is what the trust window stays short of the lease, for clocks that do
// not run at the same rate, and for the time between a look at the clock and
// what is done after it.
func margin(ttl time.Duration) time.Duration { return min(ttl/10, time.Second) }

// proofInterval is how often the lease is proven alive: often enough that two
// proofs in a row may fail.
func proofInterval(ttl time.Duration) time.Duration { return min(ttl/4, 2*time.Second) }

// dueAt is how much trusted time is left when the next proof is due.
func dueAt(ttl time.Duration) time.Duration { return ttl - margin(ttl) - proofInterval(ttl) }

// lookInterval is how often the clock is looked at: often enough that a window
// that closes is noticed within the margin, before the lease can have ended.
func lookInterval(ttl time.Duration) time.Duration { return margin(ttl) / 2 }

// trustedFor is how long the session's locks may still be relied on, counted
// from before the last proof was sent: the server cannot have started the
// lease's time earlier than that, so it cannot have ended it by then. When an
// answer arrived, or what the keepalive of [concurrency.Session] believes, says
// nothing of the sort: an answer can lie in a socket for as long as the process
// is stopped.
func (s *session) trustedFor() time.Duration {
	if s.over() != nil {
		return 0
	}
	s.mu.Lock()
	proof := s.proof
	s.mu.Unlock()
	return max(0, s.ttl-margin(s.ttl)-s.c.now().since(proof))
}

// trusted looks at the clock, and ends the session if its window has closed.
func (s *session) trusted() bool {
	if s.over() != nil {
		return false
	}
	if s.trustedFor() > 0 {
		return true
	}
	s.end(LostUnproven)
	return false
}

// proved records a proof by the moment at which it was sent.
func (s *session) proved(sent instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.since(s.proof) > 0 {
		s.proof = sent
	}
	// A proof that took long leaves as little time as there was.
	if s.dry && s.over() == nil && s.ttl-margin(s.ttl)-s.c.now().since(s.proof) >= s.c.opts.DrainMargin {
		s.dry, s.draining = false, make(chan struct{})
	}
}

// drain asks the holders not to start anything.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drainLocked()
}

func (s *session) drainLocked() {
	if !s.dry {
		s.dry = true
		close(s.draining)
	}
}

// fence is what an acquire must find the session key's mod revision to be.
func (s *session) fence() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mod
}

func (s *session) raiseFence(mod int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mod = max(s.mod, mod)
}

// tick is closed at the next proof; whoever waits then looks for itself.
func (s *session) tick() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ticked
}

// sessionOver is the cause with which a session's context ends.
type sessionOver struct{ reason LostReason }

func (e *sessionOver) Error() string { return "the session is over: " + string(e.reason) }

// Is reports whether target is [ErrLost], or [ErrClosed] and the reason: Ping is
// told of the end of its session by this.
func (e *sessionOver) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.reason == LostClosed
}

// over returns why the session ended, nil while it has not.
func (s *session) over() *sessionOver {
	var e *sessionOver
	errors.As(context.Cause(s.ctx), &e)
	return e
}

// end ends the session for good. Its grants are lost, whatever etcd says from
// now on: a lease that comes back would revive handles that were told "lost".
// So the lease must not live on either, or it would hold its locks for nobody:
// renewal stops at once, and the lease is revoked until etcd confirms it.
func (s *session) end(reason LostReason) {
	c := s.c
	c.mu.Lock()
	if s.ctx.Err() != nil {
		c.mu.Unlock()
		return
	}
	// First of all, and together with the end: whoever is told of that finds nothing
	// to start any more, and no late proof opens it again.
	s.mu.Lock()
	s.drainLocked()
	s.cancel(&sessionOver{reason})
	s.mu.Unlock()
	if c.current == s {
		c.current = nil
		if reason == LostUnproven || reason == LostExpired {
			// Not an act of anybody's, so etcd may still be out of reach.
			c.trouble = fmt.Errorf("lease %s was given up: %s", leaseHex(s.lease), reason)
		}
	}
	if s.unhook != nil {
		s.unhook()
	}
	var lost []*LostError
	for _, e := range s.entries {
		lost = append(lost, c.loseLocked(e, reason)...)
	}
	if !c.spawnLocked(s.bury) {
		c.orphans++
		close(s.buried)
	}
	c.mu.Unlock()
	level := slog.LevelWarn
	if reason == LostClosed {
		level = slog.LevelInfo
	}
	c.log.Log(c.base, level, "session over", "lease", leaseHex(s.lease), "reason", string(reason))
	c.reportLost(lost)
	c.opts.Hooks.sessionEnd(s, reason)
}

// readNews reads the session key and what was said of evictions since a revision,
// and returns up to which it has. That costs the same however many locks there
// are, so that an eviction is noticed as soon with many as with few.
func (s *session) readNews(bound time.Duration, since int64) int64 {
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	resp, err := s.c.read(ctx,
		clientv3.OpGet(s.key, clientv3.WithKeysOnly()),
		clientv3.OpGet(s.key+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(since+1)),
	)
	if err != nil {
		return since // the next proof is soon
	}
	if createRevision(resp.Responses[0].GetResponseRange().Kvs) != s.create {
		s.keyGone()
		return since
	}
	news := resp.Responses[1].GetResponseRange().Kvs
	if len(news) == 0 {
		return resp.Header.Revision
	}
	evicted := make(map[string]bool, len(news))
	for _, kv := range news {
		evicted[leaf(string(kv.Key))] = true
	}
	var entries []*entry
	s.c.mu.Lock()
	for key, e := range s.entries {
		if e.create != 0 && evicted[leaf(key)] {
			entries = append(entries, e)
		}
	}
	s.c.mu.Unlock()
	for _, e := range entries {
		if err := s.loseMissing(ctx, e); err != nil {
			return since
		}
	}
	return resp.Header.Revision
}

// keyGone ends the session because its key is not there any more. Mostly it went
// with the lease; if that is there, somebody deleted it. Its holders should know
// which, but not wait for it.
func (s *session) keyGone() {
	ctx, cancel := context.WithTimeout(s.ctx, margin(s.ttl)/2)
	defer cancel()
	if left, err := s.c.lessor.TimeToLive(ctx, s.lease); err == nil && left.TTL < 0 {
		s.leaseGone()
		return
	}
	s.end(LostKeyDeleted)
}

// leaseGone ends the session because etcd does not know its lease.
func (s *session) leaseGone() {
	if s.trustedFor() > 0 {
		s.end(LostRevoked)
	} else {
		s.end(LostExpired)
	}
}

// bury sees to it that the lease ends. Step B1: while it is renewed, locks stay
// taken by a session that holds none.
func (s *session) bury() {
	defer close(s.buried)
	if s.inner != nil {
		s.inner.Orphan()
	}
	s.c.bury(s.lease, s.ttl, func() { s.ended = true })
}

// open begins a session.
func (c *Coordinator) open(ctx context.Context) (*session, error) {
	epoch, err := c.readEpoch(ctx)
	if err != nil {
		return nil, err
	}
	lease, ttl, sent, err := c.lease(ctx)
	if err != nil {
		return nil, fmt.Errorf("grant a lease: %w", err)
	}
	if ttl != c.opts.TTL {
		c.log.Warn("etcd granted another TTL than was asked for", "asked", c.opts.TTL, "granted", ttl)
	}
	s := &session{
		c: c, lease: lease, ttl: ttl, epoch: epoch.record.Epoch,
		key:    c.keys.session(lease),
		value:  encode(sessionRecord{Format: format, Identity: c.opts.Identity, Since: time.Now()}),
		buried: make(chan struct{}),
		proof:  sent,
		ticked: make(chan struct{}), draining: make(chan struct{}),
		entries: make(map[string]*entry),
		used:    make(map[uint64]struct{}),
	}
	s.settling.s, s.settling.more = s, make(chan struct{}, 1)
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(c.base))
	s.inner, err = newInner(s.ctx, c.client, s.lease)
	if err != nil {
		s.abandon()
		return nil, fmt.Errorf("keep lease %s alive: %w", leaseHex(s.lease), err)
	}
	if err := s.enrol(ctx, epoch.mod); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// newInner starts etcd's own session on the lease. Its context is the
// session's: one that ended earlier would silently stop the renewal.
func newInner(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (*concurrency.Session, error) {
	inner, err := concurrency.NewSession(client, concurrency.WithLease(lease), concurrency.WithContext(ctx))
	if err == nil && inner == nil {
		err = errors.New("the client has stopped renewing leases")
	}
	return inner, err
}

// enrol creates the session key. Step E1: only under the epoch that was read.
// A session that came into being while a recovery raised the epoch would issue
// tokens of the old epoch after it.
func (s *session) enrol(ctx context.Context, epochMod int64) error {
	resp, err := s.c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(s.c.keys.epoch()), "=", epochMod),
			clientv3.Compare(clientv3.CreateRevision(s.key), "=", 0)).
		Then(clientv3.OpPut(s.key, s.value, clientv3.WithLease(s.lease))).
		Else(clientv3.OpGet(s.c.keys.epoch())).
		Commit()
	if err != nil {
		return fmt.Errorf("create the session key: %w", err)
	}
	if !resp.Succeeded {
		return errEpochMoved
	}
	s.create, s.mod = resp.Header.Revision, resp.Header.Revision
	return nil
}

// errEpochMoved: the epoch record changed between two steps of opening a
// session. Opening starts again.
var errEpochMoved = errors.New("the epoch record changed meanwhile")

// abandon gives up a session that never began.
func (s *session) abandon() {
	s.cancel(&sessionOver{LostClosed})
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.spawnLocked(s.bury)
}
