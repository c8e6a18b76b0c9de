package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Grant is one tenure of one lock. It is safe for use by several goroutines.
//
// A grant that was lost or released stays so: no renewal, reconnect or later
// grant revives it.
type Grant struct {
	entry  *entry
	token  revisionfence.Token
	ctx    context.Context
	cancel context.CancelCauseFunc

	leaving bool // guarded by Coordinator.mu: Release was called
	left    chan struct{}
	leftErr error // of the release; set before left is closed
}

var _ revisionfence.Source = (*Grant)(nil)

// newGrant makes the handle of an entry that owns its lock. Its context keeps
// the values of the caller's, but does not end with it: a caller whose deadline
// passed still holds the lock, and must be able to tell.
func newGrant(caller context.Context, e *entry, token revisionfence.Token) *Grant {
	g := &Grant{entry: e, token: token, left: make(chan struct{})}
	ctx := context.WithoutCancel(caller)
	ctx = context.WithValue(ctx, heldKey{}, &held{grant: g, outer: heldIn(ctx)})
	g.ctx, g.cancel = context.WithCancelCause(revisionfence.NewContext(ctx, token))
	return g
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
func (g *Grant) Fence() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(g.entry.key), "=", g.token.Revision())}
}

// Context returns a context that ends when the grant does, with the reason as
// its [context.Cause]: a *[LostError], or an [ErrNotHeld] after Release. It keeps
// the values of the context given to Acquire and carries the token, but does
// not end with it; see [Grant.Bind].
func (g *Grant) Context() context.Context {
	_ = g.Err() // an ended window must show at once, not at the next tick
	return g.ctx
}

// Bind returns a context that ends when ctx or the grant does, whichever is
// first, and that carries the token. Call cancel when it is no longer needed.
func (g *Grant) Bind(ctx context.Context) (bound context.Context, cancel context.CancelFunc) {
	ctx = context.WithValue(ctx, heldKey{}, &held{grant: g, outer: heldIn(ctx)})
	bound, end := context.WithCancelCause(revisionfence.NewContext(ctx, g.token))
	if err := g.Err(); err != nil {
		end(err) // now, where AfterFunc would do it soon
	}
	stop := context.AfterFunc(g.ctx, func() { end(context.Cause(g.ctx)) })
	return bound, func() {
		stop()
		end(context.Canceled)
	}
}

// Err returns nil while the grant may be relied on: it was not released, nothing
// is known to have ended it, and the trust window is open by the clock now.
// Otherwise it returns the cause with which [Grant.Context] ended.
//
// A nil is about this moment. It proves nothing about the moment at which a
// write arrives somewhere; that is what the token and a guard are for.
func (g *Grant) Err() error {
	if g.ctx.Err() == nil && !g.entry.s.trusted() {
		// The session is over. Whoever ended it holds the lock until its grants
		// have ended too: not a moment in between may look like "all is well".
		c := g.entry.q.c
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	return context.Cause(g.ctx)
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

// Release gives the lock up. The grant's context ends at once, whatever becomes
// of the request; so finish the work first. A late Release, after the lock was
// lost, changes nothing, and says so with [ErrNotHeld].
//
// If ctx ends before etcd has answered, Release goes on for
// [Options.CleanupTimeout], then returns an error that is [ErrUnsettled], and
// the release goes on in the background. Calling it again waits for, and
// returns, the outcome of the first call.
func (g *Grant) Release(ctx context.Context) error {
	c := g.entry.q.c
	var lost *LostError
	errors.As(g.Err(), &lost)
	// A grant that ended because the coordinator is being closed still has its
	// key, which need not wait for the last of the others.
	c.mu.Lock()
	if held := lost == nil || lost.Reason == LostClosed; held && !g.leaving && g.entry.lost == "" {
		g.leaving = true
		g.cancel(errReleased)
		g.entry.q.startLocked()
	}
	leaving := g.leaving
	c.mu.Unlock()
	if !leaving {
		return fmt.Errorf("release %s: %w: %w", g.token, ErrNotHeld, g.Err())
	}

	select {
	case <-g.left:
		return g.leftErr
	case <-ctx.Done():
	}
	grace := time.NewTimer(c.opts.CleanupTimeout)
	defer grace.Stop()
	select {
	case <-g.left:
		return g.leftErr
	case <-grace.C:
		return fmt.Errorf("release %s: %w: %w", g.token, ErrUnsettled, endOf(ctx))
	}
}

// finish ends a release.
func (g *Grant) finish(err error) {
	g.leftErr = err
	close(g.left)
}

// loseLocked ends the grant, unless it has ended.
func (g *Grant) loseLocked(reason LostReason) []*LostError {
	if g.ctx.Err() != nil {
		return nil
	}
	lost := &LostError{Token: g.token, Reason: reason, At: time.Now()}
	g.cancel(lost)
	return []*LostError{lost}
}

// held is a chain of the grants that a context works under.
type held struct {
	grant *Grant
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
		if q := h.grant.entry.q; q.c == c && q.directory == directory && h.grant.Err() == nil {
			return true
		}
	}
	return false
}
