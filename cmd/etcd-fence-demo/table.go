package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// table compares what must be in etcd with what is.
type table struct{ parts []part }

type part struct {
	title string
	rows  []row
}

type row struct {
	what      string
	want, got string
	right     bool
}

// reader reads etcd back. The first error makes all further reads void.
type reader struct {
	ctx    context.Context
	client *clientv3.Client
	err    error
}

// readBack makes the table. Values, revisions, tokens and holders are read from
// etcd, which keeps its history: at the revisions at which it stood after each
// step. Of the workers' own reports only two are used, that a write and a release
// were refused, since a refusal leaves no trace; and that they changed nothing is
// read from etcd again.
func readBack(ctx context.Context, client *clientv3.Client, acts []*act) (*table, error) {
	ctx, cancel := context.WithTimeout(ctx, eraseTimeout)
	defer cancel()
	r := &reader{ctx: ctx, client: client}
	t := new(table)
	for _, a := range acts {
		t.parts = append(t.parts, r.part(a))
	}
	t.parts = append(t.parts, part{"Tokens", []row{r.tokens(acts)}})
	if errors.Is(r.err, rpctypes.ErrCompacted) {
		return nil, errors.New("etcd has compacted the history of this run, so nothing can be read back; run it again")
	}
	return t, r.err
}

// part has the same rows for both tellings, so that the eye finds the one that
// differs.
func (r *reader) part(a *act) part {
	afterLate, stored := writtenLate, "4"
	title := "Without a fence"
	if a.fenced {
		afterLate, stored = writtenByB, "3"
		title = "Through the guard"
	}
	rows := []row{
		r.value("stock at first", a, a.afterSeed, stockAtFirst),
		r.value("after B's write", a, a.afterB, writtenByB),
		r.value("after A's late write", a, a.afterLate, afterLate),
		r.value("after B's second write", a, a.afterAgain, writtenAgain),
		r.writes(a, stored),
		r.lateWrite(a),
		r.lateRelease(a),
	}
	if a.fenced {
		rows = append(rows, r.holder("holder of the lock now", a, 0))
	} else {
		rows = append(rows, r.holder("holder at A's late write", a, a.afterLate))
	}
	return part{title, rows}
}

// get reads a key at a revision; 0 is now.
func (r *reader) get(key string, revision int64, opts ...clientv3.OpOption) *mvccpb.KeyValue {
	if r.err != nil {
		return nil
	}
	resp, err := r.client.Get(r.ctx, key, append(opts, clientv3.WithRev(revision))...)
	if err != nil {
		r.err = err
		return nil
	}
	if len(resp.Kvs) == 0 {
		return nil
	}
	return resp.Kvs[0]
}

// value reads what the key held at a revision.
func (r *reader) value(what string, a *act, revision int64, want string) row {
	kv := r.get(a.key, revision)
	if kv == nil {
		return row{what, want, "no such key", false}
	}
	got := string(kv.Value)
	return row{what, want, fmt.Sprintf("%s, mod revision %d", got, kv.ModRevision), got == want}
}

// writes counts all writes to the key, so that none can have come in between.
func (r *reader) writes(a *act, want string) row {
	const what = "writes that etcd stored"
	kv := r.get(a.key, 0)
	if kv == nil {
		return row{what, want, "no such key", false}
	}
	got := fmt.Sprint(kv.Version)
	return row{what, want, got, got == want}
}

// lateWrite judges the answer that A got. That it was refused is not enough: it
// must be for the right reason.
func (r *reader) lateWrite(a *act) row {
	const what = "answer to A's late write"
	got := fmt.Sprintf("stored, revision %d", a.late.Revision)
	if !a.fenced {
		return row{what, "stored", got, a.late.Got == gotWritten}
	}
	if a.late.Got == gotRefused {
		presented, accepted := a.late.Presented, a.late.Accepted
		order, err := presented.Compare(accepted)
		got = fmt.Sprintf("refused, %d is older than %d", presented.Revision(), accepted.Revision())
		// Both tokens of the refusal must be those that etcd's own history has.
		right := err == nil && order < 0 && presented.Revision() == r.token(a.grantA) && accepted.Revision() == r.token(a.grantB)
		return row{what, "refused", got, right}
	}
	return row{what, "refused", got, false}
}

// lateRelease judges the answer that A got, and looks whether the lock is still
// B's.
func (r *reader) lateRelease(a *act) row {
	const what = "A's late release"
	held := r.owner(a, a.afterRelease) == a.grantB
	got := "refused"
	if a.lateRelease.Got != gotNotHeld {
		got = "done"
	}
	if held {
		got += ", B keeps the lock"
	} else {
		got += ", B has lost the lock"
	}
	return row{what, "refused", got, a.lateRelease.Got == gotNotHeld && held}
}

// holder names who held the lock at a revision, which must be B: the old value of
// the first telling was written under the eyes of the new owner.
func (r *reader) holder(what string, a *act, revision int64) row {
	got := "nobody"
	owner := r.owner(a, revision)
	switch owner {
	case grant{}:
	case a.grantA:
		got = fmt.Sprintf("A, token %s", owner.token)
	case a.grantB:
		got = fmt.Sprintf("B, token %s", owner.token)
	default:
		got = owner.key
	}
	return row{what, "B", got, owner == a.grantB}
}

// owner finds who held the lock at a revision: the first key in the directory of
// the lock, by its create revision. That revision is the token.
func (r *reader) owner(a *act, revision int64) grant {
	directory := a.grantB.key[:strings.LastIndexByte(a.grantB.key, '/')+1]
	kv := r.get(directory, revision, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))
	if kv == nil {
		return grant{}
	}
	for _, g := range []grant{a.grantA, a.grantB} {
		if g.key == string(kv.Key) && g.token.Revision() == kv.CreateRevision {
			return g
		}
	}
	return grant{key: string(kv.Key)}
}

// token reads the token of a grant from etcd's history: the create revision that
// its lock key had when it was made. 0 means that there was no such key.
func (r *reader) token(g grant) int64 {
	kv := r.get(g.key, g.token.Revision())
	if kv == nil {
		return 0
	}
	return kv.CreateRevision
}

// tokens lists the grants of the whole run in the order in which they were made.
func (r *reader) tokens(acts []*act) row {
	var texts []string
	right, last := true, int64(0)
	for _, a := range acts {
		for _, g := range []grant{a.grantA, a.grantB} {
			token := r.token(g)
			texts = append(texts, fmt.Sprint(token))
			right = right && token > last
			last = token
		}
	}
	return row{"granted to A, B, A, B", "rising", strings.Join(texts, ", "), right}
}

// right reports whether all rows are.
func (t *table) right() bool {
	for _, p := range t.parts {
		for _, r := range p.rows {
			if !r.right {
				return false
			}
		}
	}
	return true
}

// print prints the table and the verdict, and reports whether all rows are right.
func (t *table) print(w io.Writer, s style) bool {
	const what, want, got = 27, 11, 33
	fmt.Fprintf(w, "\n%s\n", s.paint(bold, "What etcd has stored, read back from it"))
	fmt.Fprintf(w, "\n  %s%s%s\n", pad("", what), s.paint(faint, pad("expected", want)), s.paint(faint, "got"))
	wrong, rows := 0, 0
	for _, p := range t.parts {
		fmt.Fprintf(w, "  %s\n", s.paint(bold, p.title))
		for _, r := range p.rows {
			rows++
			verdict := s.paint(green, "ok")
			if !r.right {
				wrong++
				verdict = s.paint(red, "WRONG")
			}
			fmt.Fprintf(w, "    %s%s%s%s\n", pad(r.what, what-2), pad(r.want, want), pad(r.got, got), verdict)
		}
	}
	if wrong > 0 {
		fmt.Fprintf(w, "\n%s\n", s.paint(red, fmt.Sprintf("%d of %d rows are WRONG.", wrong, rows)))
		return false
	}
	fmt.Fprintf(w, "\n%s\n", s.paint(green, fmt.Sprintf(
		"All %d rows are right. Without a fence the late write of the paused worker won;\nthrough the guard it was refused.", rows)))
	return true
}
