package etcdguard_test

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
)

// gathered is every value by its name and labels, and the names.
func gathered(t *testing.T, reg prometheus.Gatherer) (values map[string]float64, names []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	values = make(map[string]float64)
	for _, f := range families {
		names = append(names, f.GetName())
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "mode" && l.GetName() != "outcome" {
					t.Errorf("%s has the label %s: there can be any number of its values", f.GetName(), l.GetName())
				}
				key += "/" + l.GetValue()
			}
			values[key] = m.GetCounter().GetValue()
		}
	}
	return values, names
}

func TestMetricsAreThoseThatTheDocumentationLists(t *testing.T) {
	s := start(t, nil)
	reg := prometheus.NewRegistry()
	newGuard(t, s.client, &etcdguard.Options{Registerer: reg})
	_, names := gathered(t, reg)
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\s+(etcd_fence_\w+)`).FindAllStringSubmatch(file.Doc.Text(), -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("registered are %q, listed are %q", names, want)
	}
}

// TestMetricsCount what several guards of one Registerer did.
func TestMetricsCount(t *testing.T) {
	s := start(t, highWater)
	ctx := t.Context()
	reg := prometheus.NewRegistry()
	held := newGuard(t, s.client, &etcdguard.Options{Registerer: reg})
	high := newGuard(t, s.client, &etcdguard.Options{Mode: etcdguard.HighWater, Registerer: reg})
	other := newGuard(t, s.client, &etcdguard.Options{Mode: etcdguard.HighWater, Registerer: reg})
	g := acquire(t, s.truth, "l")
	for i, guard := range []*etcdguard.Guard{held, high, other} {
		kv := fenced(t, guard, g)
		for range 2 {
			_, _ = kv.Put(withOperation(ctx, fmt.Sprintf("op %d", i)), "data", "") // applied and replayed, or refused
		}
		_, _ = kv.Put(ctx, "data", "")
		_, _ = kv.Get(ctx, "data")
		_, _ = kv.Put(ctx, g.key, "")
		s.wire.DropReply("Txn", 1)
		_, _ = kv.Put(ctx, "data", "")
	}
	s.etcd.Expire(t, g)
	next := acquire(t, s.truth, "l")
	if err := high.Advance(ctx, "l", next.token); err != nil {
		t.Fatal(err)
	}
	for _, guard := range []*etcdguard.Guard{held, high, other} {
		_, _ = fenced(t, guard, g).Put(ctx, "data", "")
		_, _ = fenced(t, guard, g).Get(ctx, "data")
	}
	want := map[string]float64{
		"etcd_fence_guard_writes_total/Held/applied": 1, "etcd_fence_guard_writes_total/Held/stale": 1,
		"etcd_fence_guard_writes_total/Held/refused": 3, "etcd_fence_guard_writes_total/Held/unknown": 1,
		"etcd_fence_guard_writes_total/HighWater/applied": 4, "etcd_fence_guard_writes_total/HighWater/replayed": 2,
		"etcd_fence_guard_writes_total/HighWater/stale": 2, "etcd_fence_guard_writes_total/HighWater/refused": 2,
		"etcd_fence_guard_writes_total/HighWater/unknown": 2,
		"etcd_fence_guard_reads_total/Held/applied":       1, "etcd_fence_guard_reads_total/HighWater/applied": 2,
		"etcd_fence_guard_reads_total/Held/stale": 1, "etcd_fence_guard_reads_total/HighWater/stale": 2,
		"etcd_fence_guard_raises_total": 2,
	}
	got, _ := gathered(t, reg)
	for name, value := range got {
		if value != want[name] {
			t.Errorf("%s is %v, want %v", name, value, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
	conflicting := prometheus.NewRegistry()
	conflicting.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "etcd_fence_guard_raises_total", Help: "Another."}))
	_, err := etcdguard.New(s.client, &etcdguard.Options{Registerer: conflicting})
	if !errors.Is(err, resourceguard.ErrInvalid) || !strings.Contains(err.Error(), "Options.Registerer") {
		t.Errorf("a name that is taken: %v", err)
	}
}
