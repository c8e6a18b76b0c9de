package resourceguard_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

const (
	lock  = "orders/42"
	other = "orders/4"
)

func token(tb testing.TB, text string) revisionfence.Token {
	tb.Helper()
	if text == "" {
		return revisionfence.Token{}
	}
	t, err := revisionfence.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func TestAdmit(t *testing.T) {
	const (
		none    = "none"
		corrupt = "corrupt"
	)
	for _, tt := range []struct {
		name      string
		stored    string // a token, none or corrupt
		presented string
		policy    resourceguard.Policy
		ceiling   string
		want      resourceguard.Decision
		err       error
	}{
		{name: "first token", stored: none, presented: "3@orders/42", want: resourceguard.Raise},
		{name: "newer", stored: "3@orders/42", presented: "4@orders/42", want: resourceguard.Raise},
		{name: "newer after a gap", stored: "3@orders/42", presented: "400@orders/42", want: resourceguard.Raise},
		{name: "newer epoch with a lower revision", stored: "400@orders/42", presented: "1:3@orders/42", want: resourceguard.Raise},
		{name: "equal", stored: "3@orders/42", presented: "3@orders/42", want: resourceguard.Same},
		{name: "equal, one write for each grant", stored: "3@orders/42", presented: "3@orders/42", policy: resourceguard.RejectEqual, err: resourceguard.ErrStale},
		{name: "newer, one write for each grant", stored: "3@orders/42", presented: "4@orders/42", policy: resourceguard.RejectEqual, want: resourceguard.Raise},
		{name: "first, one write for each grant", stored: none, presented: "4@orders/42", policy: resourceguard.RejectEqual, want: resourceguard.Raise},
		{name: "lower", stored: "4@orders/42", presented: "3@orders/42", err: resourceguard.ErrStale},
		{name: "lower as a number, larger as text", stored: "10@orders/42", presented: "9@orders/42", err: resourceguard.ErrStale},
		{name: "older epoch with a larger revision", stored: "1:3@orders/42", presented: "400@orders/42", err: resourceguard.ErrStale},
		{name: "no token, no mark", stored: none, err: resourceguard.ErrNoToken},
		{name: "no token", stored: "4@orders/42", err: resourceguard.ErrNoToken},
		{name: "no token over a corrupt mark", stored: corrupt, err: resourceguard.ErrNoToken},
		{name: "other lock, larger", stored: "4@orders/42", presented: "5@orders/4", err: resourceguard.ErrWrongLock},
		{name: "other lock, no mark", stored: none, presented: "5@orders/4", err: resourceguard.ErrWrongLock},
		{name: "mark of another lock", stored: "4@orders/4", presented: "5@orders/42", err: resourceguard.ErrWrongLock},
		{name: "mark and token of another lock", stored: "4@orders/4", presented: "5@orders/4", err: resourceguard.ErrWrongLock},
		{name: "corrupt mark", stored: corrupt, presented: "5@orders/42", err: resourceguard.ErrCorruptMark},
		{name: "at the ceiling", stored: none, presented: "5@orders/42", ceiling: "5@orders/42", want: resourceguard.Raise},
		{name: "above the ceiling", stored: none, presented: "6@orders/42", ceiling: "5@orders/42", err: resourceguard.ErrImplausible},
		{name: "epoch above the ceiling", stored: none, presented: "1:1@orders/42", ceiling: "5@orders/42", err: resourceguard.ErrImplausible},
		{name: "ceiling made for another lock", stored: none, presented: "6@orders/42", ceiling: "5@elsewhere", err: resourceguard.ErrImplausible},
		{name: "above the ceiling over a corrupt mark", stored: corrupt, presented: "6@orders/42", ceiling: "5@orders/42", err: resourceguard.ErrImplausible},
		{name: "real token below a poisoned mark", stored: "9@orders/42", presented: "5@orders/42", ceiling: "5@orders/42", err: resourceguard.ErrStale},
		{name: "no such policy", stored: "3@orders/42", presented: "3@orders/42", policy: 7, err: resourceguard.ErrInvalid},
		{name: "no such policy, newer", stored: "3@orders/42", presented: "4@orders/42", policy: 7, err: resourceguard.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored := resourceguard.ParseMark(tt.stored)
			if tt.stored == none {
				stored = resourceguard.NoMark()
			}
			rule := resourceguard.Rule{Lock: lock, Policy: tt.policy, Ceiling: token(t, tt.ceiling)}
			got, err := rule.Admit(stored, token(t, tt.presented))
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("Admit = %v, %v, want %v, %v", got, err, tt.want, tt.err)
			}
			if err != nil && resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
				t.Errorf("the outcome of %q is %v", err, resourceguard.OutcomeOf(err))
			}
		})
	}
}

func TestZeroValuesAdmitNothing(t *testing.T) {
	t5 := token(t, "5@orders/42")
	if d, err := (resourceguard.Rule{}).Admit(resourceguard.NoMark(), t5); err == nil {
		t.Errorf("a rule without a lock admits: %v", d)
	}
	if d, err := (resourceguard.Rule{Lock: lock}).Admit(resourceguard.Stored{}, t5); !errors.Is(err, resourceguard.ErrCorruptMark) {
		t.Errorf("a zero Stored gives %v, %v", d, err)
	}
	if d, err := (resourceguard.Rule{Lock: lock}).Admit(resourceguard.MarkOf(revisionfence.Token{}), t5); !errors.Is(err, resourceguard.ErrCorruptMark) {
		t.Errorf("a mark of the zero token gives %v, %v", d, err)
	}
	if d, err := (resourceguard.Rule{Lock: lock}).Admit(resourceguard.ParseMark(""), t5); !errors.Is(err, resourceguard.ErrCorruptMark) {
		t.Errorf("an empty mark text gives %v, %v", d, err)
	}
	var zero resourceguard.Decision
	if zero == resourceguard.Same || zero == resourceguard.Raise {
		t.Error("the zero Decision admits")
	}
}

func TestCorruptMarkSaysWhatIsWrongWithIt(t *testing.T) {
	_, _, err := resourceguard.ParseMark("4711").Mark()
	if !errors.Is(err, resourceguard.ErrCorruptMark) || !errors.Is(err, revisionfence.ErrMalformed) || !strings.Contains(err.Error(), "4711") {
		t.Errorf("ParseMark: %v", err)
	}
}

func TestAdvanceUnderRejectEqualLeavesTheWrite(t *testing.T) {
	rule := resourceguard.Rule{Lock: lock, Policy: resourceguard.RejectEqual}
	for _, tt := range []struct{ stored, presented, mark string }{
		{"", "3@orders/42", "2@orders/42"},
		{"", "1@orders/42", ""}, // nothing can be lower
		{"", "1:1@orders/42", "281474976710655@orders/42"},
		{"3@orders/42", "5@orders/42", "4@orders/42"},
		{"3@orders/42", "4@orders/42", "3@orders/42"}, // already held off
		{"4@orders/42", "4@orders/42", "4@orders/42"}, // has written
	} {
		stored := resourceguard.NoMark()
		if tt.stored != "" {
			stored = resourceguard.MarkOf(token(t, tt.stored))
		}
		mark, decision, err := rule.Advance(stored, token(t, tt.presented))
		if err != nil || mark != token(t, tt.mark) {
			t.Errorf("Advance of %q by %s = %q, %v, %v, want mark %q", tt.stored, tt.presented, mark, decision, err, tt.mark)
		}
		if changes := tt.mark != tt.stored; changes != (decision == resourceguard.Raise) {
			t.Errorf("Advance of %q by %s decides %v", tt.stored, tt.presented, decision)
		}
	}
}

func TestFloor(t *testing.T) {
	for _, tt := range []struct {
		name, stored, floor, ceiling string
		want                         resourceguard.Decision
		err                          error
	}{
		{name: "higher", stored: "3@orders/42", floor: "4@orders/42", want: resourceguard.Raise},
		{name: "equal", stored: "3@orders/42", floor: "3@orders/42", want: resourceguard.Same},
		{name: "lower", stored: "4@orders/42", floor: "3@orders/42", err: resourceguard.ErrStale},
		{name: "lower than a mark at the ceiling", stored: "4@orders/42", floor: "3@orders/42", ceiling: "4@orders/42", err: resourceguard.ErrStale},
		{name: "lower than a mark above the ceiling", stored: "5@orders/42", floor: "3@orders/42", ceiling: "4@orders/42", want: resourceguard.Raise},
		{name: "no mark", stored: "none", floor: "3@orders/42", want: resourceguard.Raise},
		{name: "unreadable", stored: "?", floor: "3@orders/42", want: resourceguard.Raise},
		{name: "mark of another lock", stored: "9@orders/4", floor: "3@orders/42", want: resourceguard.Raise},
		{name: "floor of another lock", stored: "3@orders/42", floor: "9@orders/4", err: resourceguard.ErrWrongLock},
		{name: "floor of another lock over an unreadable mark", stored: "?", floor: "9@orders/4", err: resourceguard.ErrWrongLock},
		{name: "floor above the ceiling", stored: "?", floor: "9@orders/42", ceiling: "4@orders/42", err: resourceguard.ErrImplausible},
		{name: "no floor", stored: "?", err: resourceguard.ErrNoToken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stored := resourceguard.ParseMark(tt.stored)
			if tt.stored == "none" {
				stored = resourceguard.NoMark()
			}
			got, err := resourceguard.Rule{Lock: lock, Ceiling: token(t, tt.ceiling)}.Floor(stored, token(t, tt.floor))
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("Floor = %v, %v, want %v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// anyToken draws tokens close together, so that equal ones and neighbours are
// common, of two locks and two epochs.
func anyToken() *rapid.Generator[revisionfence.Token] {
	return rapid.Custom(func(t *rapid.T) revisionfence.Token {
		name := rapid.SampledFrom([]string{lock, lock, lock, lock, other}).Draw(t, "lock")
		revision := rapid.OneOf(rapid.Int64Range(1, 6), rapid.Int64Range(revisionfence.MaxRevision-2, revisionfence.MaxRevision)).Draw(t, "revision")
		made, err := revisionfence.New(name, rapid.Uint16Range(0, 1).Draw(t, "epoch"), revision)
		if err != nil {
			t.Fatal(err)
		}
		return made
	})
}

// TestMarksNeverFall plays arbitrary calls against a mark and looks at what was
// let in.
func TestMarksNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := resourceguard.Rule{
			Lock:   lock,
			Policy: rapid.SampledFrom([]resourceguard.Policy{resourceguard.AcceptEqual, resourceguard.RejectEqual}).Draw(t, "policy"),
		}
		if rapid.Bool().Draw(t, "with a ceiling") {
			rule.Ceiling = anyToken().Draw(t, "ceiling")
		}
		stored := resourceguard.NoMark()
		var mark, seen, written revisionfence.Token // the largest of each so far
		store := func(m revisionfence.Token) {
			if m.Int64() < mark.Int64() {
				t.Fatalf("the mark fell from %s to %s", mark, m)
			}
			mark, stored = m, resourceguard.MarkOf(m)
		}
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			presented := anyToken().Draw(t, "presented")
			write := rapid.Bool().Draw(t, "is a write")
			var err error
			if write {
				var d resourceguard.Decision
				if d, err = rule.Admit(stored, presented); d == resourceguard.Raise {
					store(presented)
				}
			} else {
				var d resourceguard.Decision
				var m revisionfence.Token
				if m, d, err = rule.Advance(stored, presented); d == resourceguard.Raise {
					store(m)
				}
			}
			strict := rule.Policy == resourceguard.RejectEqual
			inVain := strict && !write && seen != written && presented == mark
			shouldPass := presented.Lock() == lock &&
				(rule.Ceiling.IsZero() || presented.Int64() <= rule.Ceiling.Int64()) &&
				(presented.Int64() >= seen.Int64() || inVain) &&
				!(strict && write && presented == written)
			if passed := err == nil; passed != shouldPass {
				t.Fatalf("%s (write: %v) passed: %v, after %q was seen and %q written: %v", presented, write, passed, seen, written, err)
			}
			if err != nil {
				continue
			}
			if !inVain {
				seen = presented
			}
			if write {
				written = presented
			}
		}
	})
}

// TestAdmitAgreesWithItself checks relations between the three forms of the rule.
func TestAdmitAgreesWithItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mark, presented := anyToken().Draw(t, "mark"), anyToken().Draw(t, "presented")
		rule := resourceguard.Rule{Lock: lock}
		stored := resourceguard.MarkOf(mark)
		admitted, admitErr := rule.Admit(stored, presented)
		advanced, decision, advanceErr := rule.Advance(stored, presented)
		if admitted != decision || (admitErr == nil) != (advanceErr == nil) {
			t.Fatalf("under AcceptEqual Admit and Advance differ: %v, %v and %v, %v", admitted, admitErr, decision, advanceErr)
		}
		if decision == resourceguard.Raise && advanced != presented {
			t.Fatalf("under AcceptEqual Advance to %s stores %s", presented, advanced)
		}
		rule.Policy = resourceguard.RejectEqual
		strict, strictErr := rule.Admit(stored, presented)
		switch {
		case admitted == resourceguard.Same:
			if !errors.Is(strictErr, resourceguard.ErrStale) {
				t.Fatalf("under RejectEqual an equal token gives %v, %v", strict, strictErr)
			}
		case strict != admitted || (strictErr == nil) != (admitErr == nil):
			t.Fatalf("the policies differ about %s and %s: %v, %v", mark, presented, admitted, strict)
		}
	})
}

func TestDecisionsAndPoliciesPrint(t *testing.T) {
	for got, want := range map[string]string{
		resourceguard.Same.String():         "Same",
		resourceguard.Raise.String():        "Raise",
		resourceguard.Decision(0).String():  "refused",
		resourceguard.AcceptEqual.String():  "AcceptEqual",
		resourceguard.RejectEqual.String():  "RejectEqual",
		resourceguard.Policy(7).String():    "Policy(7)",
		resourceguard.Unknown.String():      "unknown",
		resourceguard.NotApplied.String():   "not applied",
		resourceguard.Applied.String():      "applied",
		new(resourceguard.Outcome).String(): "unknown",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
