package guardtest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// perProperty bounds one property: a guard that hangs is to fail, by name.
const perProperty = time.Minute

// Property is one thing that must hold for every guard.
type Property struct {
	// Name is what holds.
	Name string
	// Doc says why it must.
	Doc string
	// Needs is what the guard must be able to do for the question to arise.
	Needs []Capability

	check func(*bench)
}

// Check tries the property on a harness that nothing else uses.
func (p Property) Check(tb TB, h Harness) {
	tb.Helper()
	if err := h.validate(); err != nil {
		tb.Fatalf("the harness: %v", err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), perProperty)
	defer cancel()
	p.check(&bench{TB: tb, h: h, ctx: ctx})
}

// Skip returns the reason to skip the property, or "".
func (p Property) Skip(h Harness) string {
	var reasons []string
	for _, c := range p.Needs {
		if why, lacking := h.Lacks[c]; lacking {
			reasons = append(reasons, fmt.Sprintf("no %s: %s", c, why))
		}
	}
	return strings.Join(reasons, "; ")
}

func (h Harness) validate() error {
	missing := func(field string, is bool, unless Capability) error {
		if _, lacking := h.Lacks[unless]; !is || lacking {
			return nil
		}
		if unless == "" {
			return fmt.Errorf("Harness.%s is required", field)
		}
		return fmt.Errorf("Harness.%s is required unless Harness.Lacks says why there are no %s", field, unless)
	}
	for c, why := range h.Lacks {
		if !slices.Contains(Capabilities(), c) {
			return fmt.Errorf("Harness.Lacks has %q, which is no capability", c)
		}
		if why == "" {
			return fmt.Errorf("Harness.Lacks has no reason for %q", c)
		}
	}
	for _, err := range []error{
		missing("Open", h.Open == nil, ""),
		missing("Resource", h.Resource == nil, ""),
		missing("Read", h.Read == nil, ""),
		missing("Grant", h.Grant == nil, ""),
		missing("CorruptMark", h.CorruptMark == nil, Marks),
		missing("Reasons", h.Reasons == nil, Floors),
	} {
		if err != nil {
			return err
		}
	}
	if h.AuthorityChecked && h.EndGrant == nil {
		return fmt.Errorf("Harness.EndGrant is required with AuthorityChecked")
	}
	return nil
}

// Run checks every property, each in a subtest of its name and with a harness of
// its own, and lists what was skipped, by what the guard lacks.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	var findings []Finding
	for _, p := range Properties() {
		var mistake error
		t.Run(p.Name, func(t *testing.T) {
			h := newHarness(t)
			if mistake = h.validate(); mistake != nil {
				t.Fatalf("the harness: %v", mistake)
			}
			f := Finding{Property: p.Name, Skipped: p.Skip(h)}
			findings = append(findings, f)
			if f.Skipped != "" {
				t.Skip(f.Skipped)
			}
			p.Check(t, h)
		})
		if mistake != nil {
			return // each of the others would say the same
		}
	}
	if text := Skipped(findings); text != "" {
		t.Log(text)
	}
}

// Skipped puts into words which of the properties were skipped, one line for each
// reason. It returns "" if none were.
func Skipped(findings []Finding) string {
	var reasons []string
	names := make(map[string][]string)
	n := 0
	for _, f := range findings {
		if f.Skipped == "" {
			continue
		}
		n++
		if names[f.Skipped] == nil {
			reasons = append(reasons, f.Skipped)
		}
		names[f.Skipped] = append(names[f.Skipped], f.Property)
	}
	if n == 0 {
		return ""
	}
	text := fmt.Sprintf("skipped as declared, %d of %d:", n, len(findings))
	for _, reason := range reasons {
		text += fmt.Sprintf("\n\t%s\n\t\t%s", reason, strings.Join(names[reason], ", "))
	}
	return text
}

// Finding is what [Examine] saw of one property.
type Finding struct {
	// Property is its name.
	Property string
	// Failures are the messages of its failures, none if it holds.
	Failures []string
	// Skipped is the reason that it was skipped for, "" if it was not.
	Skipped string
}

// Examine checks every property, or only the named ones, without failing t, and
// returns what it saw. It is for a guard with a deliberate defect. newHarness gets
// the real t, so that what it fails is not taken for the guard's defect. What is
// wrong with the harness itself, or with a name, fails t.
func Examine(t *testing.T, newHarness func(t *testing.T) Harness, properties ...string) []Finding {
	t.Helper()
	chosen, err := named(properties)
	if err != nil {
		t.Fatalf("guardtest: %v", err)
	}
	var findings []Finding
	for _, p := range chosen {
		h := newHarness(t)
		if err := h.validate(); err != nil {
			t.Fatalf("the harness: %v", err)
		}
		f := Finding{Property: p.Name, Skipped: p.Skip(h)}
		if f.Skipped == "" {
			f.Failures = record(t, p, h)
		}
		findings = append(findings, f)
	}
	return findings
}

// named returns the properties of these names, or all if there are none. A name
// that is passed over would be a defect that nothing has looked for.
func named(names []string) ([]Property, error) {
	all := Properties()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Property
	known := make([]string, 0, len(all))
	for _, p := range all {
		known = append(known, p.Name)
		if slices.Contains(names, p.Name) {
			chosen = append(chosen, p)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no property %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// record runs the check in a goroutine, which Fatalf ends, as package testing
// does.
func record(t *testing.T, p Property, h Harness) []string {
	r := &recorder{T: t, name: t.Name() + "/" + p.Name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				r.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		p.Check(r, h)
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures
}

// recorder keeps failures to itself and leaves the rest to the real test.
type recorder struct {
	*testing.T
	name string

	mu       sync.Mutex
	failures []string
}

var _ TB = (*recorder)(nil)

func (r *recorder) Name() string { return r.name }

func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}
