package revisionfence

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	upperHex = "0123456789ABCDEF"
	lowerHex = "0123456789abcdef"
)

// plain reports whether a byte of a lock name stands for itself in the text
// form. Everything else is escaped, so that a token survives a header, an
// environment variable, an annotation and a log line unchanged.
func plain(c byte) bool { return '!' <= c && c <= '~' && c != '%' }

func appendEncoded(b []byte, lock string) []byte {
	for i := range len(lock) {
		if c := lock[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return b
}

// decode undoes appendEncoded and nothing more: an escape that it would not have
// written is refused, so that one token has one text.
func decode(text string) (string, error) {
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '%' {
			if !plain(c) {
				return "", fmt.Errorf("byte %#02x must be percent-encoded", c)
			}
			b = append(b, c)
			continue
		}
		if i+2 >= len(text) {
			return "", fmt.Errorf("cut off after %q", text[i:])
		}
		hi, lo := strings.IndexByte(upperHex, text[i+1]), strings.IndexByte(upperHex, text[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%q is no escape", text[i:i+3])
		}
		c = byte(hi<<4 | lo)
		if plain(c) {
			return "", fmt.Errorf("%q stands for %q, which is written as it is", text[i:i+3], c)
		}
		b = append(b, c)
		i += 2
	}
	return string(b), nil
}

// maxText bounds what Parse looks at: the longest prefix, and a name of which
// every byte is escaped.
const maxText = len("32767:281474976710655@") + 3*MaxLockName

// Parse reads exactly what [Token.String] writes, and refuses everything else
// with [ErrMalformed]: no leading zeros, signs, spaces or needless escapes, and
// not the empty text, which is what the zero Token writes.
func Parse(text string) (Token, error) {
	t, err := parse(text)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %s: %w", ErrMalformed, abbreviate(text), err)
	}
	return t, nil
}

func parse(text string) (Token, error) {
	if len(text) > maxText {
		return Token{}, fmt.Errorf("%d bytes long, at most %d are possible", len(text), maxText)
	}
	head, tail, found := strings.Cut(text, "@")
	if !found {
		return Token{}, fmt.Errorf("want REVISION@LOCK or EPOCH:REVISION@LOCK")
	}
	var epoch uint64
	if e, rest, has := strings.Cut(head, ":"); has {
		var err error
		if epoch, err = number(e); err != nil {
			return Token{}, fmt.Errorf("epoch: %w", err)
		}
		if epoch == 0 {
			return Token{}, fmt.Errorf("epoch 0 is not written")
		}
		head = rest
	}
	revision, err := number(head)
	if err != nil {
		return Token{}, fmt.Errorf("revision: %w", err)
	}
	lock, err := decode(tail)
	if err != nil {
		return Token{}, fmt.Errorf("lock name: %w", err)
	}
	if epoch > MaxEpoch || revision > MaxRevision {
		return Token{}, fmt.Errorf("%w: epoch at most %d, revision at most %d", ErrOutOfRange, MaxEpoch, int64(MaxRevision))
	}
	return New(lock, uint16(epoch), int64(revision))
}

// number reads the decimal form that strconv writes: digits, no sign, no
// leading zero.
func number(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("%s is no number written plainly", abbreviate(s))
	}
	return n, nil
}

// abbreviate quotes s for an error message: input from outside must not flood a
// log or break its lines.
func abbreviate(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

// MarshalText writes [Token.String]: in JSON a token is a string, so that no
// reader rounds it to a double. The zero Token is refused with [ErrNoToken];
// use the omitzero option of encoding/json for a field that may hold none.
func (t Token) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return nil, ErrNoToken
	}
	return []byte(t.String()), nil
}

// UnmarshalText is [Parse].
func (t *Token) UnmarshalText(text []byte) error {
	u, err := Parse(string(text))
	if err != nil {
		return err
	}
	*t = u
	return nil
}
