package resourceguard

import (
	"errors"
	"fmt"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// Stored is what a guard found where it keeps the mark of a resource. The zero
// value is a mark that could not be read, so that a guard which forgets to fill
// it in refuses everything rather than nothing.
type Stored struct {
	mark  revisionfence.Token
	state storedState
	cause error // why the mark is unreadable, when that is known
}

type storedState uint8

const (
	storedUnreadable storedState = iota
	storedNone
	storedMark
)

// NoMark says that the guard looked and that nothing was ever stored for the
// resource. It is for that case alone: a read that failed, an empty column and a
// text that does not parse are not "no mark".
func NoMark() Stored { return Stored{state: storedNone} }

// MarkOf is a mark that the guard read as a token. The zero Token gives an
// unreadable mark.
func MarkOf(t revisionfence.Token) Stored {
	if t.IsZero() {
		return Stored{cause: revisionfence.ErrNoToken}
	}
	return Stored{mark: t, state: storedMark}
}

// ParseMark is a mark that the guard stores as [revisionfence.Token.String]
// wrote it. Any other text, the empty one included, gives an unreadable mark.
func ParseMark(text string) Stored {
	t, err := revisionfence.Parse(text)
	if err != nil {
		return Stored{cause: err}
	}
	return MarkOf(t)
}

// Mark returns the mark and whether there is one. It fails with [ErrCorruptMark]
// if the mark could not be read.
func (s Stored) Mark() (revisionfence.Token, bool, error) {
	switch s.state {
	case storedNone:
		return revisionfence.Token{}, false, nil
	case storedMark:
		return s.mark, true, nil
	case storedUnreadable:
	}
	return revisionfence.Token{}, false, s.corrupt()
}

func (s Stored) corrupt() error {
	cause := s.cause
	if cause == nil {
		cause = errors.New("it was not read")
	}
	return fmt.Errorf("%w: %w", ErrCorruptMark, cause)
}
