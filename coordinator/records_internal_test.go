package coordinator

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file. What etcd holds is read by other versions of this
// package: a change here is a change of format.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s has changed:\n%s\nwant:\n%s", name, got, want)
	}
}

func TestKeysAreGolden(t *testing.T) {
	t.Parallel()
	l := layout{prefix: DefaultPrefix}
	const lease = 0x694d77aa9e38260f
	keys := []string{l.epoch(), l.sessions(), l.session(lease), l.locks(), l.marks(), l.ops(), l.floors()}
	for _, lock := range []string{
		"orders", "orders/42", "orders/", "a b", "100%", "%2F", "..", ".", "/", "//",
		"\u00e9", "e\u0301", "\U0001f512", "$&+=:@", ";,?#", "~-_.", "'()*!\"<>[]{}|\\^`",
	} {
		keys = append(keys, lockKey(l.directory(lock), lease, 1))
	}
	keys = append(keys, lockKey(l.directory("serial"), 1, 18446744073709551615))
	golden(t, "keys.golden", strings.Join(keys, "\n")+"\n")
}

func TestRecordsAreGolden(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 9, 30, 0, 123456789, time.UTC)
	records := []string{
		// 64-bit numbers must survive a reader to whom a number is a double.
		encode(epochRecord{Format: format, Epoch: 2, Cluster: clusterHex(0xfffffffffffffff1), RaftIndex: 1<<53 + 1, By: "host:1", At: at}),
		encode(sessionRecord{Format: format, Identity: "host:1", Since: at}),
		encode(lockRecord{Format: format, Identity: "host:1", Reason: "nightly <report>", Since: at}),
		encode(lockRecord{Format: format, Identity: "host:1", Since: at}),
	}
	golden(t, "records.golden", strings.Join(records, "\n")+"\n")
}

func TestEpochRecordIsReadOrRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value string
		epoch uint16
		err   error
	}{
		"as written":      {`{"format":1,"epoch":7,"cluster":"2a","raft_index":"9007199254740993","by":"x","at":"2026-12-01T00:00:00Z"}`, 7, nil},
		"unknown fields":  {`{"format":1,"epoch":7,"cluster":"2a","raft_index":"1","by":"x","at":"2026-12-01T00:00:00Z","later":{"a":1}}`, 7, nil},
		"a newer format":  {`{"format":2,"epoch":7}`, 0, ErrFormat},
		"no format":       {`{"epoch":7}`, 0, ErrFormat},
		"empty":           {``, 0, ErrFormat},
		"not JSON":        {`epoch 7`, 0, ErrFormat},
		"cut off":         {`{"format":1,"epoch":7`, 0, ErrFormat},
		"negative epoch":  {`{"format":1,"epoch":-1}`, 0, ErrFormat},
		"epoch too large": {`{"format":1,"epoch":32768}`, 0, ErrFormat},
		"epoch no number": {`{"format":1,"epoch":"7"}`, 0, ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeEpoch(&mvccpb.KeyValue{Key: []byte("/etcd-fence/epoch"), Value: []byte(test.value)})
			if !errors.Is(err, test.err) {
				t.Fatalf("%v, want %v", err, test.err)
			}
			if err != nil && !strings.Contains(err.Error(), "/etcd-fence/epoch") {
				t.Errorf("the error does not name the key: %v", err)
			}
			if err == nil && (got.Epoch != test.epoch || got.Cluster != "2a") {
				t.Errorf("read %+v", got)
			}
		})
	}
}

// A key that is not ours, or that we cannot read, still holds the lock.
func TestHolderOfAnyKey(t *testing.T) {
	t.Parallel()
	const record = `{"format":1,"identity":"host:1","reason":"why","since":"2026-12-01T00:00:00Z"}`
	for name, test := range map[string]struct {
		kv       *mvccpb.KeyValue
		identity string
		token    string
		says     string
	}{
		"ours":             {&mvccpb.KeyValue{Key: []byte("d/2a-1"), Lease: 42, CreateRevision: 7, Value: []byte(record)}, "host:1", "7@orders", "host:1 with token 7@orders"},
		"a newer format":   {&mvccpb.KeyValue{Key: []byte("d/2a-1"), Lease: 42, CreateRevision: 7, Value: []byte(strings.Replace(record, "1", "9", 1))}, "host:1", "7@orders", "host:1"},
		"concurrency":      {&mvccpb.KeyValue{Key: []byte("d/2a"), Lease: 42, CreateRevision: 7}, "", "", "not etcd-fence"},
		"another lease":    {&mvccpb.KeyValue{Key: []byte("d/2b-1"), Lease: 42, CreateRevision: 7, Value: []byte(record)}, "", "", "not etcd-fence"},
		"no lease":         {&mvccpb.KeyValue{Key: []byte("d/x"), CreateRevision: 7, Value: []byte(record)}, "", "", "until somebody deletes it"},
		"not JSON":         {&mvccpb.KeyValue{Key: []byte("d/2a-1"), Lease: 42, CreateRevision: 7, Value: []byte("{")}, "", "", "not etcd-fence"},
		"revision too big": {&mvccpb.KeyValue{Key: []byte("d/2a-1"), Lease: 42, CreateRevision: 1 << 50, Value: []byte(record)}, "host:1", "", "host:1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := holderOf("orders", 0, test.kv)
			if h.IsZero() || h.Key != string(test.kv.Key) || h.Identity != test.identity || h.Token.String() != test.token || !strings.Contains(h.String(), test.says) {
				t.Errorf("%+v, %q", h, h)
			}
		})
	}
	if h := (Holder{}); !h.IsZero() || h.String() != "nobody" {
		t.Errorf("the zero holder is %q", h)
	}
}

func TestOnlyOurOwnKeysAreOurs(t *testing.T) {
	t.Parallel()
	l := layout{prefix: DefaultPrefix}
	for key, ours := range map[string]bool{
		l.directory("orders") + "2a-1":      true,
		l.directory("a/b") + "2a-12":        true,
		l.directory("orders") + "2a":        false, // concurrency.Mutex
		l.directory("orders") + "2a-":       false,
		l.directory("orders") + "2a-01":     false,
		l.directory("orders") + "2a-+1":     false,
		l.directory("orders") + "2a-x":      false,
		l.directory("orders") + "2b-1":      false,
		l.directory("orders") + "deep/2a-1": false,
		l.session(42) + "-1":                false,
		"elsewhere/2a-1":                    false,
	} {
		if _, is := l.isLockKeyOf(42, key); is != ours {
			t.Errorf("%s: ours is %v, want %v", key, !ours, ours)
		}
	}
}
