package guardtest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/guardtest"
)

// costly is a subject whose guard makes a write three times as much work.
type costly struct {
	slowModel
	err error
}

func (c costly) PutBare(context.Context, string, []byte) error {
	var block [16 << 10]byte
	if sum := sha256.Sum256(block[:]); sum == [sha256.Size]byte{} {
		return errors.New("never")
	}
	return c.err
}

func (c costly) Put(ctx context.Context, w resourceguard.Write, value []byte) (resourceguard.Result, error) {
	for range 3 {
		if err := c.PutBare(ctx, w.Resource, value); err != nil {
			return resourceguard.Result{}, err
		}
	}
	return resourceguard.Result{Mark: w.Token}, nil
}

func costlyHarness(err error) guardtest.Harness {
	h := modelHarness{}.new()
	open := h.Open
	h.Open = func(tb guardtest.TB, c guardtest.Config) guardtest.Subject {
		return costly{slowModel: open(tb, c).(slowModel), err: err}
	}
	return h
}

func TestBenchmarkComparesWithBare(t *testing.T) {
	r := testing.Benchmark(func(b *testing.B) { guardtest.Measure(b, costlyHarness(nil), 8) })
	ratio, bare, guarded := r.Extra["ratio"], r.Extra["bare-ns/write"], r.Extra["guarded-ns/write"]
	if ratio < 2 || ratio > 5 || bare <= 0 || guarded <= bare {
		t.Errorf("ratio %.2f, bare %.0f ns, guarded %.0f ns: three times the work should take about three times as long", ratio, bare, guarded)
	}
}

func TestBenchmarkWithoutBareHasNoRatio(t *testing.T) {
	r := testing.Benchmark(func(b *testing.B) { guardtest.Measure(b, modelHarness{}.new(), 1) })
	if _, ok := r.Extra["ratio"]; ok || r.Extra["guarded-ns/write"] <= 0 {
		t.Errorf("reported: %v", r.Extra)
	}
}

func TestBenchmarkOfAGuardThatFailsFails(t *testing.T) {
	r := testing.Benchmark(func(b *testing.B) { guardtest.Measure(b, costlyHarness(errors.New("broken")), 1) })
	if r.N != 0 {
		t.Errorf("reported: %v", r)
	}
}
