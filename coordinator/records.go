package coordinator

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// format is the number that every record carries. A record with a larger one
// was written by a version that knows more than this one, which must not act
// on it. Fields may be added under the same number: unknown ones are ignored.
const format = 1

// epochRecord is the value of the epoch key. 64-bit numbers are strings in it,
// for readers to whom every JSON number is a double.
type epochRecord struct {
	Format int `json:"format"`
	// Epoch counts recoveries from a backup.
	Epoch uint16 `json:"epoch"`
	// Cluster is the cluster ID in hexadecimal.
	Cluster string `json:"cluster"`
	// RaftIndex is the anchor: the raft index that a member showed just before
	// this record was written. In one life of a cluster, index minus revision
	// never falls.
	RaftIndex uint64    `json:"raft_index,string"`
	By        string    `json:"by"`
	At        time.Time `json:"at"`
}

// sessionRecord is the value of a session key.
type sessionRecord struct {
	Format   int       `json:"format"`
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
}

// lockRecord is the value of a lock key.
type lockRecord struct {
	Format   int       `json:"format"`
	Identity string    `json:"identity"`
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since"`
	Value    []byte    `json:"value,omitempty"`
}

// evictionRecord is the value of an eviction, which lies on the lease of the
// evicted grant and tells its holder.
type evictionRecord struct {
	Format int       `json:"format"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

func encode(record any) string {
	b, err := json.Marshal(record)
	if err != nil {
		panic(err) // our own structs of strings and numbers
	}
	return string(b)
}

// decodeEpoch reads an epoch record, which decides what tokens are issued: what
// cannot be read for certain is refused.
func decodeEpoch(kv *mvccpb.KeyValue) (epochRecord, error) {
	var r epochRecord
	if err := json.Unmarshal(kv.Value, &r); err != nil {
		return r, fmt.Errorf("%w: %s: %w", ErrFormat, kv.Key, err)
	}
	if r.Format < 1 {
		return r, fmt.Errorf("%w: %s has no format number: it is damaged, or not an epoch record", ErrFormat, kv.Key)
	}
	if r.Format > format {
		return r, fmt.Errorf("%w: %s has format %d, this version knows up to %d: use a newer version", ErrFormat, kv.Key, r.Format, format)
	}
	if r.Epoch > revisionfence.MaxEpoch {
		return r, fmt.Errorf("%w: %s has epoch %d, at most %d is possible", ErrFormat, kv.Key, r.Epoch, revisionfence.MaxEpoch)
	}
	return r, nil
}

// Holder is who holds a lock, for people. Nothing may be decided by it: by the
// time it is read it may be somebody else.
type Holder struct {
	// Token is the token of the grant. It is zero if the key in etcd was not
	// made by this package.
	Token revisionfence.Token
	// Key is the lock key in etcd.
	Key string
	// Lease is the lease that the key is attached to; 0 means none: such a key
	// stays until somebody deletes it.
	Lease clientv3.LeaseID
	// Identity is how the holder's process calls itself, "" if it is not known.
	Identity string
	// Reason is what the holder said that it needs the lock for.
	Reason string
	// Since is when the holder entered the queue, by its own clock.
	Since time.Time
	// Value is what the holder published with [Value] or [Grant.SetValue]. It is nil
	// if the holder published nothing, and if the key was not made by this package:
	// what other programs write into theirs is not looked at.
	Value []byte
}

// IsZero reports whether nobody is known to hold the lock.
func (h Holder) IsZero() bool { return h.Key == "" }

// String describes the holder in one line.
func (h Holder) String() string {
	if h.IsZero() {
		return "nobody"
	}
	var b strings.Builder
	if h.Identity == "" {
		fmt.Fprintf(&b, "a program that is not etcd-fence (key %q)", h.Key)
	} else {
		fmt.Fprintf(&b, "%s", h.Identity)
	}
	if !h.Token.IsZero() {
		fmt.Fprintf(&b, " with token %s", h.Token)
	}
	if !h.Since.IsZero() {
		fmt.Fprintf(&b, ", queued since %s", h.Since.UTC().Format(time.RFC3339))
	}
	if h.Reason != "" {
		fmt.Fprintf(&b, " (%s)", h.Reason)
	}
	if h.Lease == 0 {
		b.WriteString(", on no lease: it stays until somebody deletes it")
	}
	return b.String()
}

// checkFormat refuses a lock key whose record only a newer version understands.
// A key that is not ours at all is none.
func checkFormat(kv *mvccpb.KeyValue) error {
	var r struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(kv.Value, &r) == nil && r.Format > format && hasOurForm(kv) {
		return fmt.Errorf("%w: %s has format %d, this version knows up to %d: use a newer version", ErrFormat, kv.Key, r.Format, format)
	}
	return nil
}

// hasOurForm reports whether a lock key is named as this package names them.
func hasOurForm(kv *mvccpb.KeyValue) bool {
	return strings.HasPrefix(leaf(string(kv.Key)), leaseHex(clientv3.LeaseID(kv.Lease))+"-")
}

// holderOf reads a lock key. It never fails: a key that is not ours still holds
// the lock. One of a newer version is read as far as that goes, for people.
func holderOf(lock string, epoch uint16, kv *mvccpb.KeyValue) Holder {
	h := Holder{Key: string(kv.Key), Lease: clientv3.LeaseID(kv.Lease)}
	if !hasOurForm(kv) {
		return h
	}
	var r lockRecord
	if json.Unmarshal(kv.Value, &r) != nil || r.Format < 1 {
		return h
	}
	h.Identity, h.Reason, h.Since, h.Value = r.Identity, r.Reason, r.Since, r.Value
	// A revision that is out of a token's bounds leaves the token zero: this
	// is for people only.
	h.Token, _ = revisionfence.FromKey(lock, epoch, kv)
	return h
}
