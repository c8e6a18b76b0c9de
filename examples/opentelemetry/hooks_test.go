package opentelemetry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/examples/opentelemetry"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type setup struct {
	etcd  *embedded.Cluster
	c     *coordinator.Coordinator
	trace trace.Tracer
	spans *tracetest.InMemoryExporter
	ends  endings
}

// endings tells of each span that has ended and been exported.
type endings chan string

func (endings) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (e endings) OnEnd(s sdktrace.ReadOnlySpan)                 { e <- s.Name() }
func (endings) Shutdown(context.Context) error                  { return nil }
func (endings) ForceFlush(context.Context) error                { return nil }

// await waits for spans to end, in any order.
func (e endings) await(t *testing.T, names ...string) {
	t.Helper()
	ctx := soon(t)
	for len(names) > 0 {
		select {
		case name := <-e:
			names = slices.DeleteFunc(names, func(other string) bool { return other == name })
		case <-ctx.Done():
			t.Fatalf("the spans %v do not end", names)
		}
	}
}

func start(t *testing.T) *setup {
	t.Helper()
	s := &setup{etcd: embedded.Start(t, nil), spans: tracetest.NewInMemoryExporter(), ends: make(endings, 100)}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans), sdktrace.WithSpanProcessor(s.ends))
	s.trace = provider.Tracer("test")
	c, err := coordinator.New(s.etcd.Client(), &coordinator.Options{
		TTL: 3 * time.Second, Identity: "worker-1", Hooks: opentelemetry.Hooks(s.trace),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.c = c
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// ended returns the spans of a name that have ended.
func (s *setup) ended(name string) []tracetest.SpanStub {
	var spans []tracetest.SpanStub
	for _, span := range s.spans.GetSpans() {
		if span.Name == name {
			spans = append(spans, span)
		}
	}
	return spans
}

// only is ended where there must be one.
func (s *setup) only(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	spans := s.ended(name)
	if len(spans) != 1 {
		t.Fatalf("%d spans %s have ended, want 1: %v", len(spans), name, spans)
	}
	return spans[0]
}

func events(span tracetest.SpanStub) []string {
	var names []string
	for _, e := range span.Events {
		names = append(names, e.Name)
	}
	return names
}

// says checks for an attribute of a span or of one of its events.
func says(t *testing.T, span tracetest.SpanStub, event, key, want string) {
	t.Helper()
	attributes := span.Attributes
	if event != "" {
		i := slices.Index(events(span), event)
		if i < 0 {
			t.Errorf("%s has no event %s but %v", span.Name, event, events(span))
			return
		}
		attributes = span.Events[i].Attributes
	}
	for _, a := range attributes {
		if string(a.Key) == key {
			if got := a.Value.String(); got != want {
				t.Errorf("%s of %s %s is %q, want %q", key, span.Name, event, got, want)
			}
			return
		}
	}
	t.Errorf("%s %s has no %s", span.Name, event, key)
}

func wantEvents(t *testing.T, span tracetest.SpanStub, want ...string) {
	t.Helper()
	if got := events(span); !slices.Equal(got, want) {
		t.Errorf("the events of %s are %v, want %v", span.Name, got, want)
	}
}

func TestTenureIsOneSpanOfTheCallersTrace(t *testing.T) {
	s := start(t)
	ctx, caller := s.trace.Start(soon(t), "request")
	var barrier trace.SpanContext
	err := s.c.Do(ctx, "orders/42", func(ctx context.Context, g *coordinator.Grant) error {
		_, work := s.trace.Start(opentelemetry.Under(ctx, g), "work")
		work.End()
		if n := len(s.ended("etcd_fence.tenure")); n != 0 {
			t.Errorf("%d tenures have ended, and the lock is held", n)
		}
		return nil
	}, coordinator.Reason("restocking"), coordinator.Raise(func(ctx context.Context, _ revisionfence.Token) error {
		barrier = trace.SpanContextFromContext(ctx)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	caller.End()
	tenure, acquire, work := s.only(t, "etcd_fence.tenure"), s.only(t, "etcd_fence.acquire"), s.only(t, "work")
	wantEvents(t, tenure, "waiting", "held", "released")
	says(t, tenure, "", "etcd_fence.lock", "orders/42")
	says(t, tenure, "", "etcd_fence.reason", "restocking")
	for _, event := range []string{"", "held"} {
		says(t, tenure, event, "etcd_fence.token", tokenOf(t, acquire))
	}
	if tenure.Parent.SpanID() != caller.SpanContext().SpanID() || tenure.SpanContext.TraceID() != caller.SpanContext().TraceID() {
		t.Error("the tenure is not the caller's")
	}
	for name, id := range map[string]trace.SpanID{"acquire": acquire.Parent.SpanID(), "work": work.Parent.SpanID(), "barrier": barrier.SpanID()} {
		if id != tenure.SpanContext.SpanID() {
			t.Errorf("%s is not below the tenure", name)
		}
	}
	if tenure.Status.Code == codes.Error {
		t.Errorf("the status is %v", tenure.Status)
	}
}

// tokenOf is the token that a span names, which must be one.
func tokenOf(t *testing.T, span tracetest.SpanStub) string {
	t.Helper()
	for _, a := range span.Attributes {
		if a.Key == "etcd_fence.token" {
			if _, err := revisionfence.Parse(a.Value.AsString()); err != nil {
				t.Error(err)
			}
			return a.Value.AsString()
		}
	}
	t.Errorf("%s names no token", span.Name)
	return ""
}

func TestLossSaysWhy(t *testing.T) {
	s := start(t)
	g, err := s.c.Acquire(soon(t), "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	s.etcd.Expire(t, g)
	<-g.Context().Done()
	if err := g.Release(soon(t)); !errors.Is(err, coordinator.ErrNotHeld) {
		t.Errorf("Release: %v", err)
	}
	// Release has waited for what ended the grant, but not for its hook.
	s.ends.await(t, "etcd_fence.tenure", "etcd_fence.session")
	tenure, session := s.only(t, "etcd_fence.tenure"), s.only(t, "etcd_fence.session")
	wantEvents(t, tenure, "waiting", "held", "lost")
	says(t, tenure, "lost", "etcd_fence.lost.reason", string(coordinator.LostRevoked))
	says(t, tenure, "lost", "etcd_fence.token", g.Token().String())
	if tenure.Status.Code != codes.Error {
		t.Errorf("the status is %v", tenure.Status)
	}
	says(t, session, "ended", "etcd_fence.reason", string(coordinator.LostRevoked))
	says(t, session, "", "etcd_fence.lease", fmt.Sprintf("%x", int64(g.Lease())))
}

func TestBusyNamesTheHolderAndIsNoFailure(t *testing.T) {
	s := start(t)
	g, err := s.c.Acquire(soon(t), "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.TryAcquire(soon(t), "orders/42"); !errors.Is(err, coordinator.ErrBusy) {
		t.Fatalf("TryAcquire: %v", err)
	}
	tenure := s.only(t, "etcd_fence.tenure")
	wantEvents(t, tenure, "waiting", "busy")
	if tenure.Status.Code == codes.Error {
		t.Errorf("the status is %v", tenure.Status)
	}
	holder := tenure.Events[1].Attributes[0].Value.AsString()
	if !strings.Contains(holder, "worker-1") || !strings.Contains(holder, g.Token().String()) {
		t.Errorf("the holder is %q", holder)
	}
	if err := g.Release(soon(t)); err != nil {
		t.Error(err)
	}
}

func TestFailedBarrierEndsTheSpans(t *testing.T) {
	s := start(t)
	away := errors.New("the resource is away")
	_, err := s.c.Acquire(soon(t), "orders/42", coordinator.Raise(func(context.Context, revisionfence.Token) error { return away }))
	if !errors.Is(err, away) {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd_fence.tenure", "etcd_fence.acquire"} {
		if span := s.only(t, name); span.Status.Code != codes.Error || !strings.Contains(span.Status.Description, "away") {
			t.Errorf("the status of %s is %v", name, span.Status)
		}
	}
}

// TestLossDuringABarrier: the loss is told before the end of the acquire.
func TestLossDuringABarrier(t *testing.T) {
	s := start(t)
	_, err := s.c.Acquire(soon(t), "orders/42", coordinator.Raise(func(ctx context.Context, token revisionfence.Token) error {
		if err := s.c.Evict(ctx, token, "too slow"); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	if !errors.Is(err, coordinator.ErrLost) {
		t.Fatalf("Acquire: %v", err)
	}
	for _, name := range []string{"etcd_fence.tenure", "etcd_fence.acquire"} {
		if span := s.only(t, name); span.Status.Code != codes.Error || !strings.Contains(span.Status.Description, "evicted") {
			t.Errorf("the status of %s is %v", name, span.Status)
		}
	}
}

// TestLossBeforeTheAcquireEnds: the hook of a loss comes from another goroutine, and
// so it can come first. The hooks are called by hand here, in that order.
func TestLossBeforeTheAcquireEnds(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	h := opentelemetry.Hooks(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test"))
	token, err := revisionfence.New("orders/42", 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	ctx := h.AcquireStart(t.Context(), coordinator.AcquireStart{Lock: "orders/42"})
	h.Lost(&coordinator.LostError{Token: token, Reason: coordinator.LostEvicted})
	h.AcquireEnd(ctx, coordinator.AcquireEnd{Lock: "orders/42", Token: token})
	s := &setup{spans: spans}
	tenure := s.only(t, "etcd_fence.tenure")
	wantEvents(t, tenure, "waiting", "held", "lost")
	says(t, tenure, "lost", "etcd_fence.lost.reason", string(coordinator.LostEvicted))
}
