package resourceguard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

var refusals = map[string]error{
	"ErrStale":           resourceguard.ErrStale,
	"ErrWrongLock":       resourceguard.ErrWrongLock,
	"ErrNoToken":         resourceguard.ErrNoToken,
	"ErrImplausible":     resourceguard.ErrImplausible,
	"ErrCorruptMark":     resourceguard.ErrCorruptMark,
	"ErrOperationReused": resourceguard.ErrOperationReused,
	"ErrOwnerMismatch":   resourceguard.ErrOwnerMismatch,
	"ErrBlocked":         resourceguard.ErrBlocked,
	"ErrInvalid":         resourceguard.ErrInvalid,
	"ErrUnsupported":     errors.ErrUnsupported,
}

func TestEveryRefusalIsNotApplied(t *testing.T) {
	for name, err := range refusals {
		for _, e := range []error{err, fmt.Errorf("op: %w", err), errors.Join(errors.New("also"), err), fmt.Errorf("%w: %w", err, errors.New("cause"))} {
			if o := resourceguard.OutcomeOf(e); o != resourceguard.NotApplied {
				t.Errorf("%s as %q: outcome %q", name, e, o)
			}
		}
		for othersName, others := range refusals {
			if errors.Is(err, others) != (name == othersName) {
				t.Errorf("errors.Is(%s, %s) = %v", name, othersName, errors.Is(err, others))
			}
		}
	}
	if !errors.Is(resourceguard.ErrNoToken, revisionfence.ErrNoToken) {
		t.Error("ErrNoToken is not that of revisionfence")
	}
}

// uncomparable is an error type that == would panic on.
type uncomparable []string

func (uncomparable) Error() string { return "uncomparable" }

func TestOutcomeOf(t *testing.T) {
	plain := errors.New("connection reset")
	with := resourceguard.WithOutcome
	for _, tt := range []struct {
		name string
		err  error
		want resourceguard.Outcome
	}{
		{"no error", nil, resourceguard.Applied},
		{"an error that says nothing", plain, resourceguard.Unknown},
		{"a context's error", context.DeadlineExceeded, resourceguard.Unknown},
		{"an error that cannot be compared", uncomparable{"a"}, resourceguard.Unknown},
		{"attached", with(plain, resourceguard.NotApplied), resourceguard.NotApplied},
		{"attached and wrapped", fmt.Errorf("put: %w", with(plain, resourceguard.Applied)), resourceguard.Applied},
		{"the outermost decides", with(with(plain, resourceguard.NotApplied), resourceguard.Unknown), resourceguard.Unknown},
		{"attached to a refusal", with(resourceguard.ErrStale, resourceguard.Unknown), resourceguard.Unknown},
		{"a stale token", &resourceguard.StaleError{}, resourceguard.NotApplied},
		{"one that says nothing is passed over", errors.Join(plain, with(plain, resourceguard.NotApplied)), resourceguard.NotApplied},
		{"several that agree", errors.Join(resourceguard.ErrStale, with(plain, resourceguard.NotApplied)), resourceguard.NotApplied},
		{"several that do not agree", errors.Join(resourceguard.ErrStale, with(plain, resourceguard.Applied)), resourceguard.Unknown},
		{"one that is known not to be known", errors.Join(resourceguard.ErrStale, with(plain, resourceguard.Unknown)), resourceguard.Unknown},
		{"nested joins", fmt.Errorf("a: %w", errors.Join(plain, fmt.Errorf("b: %w", errors.Join(plain, resourceguard.ErrBlocked)))), resourceguard.NotApplied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := resourceguard.OutcomeOf(tt.err); got != tt.want {
				t.Errorf("OutcomeOf(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

func TestWithOutcomeIsTransparent(t *testing.T) {
	if err := resourceguard.WithOutcome(nil, resourceguard.Unknown); err != nil {
		t.Errorf("WithOutcome(nil) = %v", err)
	}
	stale := &resourceguard.StaleError{Resource: "r"}
	err := resourceguard.WithOutcome(fmt.Errorf("put: %w", stale), resourceguard.NotApplied)
	if got, ok := errors.AsType[*resourceguard.StaleError](err); !ok || got != stale {
		t.Errorf("errors.As finds %v", got)
	}
	if err.Error() != "put: "+stale.Error() {
		t.Errorf("the message became %q", err)
	}
}

func TestStaleErrorTellsTheWayOut(t *testing.T) {
	seven, eight := token(t, "7@orders/42"), token(t, "8@orders/42")
	applied := &resourceguard.Result{Mark: seven}
	for _, tt := range []struct {
		name string
		err  resourceguard.StaleError
		want []string
	}{
		{"lower", resourceguard.StaleError{Resource: "stock", Presented: seven, Accepted: eight}, []string{`"stock"`, "7@orders/42", "8@orders/42 has been accepted", "acquire the lock again"}},
		{"equal", resourceguard.StaleError{Resource: "stock", Presented: seven, Accepted: seven}, []string{`"stock"`, "7@orders/42", "one write", "acquire the lock again"}},
		{"nobody holds the lock", resourceguard.StaleError{Resource: "stock", Presented: seven}, []string{`"stock"`, "7@orders/42", "nobody", "acquire the lock again"}},
		{"applied before", resourceguard.StaleError{Resource: "stock", Presented: seven, Accepted: eight, Applied: applied}, []string{"applied before, under 7@orders/42"}},
		{"a name with a line break", resourceguard.StaleError{Resource: "stock\n", Presented: seven, Accepted: eight}, []string{`"stock\n"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !errors.Is(&tt.err, resourceguard.ErrStale) || errors.Is(&tt.err, resourceguard.ErrBlocked) {
				t.Error("it is not exactly an ErrStale")
			}
			for _, part := range tt.want {
				if !strings.Contains(tt.err.Error(), part) {
					t.Errorf("%q does not say %q", tt.err.Error(), part)
				}
			}
		})
	}
}

func TestForResource(t *testing.T) {
	if err := resourceguard.ForResource("r", nil); err != nil {
		t.Errorf("ForResource(nil) = %v", err)
	}
	_, err := resourceguard.Rule{Lock: lock}.Admit(resourceguard.MarkOf(token(t, "4@orders/42")), token(t, "3@orders/42"))
	stale, ok := errors.AsType[*resourceguard.StaleError](resourceguard.ForResource("stock", err))
	if !ok || stale.Resource != "stock" {
		t.Errorf("a stale error becomes %v", stale)
	}
	if again, _ := errors.AsType[*resourceguard.StaleError](resourceguard.ForResource("outer", stale)); again.Resource != "stock" {
		t.Errorf("the resource of the inner guard became %q", again.Resource)
	}
	err = resourceguard.ForResource("stock", resourceguard.ErrCorruptMark)
	if !errors.Is(err, resourceguard.ErrCorruptMark) || !strings.Contains(err.Error(), `"stock"`) {
		t.Errorf("another error becomes %v", err)
	}
}

func TestCheckOwner(t *testing.T) {
	for _, tt := range []struct {
		stored, presented string
		ok                bool
	}{
		{"", "", true}, {"a", "", true}, {"", "a", true}, {"a", "a", true}, {"a", "b", false}, {"a", "A", false},
	} {
		err := resourceguard.CheckOwner(tt.stored, tt.presented)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, resourceguard.ErrOwnerMismatch) {
			t.Errorf("CheckOwner(%q, %q) = %v", tt.stored, tt.presented, err)
		}
	}
}

func TestWriteCheck(t *testing.T) {
	long := strings.Repeat("x", 2000)
	good := resourceguard.Write{Resource: "r", Token: token(t, "3@orders/42")}
	for name, tt := range map[string]struct {
		spoil func(*resourceguard.Write)
		want  error
	}{
		"as it is": {func(*resourceguard.Write) {}, nil},
		"everything set": {func(w *resourceguard.Write) {
			w.Owner, w.Operation = "o", resourceguard.Operation{ID: "é 😀", Digest: make([]byte, 64)}
		}, nil},
		"the longest ID":              {func(w *resourceguard.Write) { w.Operation.ID = long[:resourceguard.MaxOperationID] }, nil},
		"no resource":                 {func(w *resourceguard.Write) { w.Resource = "" }, resourceguard.ErrInvalid},
		"no token":                    {func(w *resourceguard.Write) { w.Token = revisionfence.Token{} }, resourceguard.ErrNoToken},
		"long owner":                  {func(w *resourceguard.Write) { w.Owner = long }, resourceguard.ErrInvalid},
		"long ID":                     {func(w *resourceguard.Write) { w.Operation.ID = long[:resourceguard.MaxOperationID+1] }, resourceguard.ErrInvalid},
		"long digest":                 {func(w *resourceguard.Write) { w.Operation = resourceguard.Operation{ID: "a", Digest: make([]byte, 65)} }, resourceguard.ErrInvalid},
		"digest without an ID":        {func(w *resourceguard.Write) { w.Operation.Digest = []byte("d") }, resourceguard.ErrInvalid},
		"ID with a control character": {func(w *resourceguard.Write) { w.Operation.ID = "a\nb" }, resourceguard.ErrInvalid},
		"ID that is not UTF-8":        {func(w *resourceguard.Write) { w.Operation.ID = "a\xff" }, resourceguard.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			w := good
			tt.spoil(&w)
			if err := w.Check(); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("Check = %v, want %v", err, tt.want)
			}
		})
	}
	for reason, ok := range map[string]bool{"": false, "why": true, long[:resourceguard.MaxReason]: true, long: false} {
		if err := resourceguard.CheckReason(reason); (err == nil) != ok {
			t.Errorf("CheckReason of %d bytes = %v", len(reason), err)
		}
	}
}

func TestOperationTravelsInAContext(t *testing.T) {
	if o, ok := resourceguard.OperationFromContext(t.Context()); ok {
		t.Errorf("an empty context carries %+v", o)
	}
	ctx := resourceguard.WithOperation(t.Context(), resourceguard.Operation{ID: "a", Digest: []byte("d")})
	if o, ok := resourceguard.OperationFromContext(ctx); !ok || o.ID != "a" || string(o.Digest) != "d" {
		t.Errorf("the context carries %+v, %v", o, ok)
	}
	if o, ok := resourceguard.OperationFromContext(resourceguard.WithOperation(ctx, resourceguard.Operation{})); ok {
		t.Errorf("the zero operation over another one gives %+v", o)
	}
}
