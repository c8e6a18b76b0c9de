package coordinator_test

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// metric returns the value of a metric: the count of a histogram, the sum over
// the labels of others.
func metric(t *testing.T, reg prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		return sum
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// listed are the metrics that the package comment promises, with their kinds.
func listed(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\s+(etcd_fence_\w+)\s+(.*)$`).FindAllStringSubmatch(file.Doc.Text(), -1) {
		names[m[1]] = m[2]
	}
	return names
}

func TestMetricsAreThoseThatTheDocumentationLists(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	reg := prometheus.NewRegistry()
	opts := steady
	opts.Registerer = reg
	c := newCoordinator(t, etcd.Client(), opts)
	release(t, acquire(t, c, "orders/42"))

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := listed(t)
	if len(want) < 5 {
		t.Fatalf("the list was not found: %v", want)
	}
	for _, f := range families {
		text, ok := want[f.GetName()]
		if !ok {
			t.Errorf("%s is not in the package comment", f.GetName())
		}
		delete(want, f.GetName())
		if kind := strings.ToLower(f.GetType().String()); kind == "histogram" != strings.HasPrefix(text, "histogram") || kind == "counter" != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s is a %s", f.GetName(), kind)
		}
		// There can be any number of locks, and of tokens.
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() != "etcd_fence_grants_lost_total" || l.GetName() != "reason" {
					t.Errorf("%s has the label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	for name := range want {
		t.Errorf("%s is in the package comment, and is not reported", name)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestMetricsCountWhatHappens(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, w := tapped(t, etcd)
	reg := prometheus.NewRegistry()
	opts := brisk
	opts.Registerer = reg
	c := newCoordinator(t, client, opts)
	is := func(name string, want float64) {
		t.Helper()
		if got := metric(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	g := acquire(t, c, "orders")
	is("etcd_fence_grants_total", 1)
	is("etcd_fence_acquire_wait_seconds", 1)
	is("etcd_fence_grants_held", 1)
	if age, left := metric(t, reg, "etcd_fence_renewal_age_seconds"), metric(t, reg, "etcd_fence_trust_left_seconds"); age < 0 || age > 3 || left <= 0 || left > 2.7 || age+left > 2.71 || age+left < 1 {
		t.Errorf("the last proof is %v s old, and %v s of trust are left", age, left)
	}
	next := ask(t, c, "orders")
	is("etcd_fence_waiters", 1)
	latch := w.Hold("Txn", of(handsOn))
	releasing := make(chan error, 1)
	go func() { releasing <- g.Release(within(t, patience)) }()
	held(t, latch)
	is("etcd_fence_releases_pending", 1)
	is("etcd_fence_grants_held", 0)
	latch.Release()
	second := next.granted(t)
	if err := receive(t, releasing, "Release"); err != nil {
		t.Error(err)
	}
	is("etcd_fence_releases_pending", 0)
	is("etcd_fence_hand_ons_total", 1)
	is("etcd_fence_waiters", 0)
	is("etcd_fence_grants_total", 2)

	w.DropReply("Txn", 1, of(enters))
	third := acquire(t, c, "others")
	is("etcd_fence_settles_total", 1)
	is("etcd_fence_grants_held", 2)
	is("etcd_fence_renewal_failures_total", 0)

	// An acquire that fails has waited too, and is not among the waits that
	// ended with a grant.
	if _, err := c.Acquire(within(t, patience), "others", coordinator.WaitAtMost(time.Millisecond)); !errors.Is(err, coordinator.ErrBusy) {
		t.Error(err)
	}
	is("etcd_fence_acquire_wait_seconds", 3)
	is("etcd_fence_grants_lost_total", 0)
	if _, err := etcd.Client().Delete(t.Context(), third.Key()); err != nil {
		t.Fatal(err)
	}
	_ = ended(t, third)
	is("etcd_fence_grants_lost_total", 1)
	if got := lostBy(t, reg, coordinator.LostKeyDeleted); got != 1 {
		t.Errorf("%v lost by a deleted key", got)
	}
	is("etcd_fence_grants_held", 1)
	if g, err := c.Acquire(within(t, patience), "x", coordinator.MaxHold(time.Millisecond)); err != nil {
		t.Error(err)
	} else {
		keep(t, g)
	}
	eventually(t, "it was held too long", func() bool { return lostBy(t, reg, coordinator.LostHeldTooLong) == 1 })
	release(t, second)
	is("etcd_fence_grants_lost_total", 2)
	is("etcd_fence_grants_leaked_total", 0)
}

func lostBy(t *testing.T, reg prometheus.Gatherer, reason coordinator.LostReason) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "etcd_fence_grants_lost_total" && len(l) == 1 && l[0].GetValue() == string(reason) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no count of grants lost by %q", reason)
	return 0
}

func TestFailedProofsAreCounted(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	client, _ := tapped(t, etcd)
	reg := prometheus.NewRegistry()
	opts := hasty
	opts.Registerer = reg
	c := newCoordinator(t, client, opts)
	acquire(t, c, "orders")
	etcd.Stop(t)
	eventually(t, "proofs fail", func() bool { return metric(t, reg, "etcd_fence_renewal_failures_total") > 0 })
	etcd.Restart(t)
}

func TestCoordinatorsShareARegisterer(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	reg := prometheus.NewRegistry()
	opts := steady
	opts.Registerer = reg
	a := newCoordinator(t, etcd.Client(), opts)
	b := newCoordinator(t, etcd.Client(), opts)
	acquire(t, a, "a")
	g := acquire(t, b, "b")
	acquire(t, b, "c")
	if n := metric(t, reg, "etcd_fence_grants_held"); n != 3 {
		t.Errorf("%v grants held, want 3", n)
	}
	if n := metric(t, reg, "etcd_fence_grants_total"); n != 3 {
		t.Errorf("%v grants made, want 3", n)
	}
	// The worst of both counts, and not the sum.
	if left := metric(t, reg, "etcd_fence_trust_left_seconds"); left > 60 {
		t.Errorf("%v s of trust left", left)
	}
	if err := a.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if n := metric(t, reg, "etcd_fence_grants_held"); n != 2 {
		t.Errorf("%v grants held after one was closed, want 2", n)
	}
	release(t, g)
	if err := b.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if n := metric(t, reg, "etcd_fence_grants_held"); n != 0 {
		t.Errorf("%v grants held after both were closed", n)
	}
	if n := metric(t, reg, "etcd_fence_grants_total"); n != 3 {
		t.Errorf("%v grants made, want 3: what was counted stays", n)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families { // of sessions that there are not
		if name := f.GetName(); name == "etcd_fence_trust_left_seconds" || name == "etcd_fence_renewal_age_seconds" {
			t.Errorf("%s is reported though all are closed", name)
		}
	}
	newCoordinator(t, etcd.Client(), opts) // and again
}

// A prefix and labels of one's own go with what client_golang has for them.
func TestCoordinatorsShareAWrappedRegisterer(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	reg := prometheus.NewRegistry()
	held := make(map[string]float64)
	for i, tenant := range []string{"x", "x", "y"} {
		opts := steady
		opts.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"tenant": tenant}, reg)
		acquire(t, newCoordinator(t, etcd.Client(), opts), fmt.Sprint("lock-", i))
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "etcd_fence_grants_held" {
				held[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if len(held) != 2 || held["x"] != 2 || held["y"] != 1 {
		t.Errorf("grants held by tenant: %v", held)
	}
}

func TestForeignMetricOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	etcd := cluster(t, nil)
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "etcd_fence_grants_total", Help: "Something else."}))
	if _, err := coordinator.New(etcd.Client(), &coordinator.Options{Registerer: reg}); !errors.Is(err, coordinator.ErrInvalidOption) {
		t.Errorf("%v", err)
	}
}
