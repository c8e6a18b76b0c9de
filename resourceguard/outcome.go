package resourceguard

import "slices"

// Outcome says whether a call took effect, which after an error is not always
// known.
type Outcome int

const (
	// Unknown is a call that may have taken effect, or may still do so: the
	// answer was lost. Repeat it under the same operation ID, or acquire the lock
	// again and read; to repeat it without an ID can apply it twice.
	Unknown Outcome = iota
	// NotApplied is a call that changed nothing and will not.
	NotApplied
	// Applied is a call that took effect.
	Applied
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case NotApplied:
		return "not applied"
	case Applied:
		return "applied"
	case Unknown:
	}
	return "unknown"
}

// OutcomeOf returns the outcome of the call that returned err.
//
// No error is [Applied]. Otherwise the first error in the chain that has a method
// Outcome() Outcome decides, as those of [WithOutcome] and [*StaleError] do, or
// that is one of the refusals of this package or [errors.ErrUnsupported], which
// are [NotApplied]. Where an
// error wraps several, those that say nothing are passed over and the others must
// agree. Everything else is [Unknown], a context's error included: the caller's
// patience ended, not necessarily the write.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Applied
	}
	o, _ := outcomeOf(err)
	return o
}

// outcomeOf also reports whether err says anything about its outcome.
func outcomeOf(err error) (Outcome, bool) {
	if e, ok := err.(interface{ Outcome() Outcome }); ok {
		return e.Outcome(), true
	}
	if slices.Contains(refusals, err) {
		return NotApplied, true
	}
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return outcomeOf(inner)
		}
	case interface{ Unwrap() []error }:
		return agreed(e.Unwrap())
	}
	return Unknown, false
}

func agreed(errs []error) (Outcome, bool) {
	result, said := Unknown, false
	for _, err := range errs {
		if err == nil {
			continue
		}
		o, ok := outcomeOf(err)
		switch {
		case !ok:
		case !said:
			result, said = o, true
		case o != result:
			return Unknown, true
		}
	}
	return result, said
}

// WithOutcome attaches an outcome to an error, for [OutcomeOf] to find. A guard
// does so with every error of its backend, in one function, also where the
// outcome is [Unknown]. The message stays as it is and errors.Is and errors.As
// look through. A nil err stays nil.
func WithOutcome(err error, o Outcome) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, outcome: o}
}

type outcomeError struct {
	err     error
	outcome Outcome
}

func (e *outcomeError) Error() string    { return e.err.Error() }
func (e *outcomeError) Unwrap() error    { return e.err }
func (e *outcomeError) Outcome() Outcome { return e.outcome }
