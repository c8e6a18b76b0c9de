package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// depart deletes the lock key: its grant was released, or nobody wants it. What
// etcd refuses is tried on and on, since the reason may be mended; but if it is
// of a kind that mostly lasts, the releaser is told after a while.
func (q *queue) depart(e *entry) {
	s := e.s
	start := q.c.now()
	for pause := newPause(); s.over() == nil && !e.isLost(); e.pauseWhileThere(pause) {
		ctx, cancel := context.WithTimeout(s.ctx, q.c.callTimeout)
		present, err := e.leave(ctx)
		cancel()
		switch {
		case err == nil:
			if present || e.asked {
				q.left(e, nil)
			} else {
				q.tookAway(e)
			}
			return
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.leaseGone()
			return
		case !etcdonce.Definite(err):
			e.asked = true
		}
		q.c.log.Debug("lock key not deleted yet", "key", e.key, "error", err)
		if s.over() == nil {
			e.troubled(err, incurable(err) && q.c.now().since(start) > min(refusedTTLs*s.ttl, refusedAtMost))
		}
	}
}

// pauseWhileThere pauses, unless the key is found to be gone meanwhile.
func (e *entry) pauseWhileThere(pause pause) {
	gone := e.gone
	if e.isLost() {
		gone = nil // that is no news
	}
	pause.waitUnless(e.s.ctx, gone)
}

// refusedAtMost is how long a release waits at most that etcd refuses.
const refusedAtMost = 30 * time.Second

// troubled remembers why the key could not be deleted, for those who wait for it
// and will not wait for ever; refused tells them that it is not worth it.
func (e *entry) troubled(err error, refused bool) {
	c := e.q.c
	c.mu.Lock()
	e.trouble = err
	g := e.grant
	first := g != nil && refused && !g.refusedOnce
	if first {
		g.refusedOnce = true
		close(g.refused)
	}
	c.mu.Unlock()
	if first { // without the lock: see reportLost
		c.log.Warn("lock not released: etcd refuses it", "token", g.token.String(), "error", err)
	}
}

// finishLost ends a departure that the loss of the key, or the end of the
// session, has overtaken.
func (e *entry) finishLost() {
	c, g := e.q.c, e.grant
	if g == nil || !g.leaving {
		return
	}
	over := e.s.over()
	if over == nil || (over.reason != LostUnproven && over.reason != LostClosed) {
		// etcd has said that the key, the session key or the lease is gone.
		if e.asked {
			g.finish(nil)
		} else {
			g.finish(notReleased(g, e.lost, e.detail))
		}
		return
	}
	// The key goes with the lease, which is being revoked.
	c.mu.Lock()
	defer c.mu.Unlock()
	unsettled := fmt.Errorf("release %s: %w: etcd has not confirmed that lease %s is revoked", g.token, ErrUnsettled, leaseHex(e.s.lease))
	if !c.spawnLocked(func() {
		<-e.s.buried
		if c.base.Err() == nil {
			unsettled = nil
		}
		g.finish(unsettled)
	}) {
		g.finish(unsettled)
	}
}

// left ends a departure by which the lock was given up: next is the entry that
// took the old one's place, if any.
func (q *queue) left(e, next *entry) { q.leftWith(e, next, nil) }

// tookAway ends a departure that found no key to delete. Who is told that his lock
// was not there any more wants to know why: an eviction leaves word.
func (q *queue) tookAway(e *entry) {
	var notHeld error
	if e.grant != nil {
		reason, detail, err := e.s.missing(e.s.ctx, e.key, e.create)
		if err != nil || reason == "" {
			// The session is over as well, or etcd is silent again. What is certain
			// is told.
			reason, detail = LostKeyDeleted, ""
		}
		notHeld = notReleased(e.grant, reason, detail)
	}
	q.leftWith(e, nil, notHeld)
}

func (q *queue) leftWith(e, next *entry, outcome error) {
	q.c.mu.Lock()
	delete(e.s.entries, e.key)
	q.entry = next
	g := e.grant
	q.c.mu.Unlock()
	if g != nil {
		g.finish(outcome)
	}
}

// notReleased is what a releaser is told whose key was gone already.
func notReleased(g *hold, reason LostReason, detail string) error {
	lost := &LostError{Token: g.token, Reason: reason, Detail: detail, At: time.Now()}
	return fmt.Errorf("release %s: %w: %w", g.token, ErrNotHeld, lost)
}
