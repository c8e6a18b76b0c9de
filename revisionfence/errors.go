package revisionfence

import "errors"

var (
	// ErrInvalidName is a lock name that is empty, too long, not UTF-8, or has
	// control characters.
	ErrInvalidName = errors.New("invalid lock name")
	// ErrOutOfRange is an epoch or revision outside of the bounds of a token.
	ErrOutOfRange = errors.New("token out of range")
	// ErrMalformed is a text that [Token.String] cannot have written.
	ErrMalformed = errors.New("malformed token")
	// ErrNoToken is the zero Token where a token is needed.
	ErrNoToken = errors.New("no fencing token")
	// ErrDifferentLocks is a comparison of tokens of two locks.
	ErrDifferentLocks = errors.New("tokens of different locks have no order")
)
