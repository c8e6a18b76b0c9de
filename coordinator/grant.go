package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Grant is one tenure of one lock. It is safe for use by several goroutines.
//
// A grant that was lost or released stays so: no renewal, reconnect or later
// grant revives it.
//
// Keep the Grant, or a context of it, for as long as the lock is needed; a channel
// that was taken from it, such as that of its context, is not enough. A Grant that
// became garbage without a Release is released and reported: the session is
// shared, and would otherwise keep the lock for as long as the process lives.
type Grant struct {
	*hold
	outer context.Context // what Context returns: keeps the Grant from being garbage
}

var _ revisionfence.Source = (*Grant)(nil)

// hold is what the coordinator keeps of a grant. It does not lead back to the
// Grant, so that a forgotten one can be noticed.
type hold struct {
	entry  *entry
	token  revisionfence.Token
	ctx    context.Context
	cancel context.CancelCauseFunc

	leaving bool // guarded by Coordinator.mu: the lock is being given up
	left    chan struct{}
	leftErr error // of the release; set before left is closed
	// refused is closed, once, when etcd has refused the release for too long.
	refused     chan struct{}
	refusedOnce bool // guarded by Coordinator.mu

	limit *time.Timer // of MaxHold, if any

	// siblings are all the grants that AcquireAll returned with this one. Their
	// holder is one, whichever's context it works under.
	siblings atomic.Pointer[[]*hold]

	// writing is held, by a send, by whoever writes the lock key's value.
	writing  chan struct{}
	mod      int64 // mod revision of the lock key; belongs to the writer
	outdated bool  // the value is not yet what entry.record says; likewise
}

// keepKey is under which the contexts of a grant that a user holds refer to it,
// so that it is not forgotten as long as they are not.
type keepKey struct{}

// newGrant makes the handle of an entry that owns its lock. Its context keeps
// the values of the caller's, but does not end with it: a caller whose deadline
// passed still holds the lock, and must be able to tell.
func newGrant(e *entry, token revisionfence.Token, w *waiter) *Grant {
	h := &hold{entry: e, token: token, left: make(chan struct{}), refused: make(chan struct{}), writing: make(chan struct{}, 1), mod: token.Revision()}
	ctx := context.WithoutCancel(w.ctx)
	ctx = context.WithValue(ctx, heldKey{}, &held{grant: h, outer: w.outer})
	h.ctx, h.cancel = context.WithCancelCause(revisionfence.NewContext(ctx, token))
	if w.maxHold > 0 {
		h.limit = time.AfterFunc(w.maxHold, func() { h.giveUp(LostHeldTooLong) })
	}
	e.q.c.counts.held.Add(1)
	e.q.c.metrics.granted.Inc()
	g := &Grant{hold: h}
	g.outer = context.WithValue(h.ctx, keepKey{}, g)
	runtime.AddCleanup(g, func(h *hold) { h.giveUp(LostForgotten) }, h)
	return g
}

// giveUp ends a grant in its holder's place, and lets the lock pass on.
func (h *hold) giveUp(reason LostReason) {
	c := h.entry.q.c
	c.mu.Lock()
	var lost []*LostError
	if !h.leaving {
		if lost = h.loseLocked(reason); lost != nil && h.entry.lost == "" {
			h.leaveLocked()
		}
	}
	c.mu.Unlock()
	c.reportLost(lost)
}

// Token returns the fencing token. It is fixed for the life of the handle, and
// stays what it was after the grant has ended.
func (g *Grant) Token() revisionfence.Token { return g.token }

// Lock returns the name of the lock.
func (g *Grant) Lock() string { return g.token.Lock() }

// Key returns the lock key in etcd, whose create revision is the token.
func (g *Grant) Key() string { return g.entry.key }

// Owner returns the last segment of the lock key. No other grant of any
// cluster at any time has the same, so a guard can tell two holders apart even
// if their tokens are equal, which only a restore of etcd can bring about.
func (g *Grant) Owner() string { return leaf(g.entry.key) }

// Lease returns the lease that the lock key is attached to. Other grants of the
// same coordinator share it.
func (g *Grant) Lease() clientv3.LeaseID { return g.entry.s.lease }

// TTL returns the time to live that etcd granted, which may be longer than
// [Options.TTL] asked for.
func (g *Grant) TTL() time.Duration { return g.entry.s.ttl }

// Fence returns the compares that are true in etcd for exactly as long as this
// grant's lock key exists. Put them into every transaction that must not happen
// after the lock has passed on. It is the guard for data in the same etcd; the
// etcdguard package does it for a whole clientv3.KV.
func (g *Grant) Fence() []clientv3.Cmp { return []clientv3.Cmp{g.fence()} }

func (h *hold) fence() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.entry.key), "=", h.token.Revision())
}

// Context returns a context that ends when the grant does, with the reason as
// its [context.Cause]: a *[LostError], or an [ErrNotHeld] after Release. It keeps
// the values of the context given to Acquire and carries the token, but does
// not end with it; see [Grant.Bind].
func (g *Grant) Context() context.Context {
	_ = g.Err() // an ended window must show at once, not at the next tick
	return g.outer
}

// Bind returns a context that ends when ctx or the grant does, whichever is
// first, and that carries the token. Call cancel when it is no longer needed.
func (g *Grant) Bind(ctx context.Context) (bound context.Context, cancel context.CancelFunc) {
	ctx, cancel = g.hold.bind(ctx)
	return context.WithValue(ctx, keepKey{}, g), cancel
}

// bind is Bind with a context that does not keep the Grant: the hold remembers
// that context, and the coordinator keeps the hold.
func (h *hold) bind(ctx context.Context) (bound context.Context, cancel context.CancelFunc) {
	ctx = context.WithValue(ctx, heldKey{}, &held{grant: h, outer: heldIn(ctx)})
	bound, end := context.WithCancelCause(revisionfence.NewContext(ctx, h.token))
	if err := h.err(); err != nil {
		end(err) // now, where AfterFunc would do it soon
	}
	stop := h.onEnd(end)
	return bound, func() {
		stop()
		end(context.Canceled)
	}
}

// onEnd calls end with the cause when the grant ends.
func (h *hold) onEnd(end context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(h.ctx, func() { end(context.Cause(h.ctx)) })
}

// Err returns nil while the grant may be relied on: it was not released, nothing
// is known to have ended it, and the trust window is open by the clock now.
// Otherwise it returns the cause with which [Grant.Context] ended.
//
// A nil is about this moment. It proves nothing about the moment at which a
// write arrives somewhere; that is what the token and a guard are for.
func (g *Grant) Err() error { return g.hold.err() }

func (h *hold) err() error {
	if h.ctx.Err() == nil && !h.entry.s.trusted() {
		// The session is over. Whoever ended it holds the lock until its grants
		// have ended too: not a moment in between may look like "all is well".
		c := h.entry.q.c
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	return context.Cause(h.ctx)
}

// TrustedFor returns how long the grant may be relied on from now on if nothing
// further is heard from etcd; 0 once it has ended. It counts the time that the
// machine was asleep. It is a hint: an operator can end the lease sooner.
func (g *Grant) TrustedFor() time.Duration {
	if g.Err() != nil {
		return 0
	}
	return g.entry.s.trustedFor()
}

// Draining returns a channel that is closed when the lease has not been proven
// alive for a while, so that less than [Options.DrainMargin] of trusted time is
// left: finish what runs, start nothing new. The grant may recover; ask again
// then. It is closed too once the session has ended.
func (g *Grant) Draining() <-chan struct{} {
	s := g.entry.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// Release gives the lock up. The grant's context ends at once, whatever becomes
// of the request; so finish the work first. A late Release, after the lock was
// lost, changes nothing, and says so with [ErrNotHeld].
//
// If ctx ends before etcd has answered, Release goes on for
// [Options.CleanupTimeout], then returns an error that is [ErrUnsettled], and
// the release goes on in the background. If etcd refuses it for a reason that
// mostly lasts, such as a missing permission, Release returns that after three
// TTLs or half a minute, also as an [ErrUnsettled]: the lock is not free while
// the process lives, unless the reason is mended or the coordinator is closed.
// The error has what etcd said last. Calling it again waits for, and returns, the
// outcome of the first call.
func (g *Grant) Release(ctx context.Context) error {
	c := g.entry.q.c
	err := g.beginRelease()
	if err == nil {
		grace, cancel := graceful(ctx, c.opts.CleanupTimeout)
		defer cancel()
		err = g.awaitRelease(ctx, grace)
	}
	c.opts.Hooks.releaseEnd(ctx, ReleaseEnd{Token: g.token, Err: err})
	return err
}

// beginRelease ends the grant and lets the driver delete its key. It fails if
// the grant was lost.
func (g *Grant) beginRelease() error {
	c := g.entry.q.c
	var lost *LostError
	errors.As(g.Err(), &lost)
	// A grant that ended because the coordinator is being closed still has its
	// key, which need not wait for the last of the others.
	c.mu.Lock()
	if held := lost == nil || lost.Reason == LostClosed; held && !g.leaving && g.entry.lost == "" {
		g.endLocked(errReleased)
		g.leaveLocked()
	}
	leaving := g.leaving && (lost == nil || lost.Reason == LostClosed)
	gone := lost == nil || lost.Reason != LostClosed || g.entry.s.ended
	c.mu.Unlock()
	if !leaving && !gone {
		return fmt.Errorf("release %s: %w: lease %s is not confirmed to be revoked; it ends within its time to live: %w", g.token, ErrUnsettled, leaseHex(g.entry.s.lease), lost)
	}
	if !leaving {
		return fmt.Errorf("release %s: %w: %w", g.token, ErrNotHeld, g.Err())
	}
	return nil
}

// awaitRelease waits for the outcome until grace ends, a while after ctx, or etcd
// has refused it for too long.
func (g *Grant) awaitRelease(ctx, grace context.Context) error {
	select {
	case <-g.left:
		return g.leftErr
	default:
	}
	var why error
	select {
	case <-g.left:
		return g.leftErr
	case <-g.refused:
		why = errors.New("etcd refuses it; it is tried on in the background until the session ends")
	case <-grace.Done():
		why = endOf(ctx)
	}
	c := g.entry.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.entry.trouble != nil {
		why = fmt.Errorf("%w: %w", why, g.entry.trouble)
	}
	return fmt.Errorf("release %s: %w: %w", g.token, ErrUnsettled, why)
}

// leaveLocked lets the driver give the lock up.
func (h *hold) leaveLocked() {
	h.leaving = true
	h.entry.q.c.counts.releasing.Add(1)
	h.entry.q.startLocked()
}

// finish ends a release.
func (h *hold) finish(err error) {
	h.entry.q.c.counts.releasing.Add(-1)
	h.leftErr = err
	close(h.left)
}

// endLocked ends the grant's context, unless it has ended.
func (h *hold) endLocked(cause error) bool {
	if h.ctx.Err() != nil {
		return false
	}
	h.cancel(cause)
	h.entry.q.c.counts.held.Add(-1)
	if h.limit != nil {
		h.limit.Stop()
	}
	return true
}

// loseLocked ends the grant with a loss, unless it has ended.
func (h *hold) loseLocked(reason LostReason) []*LostError {
	lost := &LostError{Token: h.token, Reason: reason, Detail: h.entry.detail, At: time.Now()}
	if !h.endLocked(lost) {
		return nil
	}
	return []*LostError{lost}
}

// held is a chain of the grants that a context works under.
type held struct {
	grant *hold
	outer *held
}

type heldKey struct{}

func heldIn(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// holds reports whether ctx works under a live grant of this lock.
func (c *Coordinator) holds(ctx context.Context, directory string) bool {
	for h := heldIn(ctx); h != nil; h = h.outer {
		grants := []*hold{h.grant}
		if all := h.grant.siblings.Load(); all != nil {
			grants = *all
		}
		for _, g := range grants {
			if q := g.entry.q; q.c == c && q.directory == directory && g.err() == nil {
				return true
			}
		}
	}
	return false
}
