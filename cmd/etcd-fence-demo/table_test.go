package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// history writes into etcd what an act of the story leaves there, without
// workers and leases, so that it can be made to go wrong.
type history struct {
	t      *testing.T
	client *clientv3.Client
	*act
}

func (h history) put(key, value string) int64 {
	h.t.Helper()
	resp, err := h.client.Put(h.t.Context(), key, value)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.Header.Revision
}

func (h history) remove(key string) int64 {
	h.t.Helper()
	resp, err := h.client.Delete(h.t.Context(), key)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.Header.Revision
}

func (h history) grant(key string) grant {
	h.t.Helper()
	token, err := revisionfence.New(lockName, 0, h.put(key, ""))
	if err != nil {
		h.t.Fatal(err)
	}
	return grant{key, token}
}

// write writes the act. Its late write is stored if stale says so.
func (h history) write(stale bool) {
	h.afterSeed = h.put(h.key, stockAtFirst)
	h.grantA = h.grant("/locks/x/" + h.title + "-A")
	h.grantB = h.grant("/locks/x/" + h.title + "-B")
	h.remove(h.grantA.key)
	h.afterB = h.put(h.key, writtenByB)
	h.afterLate = h.afterB
	h.late = answer{Got: gotRefused, Presented: h.grantA.token, Accepted: h.grantB.token}
	if stale {
		h.afterLate = h.put(h.key, writtenLate)
		h.late = answer{Got: gotWritten, Revision: h.afterLate}
	}
	h.afterAgain = h.put(h.key, writtenAgain)
	h.lateRelease = answer{Got: gotNotHeld}
	h.afterRelease = h.afterAgain
}

// The table is the judge of the demo, so it has to find whatever can go wrong,
// first of all the stale write that a broken guard has let through.
func TestTheTableFindsWhatIsWrong(t *testing.T) {
	etcd := embedded.Start(t, nil)
	for _, c := range []struct {
		name   string
		change func(h history) // of the act through the guard; nil is to let the stale write through
		wrong  []string
	}{
		{"nothing", func(history) {}, nil},
		{"a stale write is stored", nil,
			[]string{"after A's late write", "writes that etcd stored", "answer to A's late write"}},
		{"a stale write is stored and reported as refused", func(h history) {
			h.afterLate = h.put(h.key, writtenLate)
			h.afterAgain = h.put(h.key, writtenAgain)
		}, []string{"after A's late write", "writes that etcd stored"}},
		{"a stale write is stored unnoticed between two looks", func(h history) {
			h.put(h.key, writtenLate)
			h.afterAgain = h.put(h.key, writtenAgain)
		}, []string{"writes that etcd stored"}},
		{"nothing is stored and the write was reported as accepted", func(h history) {
			h.late = answer{Got: gotWritten, Revision: h.afterB}
		}, []string{"answer to A's late write"}},
		{"the refusal names another token", func(h history) {
			h.late.Accepted = h.late.Presented
		}, []string{"answer to A's late write"}},
		{"the late release has freed the lock", func(h history) {
			h.lateRelease = answer{Got: gotReleased}
			h.afterRelease = h.remove(h.grantB.key)
		}, []string{"A's late release", "holder of the lock now"}},
		{"the late release was refused and has freed the lock", func(h history) {
			h.afterRelease = h.remove(h.grantB.key)
		}, []string{"A's late release", "holder of the lock now"}},
		{"the value is gone", func(h history) { h.remove(h.key) },
			[]string{"writes that etcd stored"}},
		{"tokens that fall", func(h history) { h.grantA, h.grantB = h.grantB, h.grantA },
			[]string{"answer to A's late write", "A's late release", "holder of the lock now", "granted to A, B, A, B"}},
		{"a token that etcd never issued", func(h history) { h.grantA.key += "?" },
			[]string{"answer to A's late write", "granted to A, B, A, B"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := etcd.Client()
			unguarded := history{t, client, &act{title: c.name + "1", key: c.name + "/unguarded"}}
			unguarded.write(true)
			unguarded.remove(unguarded.grantB.key)
			guarded := history{t, client, &act{title: c.name + "2", key: c.name + "/guarded", fenced: true}}
			guarded.write(c.change == nil)
			if c.change != nil {
				c.change(guarded)
			}
			defer guarded.remove(guarded.grantB.key)
			defer guarded.remove(guarded.grantA.key)

			table, err := readBack(t.Context(), client, []*act{unguarded.act, guarded.act})
			if err != nil {
				t.Fatal(err)
			}
			var wrong []string
			for _, p := range table.parts {
				for _, r := range p.rows {
					if !r.right {
						wrong = append(wrong, r.what)
					}
				}
			}
			var out bytes.Buffer
			ok := table.print(&out, style{})
			if diff := cmp.Diff(c.wrong, wrong); diff != "" {
				t.Errorf("wrong rows (-want +got):\n%s\n%s", diff, &out)
			}
			if ok != (len(c.wrong) == 0) || strings.Count(out.String(), "WRONG\n") != len(c.wrong) {
				t.Errorf("ok is %v:\n%s", ok, &out)
			}
		})
	}
}

// A history that etcd has thrown away proves nothing.
func TestTheTableNeedsHistory(t *testing.T) {
	client := embedded.Start(t, nil).Client()
	h := history{t, client, &act{title: "act", key: "stock", fenced: true}}
	h.write(false)
	if _, err := client.Compact(t.Context(), h.afterAgain); err != nil {
		t.Fatal(err)
	}
	if _, err := readBack(t.Context(), client, []*act{h.act}); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Error(err)
	}
}
