package coordinator

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Hooks are functions that the coordinator calls when something happens, enough
// to trace it. Each may be nil. They are called in the goroutine in which it
// happens and must not block, nor call the coordinator back; what they do for
// longer belongs into a goroutine of their own.
type Hooks struct {
	// AcquireStart is called when an acquire begins, for each lock of AcquireAll
	// before any of them is taken. The context that it returns, which must be
	// derived from ctx, takes its place: it bounds the waiting, AcquireEnd and the
	// barriers get it, and the grant keeps its values.
	AcquireStart func(ctx context.Context, start AcquireStart) context.Context
	// AcquireEnd is called when it ends, after the barriers, with a grant or an
	// error.
	AcquireEnd func(ctx context.Context, end AcquireEnd)
	// ReleaseEnd is called when a Release ends, of Do and of Grants also.
	ReleaseEnd func(ctx context.Context, end ReleaseEnd)
	// Lost is called when a grant is lost: by another goroutine than that of its
	// AcquireEnd, and so perhaps before it. A Release that comes later still ends
	// with a ReleaseEnd.
	Lost func(lost *LostError)
	// SessionStart and SessionEnd are called when a session begins and ends.
	SessionStart func(session SessionInfo)
	SessionEnd   func(session SessionInfo, reason LostReason)
}

// AcquireStart is what [Hooks.AcquireStart] is told. Fields may be added.
type AcquireStart struct {
	Lock   string
	Reason string
	Try    bool
}

// AcquireEnd is what [Hooks.AcquireEnd] is told. Fields may be added.
type AcquireEnd struct {
	Lock   string
	Token  revisionfence.Token // zero with an error
	Waited time.Duration       // for the lock, without the barriers
	Err    error
}

// ReleaseEnd is what [Hooks.ReleaseEnd] is told. Fields may be added.
type ReleaseEnd struct {
	Token revisionfence.Token
	Err   error
}

// SessionInfo describes a session. Fields may be added.
type SessionInfo struct {
	Lease clientv3.LeaseID
	TTL   time.Duration
	Epoch uint16
}

func (h *Hooks) acquireStart(ctx context.Context, start AcquireStart) context.Context {
	if h.AcquireStart == nil {
		return ctx
	}
	if own := h.AcquireStart(ctx, start); own != nil {
		return own
	}
	return ctx
}

func (h *Hooks) acquireEnd(ctx context.Context, end AcquireEnd) {
	if h.AcquireEnd != nil {
		h.AcquireEnd(ctx, end)
	}
}

func (h *Hooks) releaseEnd(ctx context.Context, end ReleaseEnd) {
	if h.ReleaseEnd != nil {
		h.ReleaseEnd(ctx, end)
	}
}

func (h *Hooks) lost(lost *LostError) {
	if h.Lost != nil {
		h.Lost(lost)
	}
}

func (h *Hooks) sessionStart(s *session) {
	if h.SessionStart != nil {
		h.SessionStart(s.info())
	}
}

func (h *Hooks) sessionEnd(s *session, reason LostReason) {
	if h.SessionEnd != nil {
		h.SessionEnd(s.info(), reason)
	}
}

func (s *session) info() SessionInfo {
	return SessionInfo{Lease: s.lease, TTL: s.ttl, Epoch: s.epoch}
}
