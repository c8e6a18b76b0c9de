package revisionfence_test

import (
	"cmp"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// names are locks that must not be mixed up, and the hard cases of encoding.
var names = []string{
	"orders/42", "foo", "foo/", "foo/bar", "fo", "Foo", " ", "a b", " a", "a ", "%", "%25", "%2F", "@", "a@b", "1@b", ":",
	"\u00e9", "e\u0301", "日本", "😀", "👩‍🚀", "\u202eabc", "\ufeff", "\u00a0", "\u2028", "\ufffd", "\U0010ffff",
	`"`, `\`, "'", "<&>", "a=b;c,d", "~!",
	strings.Repeat("x", revisionfence.MaxLockName),
	strings.Repeat("é", revisionfence.MaxLockName/2),
	strings.Repeat("😀", revisionfence.MaxLockName/4),
}

// tester is a testing.TB or a rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
}

func must(tb tester, lock string, epoch uint16, revision int64) revisionfence.Token {
	tb.Helper()
	t, err := revisionfence.New(lock, epoch, revision)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// anyToken draws valid tokens; small numbers and bounds are common.
func anyToken() *rapid.Generator[revisionfence.Token] {
	return rapid.Custom(func(t *rapid.T) revisionfence.Token {
		name := rapid.OneOf(
			rapid.SampledFrom(names),
			rapid.StringN(1, 20, 80).Filter(func(s string) bool { return revisionfence.CheckName(s) == nil }),
		).Draw(t, "lock")
		return must(
			t, name,
			rapid.Uint16Range(0, revisionfence.MaxEpoch).Draw(t, "epoch"),
			rapid.Int64Range(1, revisionfence.MaxRevision).Draw(t, "revision"),
		)
	})
}

func TestBoundsHoldWhereverATokenIsMade(t *testing.T) {
	long := strings.Repeat("x", revisionfence.MaxLockName+1)
	for _, tt := range []struct {
		name     string
		lock     string
		epoch    uint16
		revision int64
		want     error
	}{
		{"smallest", "x", 0, 1, nil},
		{"largest", long[1:], revisionfence.MaxEpoch, revisionfence.MaxRevision, nil},
		{"revision 0", "x", 0, 0, revisionfence.ErrOutOfRange},
		{"revision 0 in an epoch", "x", 1, 0, revisionfence.ErrOutOfRange},
		{"negative revision", "x", 0, -1, revisionfence.ErrOutOfRange},
		{"smallest int64", "x", 0, -1 << 63, revisionfence.ErrOutOfRange},
		{"revision too large", "x", 0, revisionfence.MaxRevision + 1, revisionfence.ErrOutOfRange},
		{"largest int64", "x", 0, 1<<63 - 1, revisionfence.ErrOutOfRange},
		{"epoch too large", "x", revisionfence.MaxEpoch + 1, 1, revisionfence.ErrOutOfRange},
		{"largest uint16", "x", 1<<16 - 1, 1, revisionfence.ErrOutOfRange},
		{"no name", "", 0, 1, revisionfence.ErrInvalidName},
		{"name too long", long, 0, 1, revisionfence.ErrInvalidName},
		{"name too long in bytes and not in characters", strings.Repeat("é", 513), 0, 1, revisionfence.ErrInvalidName},
		{"name not UTF-8", "a\xffb", 0, 1, revisionfence.ErrInvalidName},
		{"name with half a surrogate", "\xed\xa0\x80", 0, 1, revisionfence.ErrInvalidName},
		{"name with an overlong encoding", "\xc0\xaf", 0, 1, revisionfence.ErrInvalidName},
		{"name with NUL", "a\x00b", 0, 1, revisionfence.ErrInvalidName},
		{"name with a line feed", "a\nb", 0, 1, revisionfence.ErrInvalidName},
		{"name with DEL", "a\x7f", 0, 1, revisionfence.ErrInvalidName},
		{"name with a C1 control", "a\u0085", 0, 1, revisionfence.ErrInvalidName},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := func(how string, got revisionfence.Token, err error) {
				t.Helper()
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
					t.Errorf("%s: %v, want %v", how, err, tt.want)
				}
				if got.IsZero() != (tt.want != nil) {
					t.Errorf("%s returned %q beside the error %v", how, got, err)
				}
			}
			got, err := revisionfence.New(tt.lock, tt.epoch, tt.revision)
			check("New", got, err)
			got, err = revisionfence.FromKey(tt.lock, tt.epoch, &mvccpb.KeyValue{CreateRevision: tt.revision, ModRevision: 7, Version: 7})
			check("FromKey", got, err)
		})
	}
}

func TestFromInt64KeepsTheBounds(t *testing.T) {
	for n, want := range map[int64]error{
		1:                                   nil,
		revisionfence.MaxRevision:           nil,
		1<<48 + 1:                           nil,
		1<<63 - 1:                           nil,
		0:                                   revisionfence.ErrOutOfRange,
		-1:                                  revisionfence.ErrOutOfRange,
		-1 << 63:                            revisionfence.ErrOutOfRange,
		1 << 48:                             revisionfence.ErrOutOfRange, // an epoch without a revision
		int64(revisionfence.MaxEpoch) << 48: revisionfence.ErrOutOfRange,
	} {
		got, err := revisionfence.FromInt64("x", n)
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("FromInt64(%d): %v, want %v", n, err, want)
		}
		if err == nil && got.Int64() != n || err != nil && !got.IsZero() {
			t.Errorf("FromInt64(%d) = %q", n, got)
		}
	}
	if _, err := revisionfence.FromInt64("", 1); !errors.Is(err, revisionfence.ErrInvalidName) {
		t.Errorf("FromInt64 without a name: %v", err)
	}
}

func TestFromKeyWithoutAKeyDoesNotPanic(t *testing.T) {
	for name, kv := range map[string]interface{ GetCreateRevision() int64 }{
		"nil":                nil,
		"nil KeyValue":       (*mvccpb.KeyValue)(nil),
		"KeyValue of no key": &mvccpb.KeyValue{},
	} {
		if got, err := revisionfence.FromKey("x", 0, kv); !errors.Is(err, revisionfence.ErrOutOfRange) || !got.IsZero() {
			t.Errorf("FromKey(%s) = %q, %v", name, got, err)
		}
	}
}

func TestFromKeyTakesTheCreateRevision(t *testing.T) {
	kv := &mvccpb.KeyValue{CreateRevision: 12, ModRevision: 99, Version: 5, Lease: 1 << 60}
	if got, err := revisionfence.FromKey("orders/42", 2, kv); err != nil || got != must(t, "orders/42", 2, 12) {
		t.Errorf("FromKey = %q, %v", got, err)
	}
}

func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyToken().Draw(t, "a")
		again, err := revisionfence.New(a.Lock(), a.Epoch(), a.Revision())
		if err != nil || again != a {
			t.Fatalf("New of the parts of %q = %q, %v", a, again, err)
		}
		if again, err = revisionfence.FromInt64(a.Lock(), a.Int64()); err != nil || again != a {
			t.Fatalf("FromInt64 of %q = %q, %v", a, again, err)
		}
		if a.Int64() <= 0 || a.IsZero() || a.Token() != a {
			t.Fatalf("%q: Int64 %d, IsZero %v", a, a.Int64(), a.IsZero())
		}
		if a.Epoch() == 0 && a.Int64() != a.Revision() {
			t.Fatalf("in epoch 0 Int64 of %q is %d", a, a.Int64())
		}
	})
}

// TestOrdersAgree checks that whatever a resource stores, it decides alike.
func TestOrdersAgree(t *testing.T) {
	near := func(bound int64) *rapid.Generator[int64] {
		return rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(bound-3, bound), rapid.Int64Range(1, bound))
	}
	one := rapid.Custom(func(t *rapid.T) revisionfence.Token {
		return must(t, "orders/42",
			uint16(near(revisionfence.MaxEpoch+1).Draw(t, "epoch")-1), near(revisionfence.MaxRevision).Draw(t, "revision"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := one.Draw(t, "a"), one.Draw(t, "b")
		want := cmp.Compare(a.Epoch(), b.Epoch())
		if want == 0 {
			want = cmp.Compare(a.Revision(), b.Revision())
		}
		got, err := a.Compare(b)
		back, _ := b.Compare(a)
		switch {
		case err != nil || got != want || back != -want:
			t.Fatalf("Compare of %q and %q = %d, %v, and back %d; want %d", a, b, got, err, back, want)
		case cmp.Compare(a.Int64(), b.Int64()) != want:
			t.Fatalf("Int64 orders %q and %q otherwise: %d, %d", a, b, a.Int64(), b.Int64())
		case strings.Compare(a.SortKey(), b.SortKey()) != want:
			t.Fatalf("SortKey orders %q and %q otherwise: %s, %s", a, b, a.SortKey(), b.SortKey())
		case (a == b) != (want == 0):
			t.Fatalf("%q == %q is %v", a, b, a == b)
		case len(a.SortKey()) != 16:
			t.Fatalf("SortKey of %q is %q", a, a.SortKey())
		}
	})
}

func TestCompareRefusesWhatHasNoOrder(t *testing.T) {
	var zero revisionfence.Token
	for i, name := range names {
		a := must(t, name, 0, 5)
		for _, other := range names[i+1:] {
			if _, err := a.Compare(must(t, other, 1, 9)); !errors.Is(err, revisionfence.ErrDifferentLocks) {
				t.Errorf("%q and %q are compared: %v", name, other, err)
			}
		}
		for _, pair := range [][2]revisionfence.Token{{a, zero}, {zero, a}, {zero, zero}} {
			if order, err := pair[0].Compare(pair[1]); !errors.Is(err, revisionfence.ErrNoToken) || order != 0 {
				t.Errorf("Compare of %q and %q = %d, %v", pair[0], pair[1], order, err)
			}
		}
	}
}

func TestZeroTokenIsNone(t *testing.T) {
	var zero revisionfence.Token
	if !zero.IsZero() || zero.String() != "" || zero.Int64() != 0 || zero.Lock() != "" || zero.SortKey() != "0000000000000000" {
		t.Errorf("the zero Token is %q, %d, %q, %q", zero, zero.Int64(), zero.Lock(), zero.SortKey())
	}
	if _, ok := revisionfence.FromContext(revisionfence.NewContext(t.Context(), zero)); ok {
		t.Error("a context carries the zero Token as a token")
	}
	if _, ok := revisionfence.FromContext(t.Context()); ok {
		t.Error("an empty context carries a token")
	}
}

func TestContextCarriesTheToken(t *testing.T) {
	a, b := must(t, "orders/42", 0, 5), must(t, "orders/43", 0, 6)
	ctx := revisionfence.NewContext(t.Context(), a)
	if got, ok := revisionfence.FromContext(ctx); !ok || got != a {
		t.Errorf("FromContext = %q, %v", got, ok)
	}
	if got, _ := revisionfence.FromContext(revisionfence.NewContext(ctx, b)); got != b {
		t.Errorf("the inner token is %q, want %q", got, b)
	}
	if got, ok := revisionfence.FromContext(revisionfence.NewContext(ctx, revisionfence.Token{})); ok {
		t.Errorf("behind a zero token the outer %q shows through", got)
	}
	if got, ok := revisionfence.FromContext(revisionfence.NewContext(ctx, nil)); ok {
		t.Errorf("no source gives %q", got)
	}
}
