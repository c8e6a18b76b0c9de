package revisionfence_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

func TestText(t *testing.T) {
	for text, want := range map[string]struct {
		lock     string
		epoch    uint16
		revision int64
	}{
		"12345@orders/42":                    {"orders/42", 0, 12345},
		"2:12345@orders/42":                  {"orders/42", 2, 12345},
		"32767:281474976710655@":             {"", 0, 0}, // no lock
		"1@a%20b":                            {"a b", 0, 1},
		"1@%25":                              {"%", 0, 1},
		"1@a@b:c":                            {"a@b:c", 0, 1},
		"1@%C3%A9":                           {"\u00e9", 0, 1},
		"1@e%CC%81":                          {"e\u0301", 0, 1},
		"1@%F0%9F%98%80":                     {"😀", 0, 1},
		"1@~!\"#$&'()*+,-./:;<=>?[\\]^_`{|}": {"~!\"#$&'()*+,-./:;<=>?[\\]^_`{|}", 0, 1},
	} {
		got, err := revisionfence.Parse(text)
		if want.lock == "" {
			if err == nil {
				t.Errorf("Parse(%q) = %q, want an error", text, got)
			}
			continue
		}
		if made := must(t, want.lock, want.epoch, want.revision); err != nil || got != made || made.String() != text {
			t.Errorf("Parse(%q) = %q, %v; String of %+v is %q", text, got, err, want, made)
		}
	}
}

func TestParseRefusesWhatStringDoesNotWrite(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                         "",
		"no parts":                      "5",
		"no revision":                   "@a",
		"no lock":                       "5@",
		"zero revision":                 "0@a",
		"negative":                      "-5@a",
		"plus":                          "+5@a",
		"leading zero":                  "05@a",
		"leading space":                 " 5@a",
		"trailing space":                "5@a ",
		"trailing line feed":            "5@a\n",
		"space before @":                "5 @a",
		"hexadecimal":                   "0x5@a",
		"underscore":                    "5_0@a",
		"exponent":                      "5e3@a",
		"fraction":                      "5.0@a",
		"other digits":                  "\u0665@a",
		"full-width digits":             "５@a",
		"epoch 0":                       "0:5@a",
		"no epoch":                      ":5@a",
		"negative epoch":                "-1:5@a",
		"leading zero in the epoch":     "01:5@a",
		"two epochs":                    "1:2:5@a",
		"epoch too large":               "32768:5@a",
		"epoch that wraps to 0":         "65536:5@a",
		"epoch that wraps to 1":         "65537:5@a",
		"revision too large":            "281474976710656@a",
		"revision above int64":          "9223372036854775808@a",
		"revision above uint64":         "18446744073709551617@a",
		"NUL":                           "5@a\x00",
		"escaped control character":     "5@a%0A",
		"escaped C1 control character":  "5@%C2%85",
		"escaped bad UTF-8":             "5@%FF",
		"escaped surrogate":             "5@%ED%A0%80",
		"needless escape":               "5@%61",
		"needless escape of a slash":    "5@a%2Fb",
		"lower-case escape":             "5@%c3%a9",
		"half an escape":                "5@%C3%A",
		"bare percent":                  "5@a%",
		"escape that is none":           "5@%ZZ",
		"unescaped space":               "5@a b",
		"unescaped letter beyond ASCII": "5@\u00e9",
		"bad UTF-8":                     "5@\xff",
		"name too long":                 "5@" + strings.Repeat("x", revisionfence.MaxLockName+1),
		"endless":                       "5@" + strings.Repeat("%41", 1<<16),
		"quoted":                        `"5@a"`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := revisionfence.Parse(text)
			if !errors.Is(err, revisionfence.ErrMalformed) || !got.IsZero() {
				t.Fatalf("Parse(%.40q) = %q, %v", text, got, err)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error floods the log with %d bytes", len(err.Error()))
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
				t.Errorf("the error has control characters or broken text: %q", err.Error())
			}
			var u revisionfence.Token
			if err := u.UnmarshalText([]byte(text)); !errors.Is(err, revisionfence.ErrMalformed) || !u.IsZero() {
				t.Errorf("UnmarshalText = %q, %v", u, err)
			}
		})
	}
}

// TestParseSaysWhichBoundWasBroken lets a caller tell a bad name from a bad
// number.
func TestParseSaysWhichBoundWasBroken(t *testing.T) {
	for text, want := range map[string]error{
		"32768:5@a": revisionfence.ErrOutOfRange,
		"0@a":       revisionfence.ErrOutOfRange,
		"5@":        revisionfence.ErrInvalidName,
		"5@%FF":     revisionfence.ErrInvalidName,
	} {
		if _, err := revisionfence.Parse(text); !errors.Is(err, want) || !errors.Is(err, revisionfence.ErrMalformed) {
			t.Errorf("Parse(%q): %v, want %v", text, err, want)
		}
	}
}

func TestTextIsPrintableASCIIWithoutSpaces(t *testing.T) {
	check := func(tb interface{ Fatalf(string, ...any) }, a revisionfence.Token) {
		text := a.String()
		for _, c := range []byte(text) {
			if c <= ' ' || c > '~' {
				tb.Fatalf("the text %q of a token of %q has the byte %#02x", text, a.Lock(), c)
			}
		}
		if got, err := revisionfence.Parse(text); err != nil || got != a {
			tb.Fatalf("Parse(%q) = %q, %v", text, got, err)
		}
	}
	for _, name := range names {
		check(t, must(t, name, 0, 1))
		check(t, must(t, name, revisionfence.MaxEpoch, revisionfence.MaxRevision))
	}
	rapid.Check(t, func(t *rapid.T) { check(t, anyToken().Draw(t, "token")) })
}

func TestDifferentTokensHaveDifferentTexts(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range names {
		text := must(t, name, 0, 5).String()
		if other, ok := seen[text]; ok {
			t.Errorf("locks %q and %q have one text: %s", name, other, text)
		}
		seen[text] = name
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyToken().Draw(t, "a"), anyToken().Draw(t, "b")
		if (a == b) != (a.String() == b.String()) {
			t.Fatalf("%q == %q is %v, and their texts are %q and %q", a, b, a == b, a.String(), b.String())
		}
	})
}

func TestJSONIsAString(t *testing.T) {
	const above = 1<<53 + 1 // the first integer that a double cannot hold, while the revision cannot be that large: by epoch
	a, err := revisionfence.FromInt64("orders/42", above)
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		Token    revisionfence.Token            `json:"token"`
		Optional revisionfence.Token            `json:"optional,omitzero"`
		ByToken  map[revisionfence.Token]string `json:"by_token,omitempty"`
	}
	text, err := json.Marshal(message{Token: a, ByToken: map[revisionfence.Token]string{a: "x"}})
	if want := `{"token":"32:1@orders/42","by_token":{"32:1@orders/42":"x"}}`; err != nil || string(text) != want {
		t.Fatalf("Marshal = %s, %v, want %s", text, err, want)
	}
	// A reader that knows no more than JSON must hand it on unharmed.
	var generic map[string]any
	if err := json.Unmarshal(text, &generic); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(generic); err != nil {
		t.Fatal(err)
	}
	var back message
	if err := json.Unmarshal(text, &back); err != nil || back.Token != a || back.Token.Int64() != above || back.ByToken[a] != "x" || !back.Optional.IsZero() {
		t.Errorf("it came back as %+v, %v", back, err)
	}
}

func TestJSONRefusesWhatIsNoToken(t *testing.T) {
	if text, err := json.Marshal(revisionfence.Token{}); !errors.Is(err, revisionfence.ErrNoToken) {
		t.Errorf("the zero Token is written as %s, %v", text, err)
	}
	if text, err := json.Marshal(revisionfence.Mark{Resource: "stock"}); !errors.Is(err, revisionfence.ErrNoToken) {
		t.Errorf("a mark without a token is written as %s, %v", text, err)
	}
	for _, text := range []string{`5`, `12345`, `{}`, `true`, `""`, `"5"`, `["5@a"]`} {
		a := must(t, "kept", 0, 7)
		if err := json.Unmarshal([]byte(text), &a); err == nil || a != must(t, "kept", 0, 7) {
			t.Errorf("Unmarshal(%s) gives %q, %v", text, a, err)
		}
	}
	var m revisionfence.Mark
	if err := json.Unmarshal([]byte(`{"resource":"stock","token":"5@a"}`), &m); err != nil || m != (revisionfence.Mark{Resource: "stock", Token: must(t, "a", 0, 5)}) {
		t.Errorf("a mark is read as %+v, %v", m, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range names {
		f.Add(must(f, name, 0, 12345).String())
	}
	for _, text := range []string{"", "2:12345@orders/42", "32767:281474976710655@x", "05@a", "0:5@a", "5@%61", "5@%c3%a9", "5@\xff", "5@a%", "5@a b", "65537:1@a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := revisionfence.Parse(text)
		if err != nil {
			if !errors.Is(err, revisionfence.ErrMalformed) || !got.IsZero() {
				t.Fatalf("Parse(%q) = %q, %v", text, got, err)
			}
			return
		}
		if got.String() != text {
			t.Fatalf("Parse(%q) prints as %q", text, got.String())
		}
		if again, err := revisionfence.New(got.Lock(), got.Epoch(), got.Revision()); err != nil || again != got {
			t.Fatalf("Parse(%q) made a token that New does not: %v", text, err)
		}
	})
}

func FuzzTokenRoundTrip(f *testing.F) {
	for _, name := range names {
		f.Add(name, uint16(0), int64(12345))
	}
	f.Add("x", uint16(revisionfence.MaxEpoch), int64(revisionfence.MaxRevision))
	f.Add("x", uint16(revisionfence.MaxEpoch+1), int64(1))
	f.Add("\xff", uint16(0), int64(0))
	f.Fuzz(func(t *testing.T, lock string, epoch uint16, revision int64) {
		a, err := revisionfence.New(lock, epoch, revision)
		valid := revisionfence.CheckName(lock) == nil && epoch <= revisionfence.MaxEpoch && 1 <= revision && revision <= revisionfence.MaxRevision
		if (err == nil) != valid {
			t.Fatalf("New(%q, %d, %d): %v", lock, epoch, revision, err)
		}
		if err != nil {
			return
		}
		if got, err := revisionfence.Parse(a.String()); err != nil || got != a {
			t.Fatalf("Parse(%q) = %q, %v", a.String(), got, err)
		}
		if a.Lock() != lock || a.Epoch() != epoch || a.Revision() != revision {
			t.Fatalf("New(%q, %d, %d) has the parts %q, %d, %d", lock, epoch, revision, a.Lock(), a.Epoch(), a.Revision())
		}
	})
}
