package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

var errNoMarks = fmt.Errorf("etcdguard: mode Held keeps no marks: %w", errors.ErrUnsupported)

// marksPerPage is small enough for one answer, since a mark may have several
// thousand bytes.
const marksPerPage = 250

// Mark returns the mark of a resource: one linearizable read. In mode Held it fails
// with [errors.ErrUnsupported].
func (g *Guard) Mark(ctx context.Context, resource string) (revisionfence.Mark, bool, error) {
	m := revisionfence.Mark{Resource: resource}
	if g.opts.Mode != HighWater {
		return m, false, notApplied(errNoMarks)
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	resp, err := g.once.Get(ctx, g.opts.mark(resource))
	if err != nil {
		return m, false, what{resource: resource}.failed(err, true)
	}
	var ok bool
	m.Token, ok, err = markIn((*pb.RangeResponse)(resp)).stored.Mark()
	if err != nil {
		return m, false, notApplied(fmt.Errorf("etcdguard: %w", resourceguard.ForResource(resource, err)))
	}
	return m, ok, nil
}

// Marks lists the marks as they were at one moment, by name, a page at a time. Each
// page has Options.Timeout if ctx has no deadline. A compaction past that moment ends
// the listing with an error. In mode Held it yields [errors.ErrUnsupported].
func (g *Guard) Marks(ctx context.Context) iter.Seq2[revisionfence.Mark, error] {
	return func(yield func(revisionfence.Mark, error) bool) {
		if g.opts.Mode != HighWater {
			yield(revisionfence.Mark{}, notApplied(errNoMarks))
			return
		}
		next, end := g.opts.marks(), clientv3.GetPrefixRangeEnd(g.opts.marks())
		for revision, more := int64(0), true; more; {
			resp, err := g.page(ctx, next, end, revision)
			if err != nil {
				yield(revisionfence.Mark{}, fmt.Errorf("etcdguard: marks: %w", notApplied(err)))
				return
			}
			revision, more = resp.Header.Revision, resp.More
			for _, kv := range resp.Kvs {
				if !yield(g.listed(kv)) {
					return
				}
				next = string(kv.Key) + "\x00"
			}
		}
	}
}

func (g *Guard) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	return g.once.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(marksPerPage), clientv3.WithRev(revision))
}

// listed reads one mark of the listing. A key that no resource has is an unreadable
// mark: nobody knows whose.
func (g *Guard) listed(kv *mvccpb.KeyValue) (revisionfence.Mark, error) {
	escaped := strings.TrimPrefix(string(kv.Key), g.opts.marks())
	resource, err := url.PathUnescape(escaped)
	m := revisionfence.Mark{Resource: resource}
	if err != nil || url.PathEscape(resource) != escaped {
		m.Resource = escaped
		err = fmt.Errorf("%w: the key %q is no mark's", resourceguard.ErrCorruptMark, kv.Key)
	} else {
		stored, _ := parseMark(string(kv.Value))
		m.Token, _, err = stored.Mark()
	}
	if err != nil {
		return m, notApplied(fmt.Errorf("etcdguard: %w", resourceguard.ForResource(m.Resource, err)))
	}
	return m, nil
}

// SetFloor raises or repairs the mark of a resource, by the rules of
// [resourceguard.Rule.Floor]; the ceiling is etcd's revision and epoch. It needs no
// grant. In the same transaction the reason is put on record, with the time, the new
// token and the text of the mark that was there (its first 16 KiB, as UTF-8), as JSON
// under <prefix>floors/<resource>/: nothing here ever deletes that.
//
// In mode Held it fails with [errors.ErrUnsupported].
func (g *Guard) SetFloor(ctx context.Context, m revisionfence.Mark, reason string) error {
	if g.opts.Mode != HighWater {
		return notApplied(errNoMarks)
	}
	refused := func(err error) error {
		return notApplied(fmt.Errorf("etcdguard: set floor: %w", resourceguard.ForResource(m.Resource, err)))
	}
	if err := resourceguard.CheckReason(reason); err != nil {
		return refused(err)
	}
	if m.Token.IsZero() {
		return refused(resourceguard.ErrNoToken)
	}
	f := fence{directory: g.opts.directory(m.Token.Lock()), token: m.Token}
	c, err := g.claim(m.Resource, []fence{f})
	if err != nil {
		return refused(err)
	}
	ctx, cancel := g.bounded(ctx)
	defer cancel()
	for {
		v, err := g.look(ctx, call{claims: []claim{c}, reads: true})
		if err != nil {
			return fmt.Errorf("set floor: %w", err)
		}
		before := v.marks[0]
		rule := resourceguard.Rule{Lock: c.lock, Policy: g.opts.Policy, Ceiling: ceiling(m.Token, v)}
		decision, err := rule.Floor(before.stored, m.Token)
		if err != nil {
			return refused(err)
		}
		done, err := g.putFloor(ctx, m, before, decision, reason)
		if done || err != nil {
			return err
		}
	}
}

// putFloor stores mark and record if the mark is still the one that was seen.
func (g *Guard) putFloor(ctx context.Context, m revisionfence.Mark, before mark, d resourceguard.Decision, reason string) (bool, error) {
	now := time.Now().UTC()
	key, record := g.opts.mark(m.Resource), g.opts.floor(m.Resource, now)
	text, cut := cutBefore(before.text)
	t := transaction{
		compares: []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(key), "=", before.mod),
			clientv3.Compare(clientv3.CreateRevision(record), "=", 0), // two may have one clock
		},
		then: []clientv3.Op{clientv3.OpPut(record, encode(floorRecord{
			Format: recordFormat, Floor: m.Token, Before: text, Cut: cut, Reason: reason, At: now,
		}))},
		otherwise: []clientv3.Op{clientv3.OpGet(key)},
	}
	if d == resourceguard.Raise {
		t.then = append(t.then, clientv3.OpPut(key, markText(m.Token, "")))
	}
	resp, err := g.send(ctx, t, what{resource: m.Resource})
	if err != nil {
		return false, fmt.Errorf("set floor: %w", err)
	}
	return resp.Succeeded, nil
}
