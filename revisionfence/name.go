package revisionfence

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// CheckName reports whether a lock may have this name: 1 to [MaxLockName] bytes
// of valid UTF-8 without control characters. Names are compared byte by byte:
// the two normal forms of "é" are two locks, as are "foo" and "foo/". The error
// is an [ErrInvalidName] that says what is wrong.
func CheckName(lock string) error {
	switch {
	case lock == "":
		return fmt.Errorf("%w: empty", ErrInvalidName)
	case len(lock) > MaxLockName:
		return fmt.Errorf("%w: %d bytes long, at most %d are allowed: %s", ErrInvalidName, len(lock), MaxLockName, abbreviate(lock))
	case !utf8.ValidString(lock):
		return fmt.Errorf("%w: not valid UTF-8: %s", ErrInvalidName, abbreviate(lock))
	}
	for i, r := range lock {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: control character %U at byte %d: %s", ErrInvalidName, r, i, abbreviate(lock))
		}
	}
	return nil
}
