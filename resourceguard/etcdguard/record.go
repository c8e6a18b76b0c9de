package etcdguard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// What mode HighWater keeps in etcd. The forms are golden: see testdata. Names are
// escaped as those of locks are, so that no two share a prefix.
func (o *Options) marks() string { return o.Prefix + "marks/" }
func (o *Options) ops() string   { return o.Prefix + "ops/" }

func (o *Options) mark(resource string) string { return o.marks() + url.PathEscape(resource) }

func (o *Options) op(resource, id string) string {
	return o.ops() + url.PathEscape(resource) + "/" + url.PathEscape(id)
}

// floor is where the record of one SetFloor stands, so that the records of a
// resource are listed in the order of their times.
func (o *Options) floor(resource string, at time.Time) string {
	return fmt.Sprintf("%sfloors/%s/%020d", o.Prefix, url.PathEscape(resource), at.UnixNano())
}

// mark is what stands in etcd under the key of a mark: the token as its String
// writes it, and after a space the owner, escaped. Neither has a space in it. One
// text for everything lets a single compare of the value cover lock, epoch,
// revision, owner and every kind of damage. A later format has to begin
// differently, and is unreadable here, which refuses.
type mark struct {
	stored resourceguard.Stored
	owner  string // "" if it is not known
	text   string
	mod    int64 // 0 if there is none
}

func markText(t revisionfence.Token, owner string) string {
	if owner == "" {
		return t.String()
	}
	return t.String() + " " + url.PathEscape(owner)
}

func parseMark(text string) (resourceguard.Stored, string) {
	token, escaped, named := strings.Cut(text, " ")
	owner, err := url.PathUnescape(escaped)
	// Exactly what markText writes: an equal mark has one text.
	if named && (err != nil || owner == "" || url.PathEscape(owner) != escaped) {
		return resourceguard.ParseMark(text), "" // unreadable, for the space
	}
	return resourceguard.ParseMark(token), owner
}

func markIn(r *pb.RangeResponse) mark {
	if len(r.GetKvs()) == 0 {
		return mark{stored: resourceguard.NoMark()}
	}
	kv := r.Kvs[0]
	m := mark{text: string(kv.Value), mod: kv.ModRevision}
	m.stored, m.owner = parseMark(m.text)
	return m
}

// token is the mark, or the zero Token.
func (m mark) token() revisionfence.Token {
	t, _, _ := m.stored.Mark()
	return t
}

// recordFormat is the number that the JSON records carry. One with a larger number
// was written by a version that knows more; unknown fields are ignored.
const recordFormat = 1

// operationRecord is the value of an operation's key. The revision that the
// operation was applied at is the key's own.
type operationRecord struct {
	Format int                 `json:"format"`
	Token  revisionfence.Token `json:"token"`
	Digest []byte              `json:"digest,omitempty"`
	// Succeeded is the branch that a transaction took.
	Succeeded bool      `json:"succeeded"`
	At        time.Time `json:"at"` // by the writer's clock
}

// floorRecord is what SetFloor leaves behind.
type floorRecord struct {
	Format int                 `json:"format"`
	Floor  revisionfence.Token `json:"floor"`
	// Before is the text of the mark that was there, "" if there was none, and Cut is
	// how many bytes of it are left out.
	Before string    `json:"before"`
	Cut    int       `json:"cut,omitempty"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// maxBefore is more than the text of a mark can have. What is longer is damage, which
// must not make the record larger than etcd takes: then nothing could repair it.
const maxBefore = 16 << 10

func cutBefore(text string) (before string, cut int) {
	before = text[:min(len(text), maxBefore)]
	return before, len(text) - len(before)
}

func encode(record any) string {
	b, err := json.Marshal(record)
	if err != nil {
		panic(err) // structs of our own, with valid tokens
	}
	return string(b)
}

// saved is an operation that was applied before.
type saved struct {
	operationRecord
	revision int64
}

// savedIn reads the record of an operation; nil if there is none.
func savedIn(r *pb.RangeResponse) (*saved, error) {
	if len(r.GetKvs()) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	return readSaved(r.Kvs[0])
}

func readSaved(kv *mvccpb.KeyValue) (*saved, error) {
	s := &saved{revision: kv.ModRevision}
	if err := json.Unmarshal(kv.Value, &s.operationRecord); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, kv.Key, err)
	}
	if s.Format < 1 || s.Format > recordFormat || s.Token.IsZero() {
		return nil, fmt.Errorf("%w: %s has format %d and token %q, known is format %d", ErrFormat, kv.Key, s.Format, s.Token, recordFormat)
	}
	return s, nil
}
