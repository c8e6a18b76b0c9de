package coordinator

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the counters of a coordinator. With no Registerer they count all
// the same, and nobody asks.
type metrics struct {
	waited           prometheus.Histogram
	granted          prometheus.Counter
	lost             *prometheus.CounterVec
	handOns, settles prometheus.Counter
	renewalFailures  prometheus.Counter
	leaked           prometheus.Counter
}

func newMetrics(c *Coordinator) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "etcd_fence_acquire_wait_seconds", Help: "How long acquires waited that ended with a grant.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 11),
		}),
		granted: counter("etcd_fence_grants_total", "Grants made."),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_fence_grants_lost_total", Help: "Grants that ended without a release, by reason.",
		}, []string{"reason"}),
		handOns:         counter("etcd_fence_hand_ons_total", "Locks that were handed on inside this process in one transaction."),
		settles:         counter("etcd_fence_settles_total", "Transactions that settled acquires of unknown outcome."),
		renewalFailures: counter("etcd_fence_renewal_failures_total", "Proofs of a lease that failed."),
		leaked:          counter("etcd_fence_grants_leaked_total", "Grants that became garbage without having been released."),
	}
	r := c.opts.Registerer
	if r == nil {
		return m, nil
	}
	for _, reason := range lostReasons {
		m.lost.WithLabelValues(string(reason)) // 0 says more than nothing
	}
	var err error
	m.waited = shared(r, m.waited, &err)
	m.granted = shared(r, m.granted, &err)
	m.lost = shared(r, m.lost, &err)
	m.handOns = shared(r, m.handOns, &err)
	m.settles = shared(r, m.settles, &err)
	m.renewalFailures = shared(r, m.renewalFailures, &err)
	m.leaked = shared(r, m.leaked, &err)
	if err != nil {
		return nil, fmt.Errorf("%w: Registerer: %w", ErrInvalidOption, err)
	}
	f := shared(r, newFleet(), &err)
	if err != nil {
		return nil, fmt.Errorf("%w: Registerer: %w", ErrInvalidOption, err)
	}
	f.add(c)
	return m, nil
}

// shared registers a collector, or returns the one that another coordinator has
// registered already.
func shared[C prometheus.Collector](r prometheus.Registerer, c C, failed *error) C {
	err := r.Register(c)
	var have prometheus.AlreadyRegisteredError
	if errors.As(err, &have) {
		if other, ok := have.ExistingCollector.(C); ok {
			return other
		}
	}
	if err != nil {
		*failed = errors.Join(*failed, err)
	}
	return c
}

// fleet reports the present state of all coordinators that share a Registerer:
// sums, and the worst of what cannot be summed.
type fleet struct {
	held, waiting, pending, renewalAge, trustLeft *prometheus.Desc

	mu      sync.Mutex
	members map[*Coordinator]bool
}

func newFleet() *fleet {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &fleet{
		held:       desc("etcd_fence_grants_held", "Grants held now."),
		waiting:    desc("etcd_fence_waiters", "Goroutines that wait for a lock now."),
		pending:    desc("etcd_fence_releases_pending", "Releases that etcd has not answered yet."),
		renewalAge: desc("etcd_fence_renewal_age_seconds", "How long ago the last proof of a lease that succeeded was sent; the oldest of this process."),
		trustLeft:  desc("etcd_fence_trust_left_seconds", "How long a lease may be relied on without a further proof; the least of this process."),
		members:    make(map[*Coordinator]bool),
	}
}

func (f *fleet) add(c *Coordinator) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[c] = true
	c.leaveFleet = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.members, c)
	}
}

// Describe implements prometheus.Collector.
func (f *fleet) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.held, f.waiting, f.pending, f.renewalAge, f.trustLeft} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (f *fleet) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	members := make([]*Coordinator, 0, len(f.members))
	for c := range f.members {
		members = append(members, c)
	}
	f.mu.Unlock()
	var sum Health
	sessions := false
	for _, c := range members {
		h := c.Health()
		sum.Held += h.Held
		sum.Waiting += h.Waiting
		sum.Releasing += h.Releasing
		if h.Lease == 0 {
			continue
		}
		if !sessions || h.TrustedFor < sum.TrustedFor {
			sum.TrustedFor = h.TrustedFor
		}
		sum.ProofAge = max(sum.ProofAge, h.ProofAge)
		sessions = true
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(f.held, float64(sum.Held))
	gauge(f.waiting, float64(sum.Waiting))
	gauge(f.pending, float64(sum.Releasing))
	if sessions {
		gauge(f.renewalAge, sum.ProofAge.Seconds())
		gauge(f.trustLeft, sum.TrustedFor.Seconds())
	}
}
