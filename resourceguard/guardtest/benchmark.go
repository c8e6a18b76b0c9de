package guardtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// BarePutter is a [Subject] that can also write without the guard, for [Benchmark]
// to compare with.
type BarePutter interface {
	// PutBare sets the value of a resource without a token, by the cheapest write
	// that somebody without a guard would use: of the same backend, over the same
	// connection and as durable. Resources that it is called for are not guarded
	// ones.
	PutBare(ctx context.Context, resource string, value []byte) error
}

const (
	// turnTime is how long a turn takes at least: the start of its goroutines must
	// not count for much.
	turnTime = 2 * time.Millisecond
	// maxEach bounds how many writes a caller makes in a turn.
	maxEach = 1 << 12
)

// Benchmark measures what the guard adds to a write, for 1, 8 and 64 callers at
// once, who share one grant and have a resource each:
//
//	func BenchmarkGuard(b *testing.B) {
//		guardtest.Benchmark(b, newHarness)
//	}
//
// Where the subject is a [BarePutter] its writes and those without the guard take
// turns of a few milliseconds, so that whatever else the machine does falls on
// both. These metrics are reported, all of them medians over the turns:
//
//	bare-ns/write     time of a turn without the guard, for each of its writes
//	guarded-ns/write  the same with the guard
//	ratio             of each guarded turn to the bare one beside it
//
// Times are those of the whole turn divided by the number of its writes, and so the
// inverse of a throughput: with several callers they are less than what one caller
// waits. For others than a BarePutter only the second is reported.
//
// Of the harness only Open, Resource and Grant are used. Values have 128 bytes.
func Benchmark(b *testing.B, newHarness func(b *testing.B) Harness) {
	b.Helper()
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("Put/by%d", callers), func(b *testing.B) {
			measure(b, newHarness(b), callers)
		})
	}
}

func measure(b *testing.B, h Harness, callers int) {
	b.Helper()
	if h.Open == nil || h.Resource == nil || h.Grant == nil {
		b.Fatal("the harness: Harness.Open, Resource and Grant are required")
	}
	s := h.Open(b, Config{})
	if s == nil {
		b.Fatal("Harness.Open returned no subject")
	}
	g, value := h.Grant(b, lock), make([]byte, 128)
	named := func(kind string) []string {
		resources := make([]string, callers)
		for i := range resources {
			resources[i] = h.Resource(b, fmt.Sprintf("%s %d", kind, i), lock)
		}
		return resources
	}
	guarded := turns{b: b, resources: named("guarded"), put: func(resource string) error {
		_, err := retriedFor(b.Context(), func() (resourceguard.Result, error) {
			return s.Put(b.Context(), g.Write(resource), value)
		})
		return err
	}}
	each := guarded.each()
	bare, isBare := s.(BarePutter)
	if !isBare {
		for b.Loop() {
			guarded.turn(each)
		}
		b.ReportMetric(median(guarded.took), "guarded-ns/write")
		b.ReportMetric(0, "ns/op") // of a turn, which is as long as it was made
		return
	}
	without := turns{b: b, resources: named("bare"), put: func(resource string) error {
		return bare.PutBare(b.Context(), resource, value)
	}}
	each = max(each, without.each())
	// Whoever comes second finds the caches warm, so they take turns in that too.
	first, second := &without, &guarded
	for b.Loop() {
		first.turn(each)
		second.turn(each)
		first, second = second, first
	}
	ratios := make([]float64, len(guarded.took))
	for i := range ratios {
		ratios[i] = guarded.took[i] / without.took[i]
	}
	b.ReportMetric(median(without.took), "bare-ns/write")
	b.ReportMetric(median(guarded.took), "guarded-ns/write")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op") // of two turns
}

// turns are writes of one kind.
type turns struct {
	b         *testing.B
	resources []string // one for each caller
	put       func(resource string) error
	took      []float64 // nanoseconds for each write, turn by turn
}

// each finds out how many writes of each caller make a turn. What it took is
// forgotten: the first writes pay for what is set up once.
func (t *turns) each() int {
	each := 1
	for t.turn(each) < turnTime && each < maxEach {
		each *= 2
	}
	t.took = nil
	return each
}

func (t *turns) turn(each int) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for _, resource := range t.resources {
		wg.Go(func() {
			for range each {
				if err := t.put(resource); err != nil {
					t.b.Errorf("Put in resource %q: %v", resource, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.b.Failed() {
		t.b.FailNow()
	}
	d := time.Since(start)
	t.took = append(t.took, float64(d.Nanoseconds())/float64(each*len(t.resources)))
	return d
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
