package etcdguard

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// TestFormatsInEtcd: what etcd holds is read by other versions of this package, and
// by people.
func TestFormatsInEtcd(t *testing.T) {
	o, err := (&Options{Mode: HighWater}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	token, err := revisionfence.New("orders/42 é", 2, 12345)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 890, time.UTC)
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s\n\t%s\n", key, value) }
	for _, resource := range []string{"orders", "orders/42", "orders/", "a b", "é", "%", "."} {
		line(o.mark(resource), markText(token, ""))
	}
	line(o.mark("orders/42"), markText(token, "694d77aa9e38260f-1"))
	line(o.mark("orders/42"), markText(token, "worker 7/é"))
	line(o.op("orders/42", "pay/7 é"), encode(operationRecord{Format: recordFormat, Token: token, Digest: []byte("digest"), Succeeded: true, At: at}))
	line(o.op("orders", "1"), encode(operationRecord{Format: recordFormat, Token: token, At: at}))
	line(o.floor("orders/42", at), encode(floorRecord{Format: recordFormat, Floor: token, Before: "7@orders/42", Reason: "restored", At: at}))

	path := filepath.Join("testdata", "formats.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("(-golden +now)\n%s", diff)
	}
}

func TestLaterFormats(t *testing.T) {
	for value, ok := range map[string]bool{
		`{"format":1,"token":"7@l","succeeded":true,"new":{"field":1}}`: true,
		`{"format":2,"token":"7@l","succeeded":true}`:                   false,
		`{"token":"7@l"}`:             false,
		`{"format":1,"token":"07@l"}`: false,
	} {
		_, err := readSaved(&mvccpb.KeyValue{Key: []byte("k"), Value: []byte(value)})
		if ok != (err == nil) || err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestMarkTextIsOneForOne: the steady compare is of texts.
func TestMarkTextIsOneForOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token, err := revisionfence.New(rapid.StringMatching(`[a-z/% é]{1,9}`).Draw(t, "lock"), uint16(rapid.IntRange(0, 9).Draw(t, "epoch")), 7)
		if err != nil {
			t.Skip()
		}
		owner := string(rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "owner"))
		text := markText(token, owner)
		stored, got := parseMark(text)
		back, ok, err := stored.Mark()
		if err != nil || !ok || back != token || got != owner {
			t.Fatalf("%q is read as %v of %q, %v", text, back, got, err)
		}
		// A text that is read at all is the only one of its meaning.
		mutated := []byte(text)
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		mutated[i] = rapid.Byte().Draw(t, "byte")
		stored, got = parseMark(string(mutated))
		if back, ok, err := stored.Mark(); err == nil && ok && markText(back, got) != string(mutated) {
			t.Fatalf("%q and %q are one mark", mutated, markText(back, got))
		}
	})
}

// TestNamesStayInTheirPlace: nothing that a user types reaches another record.
func TestNamesStayInTheirPlace(t *testing.T) {
	o, _ := (&Options{Mode: HighWater}).withDefaults()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z/.% é]{1,9}`)
		a, b, c, d := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c"), name.Draw(t, "d")
		if (a != c || b != d) && o.op(a, b) == o.op(c, d) || a != c && o.mark(a) == o.mark(c) {
			t.Fatal("two names, one key")
		}
		if rest, ok := strings.CutPrefix(o.mark(a), o.marks()); !ok || strings.Contains(rest, "/") {
			t.Fatalf("%q", o.mark(a))
		}
		if back, err := url.PathUnescape(strings.TrimPrefix(o.mark(a), o.marks())); err != nil || back != a {
			t.Fatalf("%q comes back as %q", a, back)
		}
	})
}

func TestOutcomesAsMetrics(t *testing.T) {
	for want, errs := range map[string][]error{
		outcomeApplied: {nil},
		outcomeStale:   {&resourceguard.StaleError{}, &endedError{&resourceguard.StaleError{}, ""}},
		outcomeRefused: {notApplied(resourceguard.ErrOwnerMismatch), notApplied(ErrProtectedKey), &unsupportedError{""}},
		outcomeUnknown: {errors.New("who knows")},

		outcomeNotApplied: {notApplied(errors.New("no connection"))},
	} {
		for _, err := range errs {
			if got := outcomeOf(err); got != want {
				t.Errorf("%v counts as %s, want %s", err, got, want)
			}
		}
	}
}
