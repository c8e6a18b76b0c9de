package etcdguard

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// metrics are the counters of a guard. With no Registerer they count all the same,
// and nobody asks.
type metrics struct {
	writes, reads         *prometheus.CounterVec
	raises                prometheus.Counter
	pruned, pruneFailures prometheus.Counter
}

// The values of the label outcome.
const (
	outcomeApplied    = "applied"
	outcomeReplayed   = "replayed"
	outcomeStale      = "stale"
	outcomeRefused    = "refused"
	outcomeNotApplied = "not_applied"
	outcomeUnknown    = "unknown"
)

func newMetrics(r prometheus.Registerer, mode Mode) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"mode", "outcome"})
	}
	m := &metrics{
		writes:        vec("etcd_fence_guard_writes_total", "Guarded calls that write, by mode and outcome."),
		reads:         vec("etcd_fence_guard_reads_total", "Guarded calls that only read, by mode and outcome."),
		raises:        counter("etcd_fence_guard_raises_total", "Marks raised by a newer token."),
		pruned:        counter("etcd_fence_guard_operations_pruned_total", "Records of operations that were deleted for their age."),
		pruneFailures: counter("etcd_fence_guard_prune_failures_total", "Attempts to delete old records of operations that failed."),
	}
	if r == nil {
		return m, nil
	}
	var err error
	m.writes = shared(r, m.writes, &err)
	m.reads = shared(r, m.reads, &err)
	m.raises = shared(r, m.raises, &err)
	m.pruned = shared(r, m.pruned, &err)
	m.pruneFailures = shared(r, m.pruneFailures, &err)
	if err != nil {
		return nil, fmt.Errorf("%w: Options.Registerer: %w", resourceguard.ErrInvalid, err)
	}
	for _, outcome := range []string{outcomeApplied, outcomeStale, outcomeRefused, outcomeNotApplied, outcomeUnknown} {
		m.writes.WithLabelValues(mode.String(), outcome) // 0 says more than nothing
		if outcome != outcomeUnknown {
			m.reads.WithLabelValues(mode.String(), outcome)
		}
	}
	if mode == HighWater {
		m.writes.WithLabelValues(mode.String(), outcomeReplayed)
	}
	return m, nil
}

// shared registers a collector, or returns the one that another guard has
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

// count counts one call by its end.
func (g *Guard) count(reads, replayed bool, err error) {
	outcome := outcomeOf(err)
	if replayed {
		outcome = outcomeReplayed
	}
	vec := g.metrics.writes
	if reads {
		vec = g.metrics.reads
	}
	vec.WithLabelValues(g.opts.Mode.String(), outcome).Inc()
}

// outcomeOf puts an error into one of few words. Refused is what a person has to look
// at: a defect of the program, a restore, damage.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return outcomeApplied
	case errors.Is(err, resourceguard.ErrStale):
		return outcomeStale
	case resourceguard.OutcomeOf(err) == resourceguard.Unknown:
		return outcomeUnknown
	}
	for _, refusal := range []error{
		resourceguard.ErrWrongLock, resourceguard.ErrNoToken, resourceguard.ErrImplausible, resourceguard.ErrCorruptMark,
		resourceguard.ErrOperationReused, resourceguard.ErrOwnerMismatch, resourceguard.ErrInvalid,
		ErrUnfencedRead, ErrProtectedKey, ErrFormat, errors.ErrUnsupported,
	} {
		if errors.Is(err, refusal) {
			return outcomeRefused
		}
	}
	return outcomeNotApplied
}
