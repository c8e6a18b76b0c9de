package coordinator

import (
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Health is how a coordinator is doing, from what it knows without asking.
type Health struct {
	// Lease is the session's lease, 0 while there is none: nothing has been
	// asked for yet, or a session ended and nobody has needed another.
	Lease clientv3.LeaseID
	// TTL is as etcd granted it.
	TTL time.Duration
	// TrustedFor is how long the session may be relied on without a further
	// proof.
	TrustedFor time.Duration
	// ProofAge is how long ago the last proof that succeeded was sent. It is
	// less than a third of the TTL while all is well.
	ProofAge time.Duration
	// Held counts the grants held now, Waiting the goroutines that wait,
	// Releasing the releases that etcd has not answered.
	Held, Waiting, Releasing int
	// Closed tells that Close was called.
	Closed bool
	// Err is nil while all is well: for a health endpoint. It tells that the
	// lease has not been proven for so long that grants are draining; that it ran
	// out, or that none could be had, and none was since (one is asked for by the
	// next acquire, or by Ping); that one was asked for more than a second ago, and
	// etcd has not answered; that the coordinator is closed. It is nil while nothing
	// was asked for yet: call Ping before an endpoint that says "ready" does.
	Err error
}

// Health reports how the coordinator is doing. It does no I/O; see
// [Coordinator.Ping] for a question to etcd.
func (c *Coordinator) Health() Health {
	c.mu.Lock()
	h := Health{Closed: c.closed, Held: int(c.counts.held.Load()), Waiting: int(c.counts.waiting.Load()), Releasing: int(c.counts.releasing.Load())}
	s := c.current
	trouble := c.trouble
	if o := c.opening; o != nil && trouble == nil {
		if asked := c.now().since(o.start); asked > slowAcquire {
			trouble = fmt.Errorf("open a session at etcd: %w for %v", ErrNoAnswer, asked.Round(time.Millisecond))
		}
	}
	c.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		proof := s.proof
		s.mu.Unlock()
		h.Lease, h.TTL, h.TrustedFor, h.ProofAge = s.lease, s.ttl, s.trustedFor(), c.now().since(proof)
	}
	switch {
	case h.Closed:
		h.Err = ErrClosed
	case s != nil && h.TrustedFor < c.opts.DrainMargin:
		h.Err = fmt.Errorf("lease %s has not been proven alive for %v", leaseHex(h.Lease), h.ProofAge)
	case s == nil && trouble != nil:
		h.Err = trouble
	}
	return h
}
