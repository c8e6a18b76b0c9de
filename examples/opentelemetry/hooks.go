// Package opentelemetry turns what a coordinator does into OpenTelemetry spans. It
// is an example to copy from, and a module of its own so that nothing else needs
// OpenTelemetry.
//
//	c, err := coordinator.New(client, &coordinator.Options{
//		Hooks: opentelemetry.Hooks(otel.Tracer("my-service")),
//	})
//
// A tenure is one span, from the wish for the lock to its end, in the trace of
// whoever wished:
//
//	etcd_fence.tenure             events: waiting, held or busy, lost or released
//	    etcd_fence.acquire        until the lock is held and the barriers have run
//	    ...                       what is done under Grant.Context, or Under
//
// A session has a span too, etcd_fence.session, in a trace of its own. The token is
// an attribute of what happens under it, as a text: as a number it would lose its
// last digits in whatever reads JSON. It is for finding out afterwards who wrote
// what. It protects nothing: a guard does.
package opentelemetry

import (
	"context"
	"errors"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Names of attributes. The names of spans have none of a lock in them: there can be
// too many.
const (
	lockKey     = attribute.Key("etcd_fence.lock")
	tokenKey    = attribute.Key("etcd_fence.token")
	reasonKey   = attribute.Key("etcd_fence.reason")
	holderKey   = attribute.Key("etcd_fence.holder")
	waitedKey   = attribute.Key("etcd_fence.waited_seconds")
	settledKey  = attribute.Key("etcd_fence.settled")
	leaseKey    = attribute.Key("etcd_fence.lease")
	tryKey      = attribute.Key("etcd_fence.try")
	lostBecause = attribute.Key("etcd_fence.lost.reason")
)

// Hooks returns hooks that make spans with the tracer. Each coordinator needs hooks
// of its own: the tokens of two clusters can be equal.
func Hooks(tracer trace.Tracer) coordinator.Hooks {
	r := &recorder{
		tracer:   tracer,
		tenures:  make(map[revisionfence.Token]trace.Span),
		early:    make(map[revisionfence.Token]*coordinator.LostError),
		sessions: make(map[clientv3.LeaseID]trace.Span),
	}
	return coordinator.Hooks{
		AcquireStart: r.acquireStart, AcquireEnd: r.acquireEnd, ReleaseEnd: r.releaseEnd, Lost: r.lost,
		SessionStart: r.sessionStart, SessionEnd: r.sessionEnd,
	}
}

// Under returns ctx with the span of the grant's tenure, for what is done under the
// grant with a context that is not of the grant's making: the one that
// coordinator.Do and Lead give to their functions is of the caller's.
func Under(ctx context.Context, g *coordinator.Grant) context.Context {
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(g.Context()))
}

// recorder has the spans that have begun and not ended. The hooks come from many
// goroutines, and from others than those that the spans began in.
type recorder struct {
	tracer trace.Tracer

	mu        sync.Mutex
	acquiring int // acquires that have not ended
	tenures   map[revisionfence.Token]trace.Span
	early     map[revisionfence.Token]*coordinator.LostError // of grants whose acquire has not ended
	sessions  map[clientv3.LeaseID]trace.Span
}

// acquireKey is under which the span of an acquire travels, below that of the
// tenure.
type acquireKey struct{}

func (r *recorder) acquireStart(ctx context.Context, start coordinator.AcquireStart) context.Context {
	r.mu.Lock()
	r.acquiring++
	r.mu.Unlock()
	attributes := []attribute.KeyValue{lockKey.String(start.Lock), tryKey.Bool(start.Try)}
	if start.Reason != "" {
		attributes = append(attributes, reasonKey.String(start.Reason))
	}
	ctx, tenure := r.tracer.Start(ctx, "etcd_fence.tenure", trace.WithAttributes(attributes...))
	tenure.AddEvent("waiting")
	// The tenure's is the present span of the context that goes on from here: what
	// is done under the lock comes below it, and not below the acquire.
	_, acquire := r.tracer.Start(ctx, "etcd_fence.acquire", trace.WithAttributes(attributes...))
	return context.WithValue(ctx, acquireKey{}, acquire)
}

func (r *recorder) acquireEnd(ctx context.Context, end coordinator.AcquireEnd) {
	tenure := trace.SpanFromContext(ctx)
	acquire, ok := ctx.Value(acquireKey{}).(trace.Span)
	if !ok {
		return // not begun by these hooks
	}
	acquire.SetAttributes(waitedKey.Float64(end.Waited.Seconds()))
	r.mu.Lock()
	lost := r.early[end.Token]
	if r.acquiring--; r.acquiring == 0 {
		clear(r.early) // the rest is of barriers that failed
	}
	held := end.Err == nil && lost == nil
	if held {
		r.tenures[end.Token] = tenure
	}
	r.mu.Unlock()

	if end.Err != nil {
		failed(tenure, end.Err)
		failed(acquire, end.Err)
		acquire.End()
		tenure.End()
		return
	}
	token := tokenKey.String(end.Token.String())
	acquire.SetAttributes(token)
	acquire.End()
	tenure.SetAttributes(token)
	tenure.AddEvent("held", trace.WithAttributes(token))
	if lost != nil {
		endLost(tenure, lost)
	}
}

// failed says why there is no tenure. That somebody else has the lock is an answer
// and no failure.
func failed(span trace.Span, err error) {
	if busy, ok := errors.AsType[*coordinator.BusyError](err); ok {
		span.AddEvent("busy", trace.WithAttributes(holderKey.String(busy.Holder.String())))
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// take returns the span of a tenure for the one who ends it.
func (r *recorder) take(t revisionfence.Token, otherwise func()) (trace.Span, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span, ok := r.tenures[t]
	delete(r.tenures, t)
	if !ok {
		otherwise()
	}
	return span, ok
}

func (r *recorder) releaseEnd(_ context.Context, end coordinator.ReleaseEnd) {
	// A grant that was lost has ended already, and its release says so.
	span, ok := r.take(end.Token, func() {})
	if !ok {
		return
	}
	span.AddEvent("released", trace.WithAttributes(settledKey.Bool(end.Err == nil)))
	if end.Err != nil {
		span.RecordError(end.Err)
	}
	span.End()
}

func (r *recorder) lost(lost *coordinator.LostError) {
	span, ok := r.take(lost.Token, func() {
		if r.acquiring > 0 {
			r.early[lost.Token] = lost
		}
	})
	if ok {
		endLost(span, lost)
	}
}

func endLost(span trace.Span, lost *coordinator.LostError) {
	span.AddEvent("lost", trace.WithAttributes(
		lostBecause.String(string(lost.Reason)), tokenKey.String(lost.Token.String())))
	span.SetStatus(codes.Error, lost.Error())
	span.End()
}

func (r *recorder) sessionStart(s coordinator.SessionInfo) {
	_, span := r.tracer.Start(context.Background(), "etcd_fence.session",
		trace.WithNewRoot(), trace.WithAttributes(leaseKey.String(strconv.FormatInt(int64(s.Lease), 16))))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[s.Lease] = span
}

func (r *recorder) sessionEnd(s coordinator.SessionInfo, reason coordinator.LostReason) {
	r.mu.Lock()
	span, ok := r.sessions[s.Lease]
	delete(r.sessions, s.Lease)
	r.mu.Unlock()
	if !ok {
		return
	}
	span.AddEvent("ended", trace.WithAttributes(reasonKey.String(string(reason))))
	span.End()
}
