package revisionfence_test

import (
	"testing"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{"plain": "12345678@orders/42", "escaped": "2:12345678@%F0%9F%98%80%20orders"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := revisionfence.Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkString(b *testing.B) {
	for name, lock := range map[string]string{"plain": "orders/42", "escaped": "😀 orders"} {
		b.Run(name, func(b *testing.B) {
			t := must(b, lock, 0, 12345678)
			b.ReportAllocs()
			for b.Loop() {
				_ = t.String()
			}
		})
	}
}

func BenchmarkSortKey(b *testing.B) {
	t := must(b, "orders/42", 0, 12345678)
	b.ReportAllocs()
	for b.Loop() {
		_ = t.SortKey()
	}
}

func BenchmarkCompare(b *testing.B) {
	t, u := must(b, "orders/42", 0, 12345678), must(b, "orders/42", 0, 12345679)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t.Compare(u); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHotPathsAllocateLittle keeps what runs on every guarded write cheap: one
// allocation for the text itself, none to compare.
func TestHotPathsAllocateLittle(t *testing.T) {
	a, b := must(t, "orders/42", 0, 12345678), must(t, "orders/42", 0, 12345679)
	for name, tt := range map[string]struct {
		most float64
		fn   func()
	}{
		"Compare": {0, func() { _, _ = a.Compare(b) }},
		"String":  {1, func() { _ = a.String() }},
		"SortKey": {1, func() { _ = a.SortKey() }},
		"Parse":   {1, func() { _, _ = revisionfence.Parse("12345678@orders/42") }},
	} {
		if got := testing.AllocsPerRun(100, tt.fn); got > tt.most {
			t.Errorf("%s allocates %v times, at most %v are expected", name, got, tt.most)
		}
	}
}
