package revisionfence

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
)

// Bounds of a token. They are what lets epoch and revision share one signed
// 64-bit number, which is the widest integer every resource can store.
const (
	// MaxEpoch is the largest epoch: 15 bits.
	MaxEpoch = math.MaxInt16
	// MaxRevision is the largest revision: 48 bits. An etcd that writes 10,000
	// revisions a second reaches it after 890 years.
	MaxRevision = 1<<revisionBits - 1
	// MaxLockName is the longest lock name, in bytes.
	MaxLockName = 1024

	revisionBits = 48
)

// Token is the fencing token of one grant of one lock.
//
// Two Tokens are == exactly when they are the token of the same grant. The zero
// Token is none: it is refused wherever a token is presented. Every other Token
// that exists is valid, because every way to make one checks its bounds.
type Token struct {
	lock string
	n    int64 // epoch<<48 | revision; 0 only in the zero Token
}

// New makes a token from its parts: the lock's name (1 to [MaxLockName] bytes of
// valid UTF-8 without control characters), the epoch (0 to [MaxEpoch]) and the
// create revision of the lock key (1 to [MaxRevision]).
//
// It fails with [ErrInvalidName] or [ErrOutOfRange].
func New(lock string, epoch uint16, revision int64) (Token, error) {
	if err := CheckName(lock); err != nil {
		return Token{}, err
	}
	if epoch > MaxEpoch {
		return Token{}, fmt.Errorf("%w: epoch %d is larger than %d", ErrOutOfRange, epoch, MaxEpoch)
	}
	if revision < 1 || revision > MaxRevision {
		return Token{}, fmt.Errorf("%w: revision %d is not in 1 … %d", ErrOutOfRange, revision, int64(MaxRevision))
	}
	return Token{lock: lock, n: int64(epoch)<<revisionBits | revision}, nil
}

// FromKey makes the token of a grant from the lock key as etcd returned it,
// usually an *mvccpb.KeyValue. It reads the key's create revision and nothing
// else: not its mod revision, which changes when the value does, and not the
// revision in a response header, which belongs to the store.
func FromKey(lock string, epoch uint16, kv interface{ GetCreateRevision() int64 }) (Token, error) {
	if kv == nil {
		return Token{}, fmt.Errorf("%w: no lock key given", ErrOutOfRange)
	}
	return New(lock, epoch, kv.GetCreateRevision())
}

// FromInt64 is the inverse of [Token.Int64] for a resource that stores the
// number alone and knows which lock guards it.
func FromInt64(lock string, n int64) (Token, error) {
	if n < 0 {
		return Token{}, fmt.Errorf("%w: %d is negative", ErrOutOfRange, n)
	}
	return New(lock, uint16(n>>revisionBits), n&MaxRevision)
}

// Lock is the name of the lock that the token belongs to.
func (t Token) Lock() string { return t.lock }

// Epoch counts how often the authority was recovered from a backup.
func (t Token) Epoch() uint16 { return uint16(t.n >> revisionBits) }

// Revision is the create revision of the lock key.
func (t Token) Revision() int64 { return t.n & MaxRevision }

// IsZero reports whether t is the zero Token, which is no token.
func (t Token) IsZero() bool { return t == Token{} }

// Token returns t, so that a Token is its own [Source].
func (t Token) Token() Token { return t }

// Int64 is the one number that a resource stores: epoch<<48 | revision. Its
// order is the order of grants. It is positive, and equals [Token.Revision]
// while the epoch is 0. The zero Token gives 0.
func (t Token) Int64() int64 { return t.n }

// SortKey is [Token.Int64] as 16 lower-case hexadecimal digits, for stores that
// compare bytes: their order is the order of grants. (Decimal is not: "10"
// sorts before "9".)
func (t Token) SortKey() string {
	var b [16]byte
	for i, n := len(b)-1, t.n; i >= 0; i, n = i-1, n>>4 {
		b[i] = lowerHex[n&15]
	}
	return string(b[:])
}

// Compare orders two grants of one lock: -1 if t was granted before u, 0 if they
// are the same grant, +1 if t was granted after u. Tokens of different locks
// have no order, however their numbers compare: [ErrDifferentLocks]. So has the
// zero Token: [ErrNoToken].
func (t Token) Compare(u Token) (int, error) {
	switch {
	case t.IsZero() || u.IsZero():
		return 0, fmt.Errorf("compare %q with %q: %w", t, u, ErrNoToken)
	case t.lock != u.lock:
		return 0, fmt.Errorf("compare %q with %q: %w", t, u, ErrDifferentLocks)
	}
	return cmp.Compare(t.n, u.n), nil
}

// String is the text form: "12345@orders/42", or "2:12345@orders/42" once the
// epoch is not 0. It is printable ASCII without spaces; other bytes of the lock
// name, and "%", are percent-encoded. The zero Token gives "".
func (t Token) String() string {
	if t.IsZero() {
		return ""
	}
	var buf [128]byte // most tokens fit, and then only the string is allocated
	b := buf[:0]
	if e := t.Epoch(); e != 0 {
		b = strconv.AppendUint(b, uint64(e), 10)
		b = append(b, ':')
	}
	b = strconv.AppendInt(b, t.Revision(), 10)
	b = append(b, '@')
	return string(appendEncoded(b, t.lock))
}
