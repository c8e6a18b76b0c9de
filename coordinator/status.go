package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// page is how many keys one request reads at most.
const page = 500

// Status is the queue of a lock at one revision of etcd. It is out of date when
// it is returned.
type Status struct {
	// Lock is the name of the lock. It is empty if keys lie where locks do, but
	// where no lock can have them; Directory tells where.
	Lock string
	// Directory is where its queue lies in etcd. It ends in "/", unless it is a
	// key beside the queues, which is in nobody's way.
	Directory string
	// Revision is the revision of etcd that was read.
	Revision int64
	// Holder holds the lock; zero if nobody does.
	Holder Holder
	// Waiting are those behind, in order: one for each process, however many of
	// its goroutines wait.
	Waiting []Holder
}

// Strays returns the keys that stand in the queue and were not made by this
// package: of programs that use concurrency.Mutex or "etcdctl lock", which is
// fine, and others. One without a lease ([Holder.Lease] is 0) blocks the lock
// until somebody deletes it. Nothing here ever does.
func (s Status) Strays() []Holder {
	var strays []Holder
	for _, h := range append([]Holder{s.Holder}, s.Waiting...) {
		if !h.IsZero() && h.Identity == "" {
			strays = append(strays, h)
		}
	}
	return strays
}

// Status reads the queue of a lock.
func (c *Coordinator) Status(ctx context.Context, lock string) (Status, error) {
	directory, err := c.directory(lock)
	if err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	st := Status{Lock: lock, Directory: directory}
	var epoch uint16
	var last int64
	for {
		queue, record, err := c.readQueue(ctx, directory, last, st.Revision)
		if err != nil {
			return Status{}, fmt.Errorf("status of lock %q: %w", lock, err)
		}
		if st.Revision == 0 {
			st.Revision, epoch = queue.revision, record
		}
		for _, kv := range queue.kvs {
			st.append(holderOf(lock, epoch, kv))
			last = kv.CreateRevision
		}
		if !queue.more {
			return st, nil
		}
	}
}

func (s *Status) append(h Holder) {
	if s.Holder.IsZero() {
		s.Holder = h
		return
	}
	s.Waiting = append(s.Waiting, h)
}

// queuePage is part of a queue, in order.
type queuePage struct {
	kvs      []*mvccpb.KeyValue
	revision int64
	more     bool
}

// readQueue reads the keys of a queue that come after a create revision, and
// the epoch. Revision 0 is the present; it is the first page's, and that of all
// that follow.
func (c *Coordinator) readQueue(ctx context.Context, directory string, after, revision int64) (queuePage, uint16, error) {
	for limit := int64(page); ; limit *= 2 {
		resp, err := c.read(ctx,
			clientv3.OpGet(c.keys.epoch()),
			clientv3.OpGet(directory, clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithMinCreateRev(after+1),
				clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(limit)),
		)
		if err != nil {
			return queuePage{}, 0, err
		}
		epoch, err := epochOf(resp.Responses[0].GetResponseRange().Kvs)
		if err != nil {
			return queuePage{}, 0, err
		}
		p := queuePage{kvs: resp.Responses[1].GetResponseRange().Kvs, revision: cmp.Or(revision, resp.Header.Revision)}
		if p.more = int64(len(p.kvs)) == limit; !p.more {
			return p, epoch, nil
		}
		// The next page begins after a create revision, which the keys of one
		// foreign transaction share: none of them may be left out.
		last := p.kvs[len(p.kvs)-1].CreateRevision
		whole := slices.IndexFunc(p.kvs, func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == last })
		if whole > 0 {
			p.kvs = p.kvs[:whole]
			return p, epoch, nil
		}
		revision = p.revision
	}
}

// epochOf reads the epoch from an answer; a prefix that nobody used yet has 0.
func epochOf(kvs []*mvccpb.KeyValue) (uint16, error) {
	if len(kvs) == 0 {
		return 0, nil
	}
	record, err := decodeEpoch(kvs[0])
	return record.Epoch, err
}

// List reads the queues of all locks whose names begin with prefix, in the order
// of their escaped names, all at one revision of etcd. It reads page by page, and
// holds one queue in memory at a time. An error ends it; if etcd was compacted
// past the revision meanwhile, list again.
//
// With [Options.Directory] there is no place where all locks lie, and List fails
// with [ErrInvalidOption].
func (c *Coordinator) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		if err := c.list(ctx, prefix, yield); err != nil {
			yield(Status{}, fmt.Errorf("list locks %q: %w", prefix, err))
		}
	}
}

func (c *Coordinator) list(ctx context.Context, prefix string, yield func(Status, error) bool) error {
	if c.opts.Directory != nil {
		return fmt.Errorf("%w: List: locks lie wherever Options.Directory says", ErrInvalidOption)
	}
	// Escaping goes byte by byte, so a prefix of a name is a prefix of its form.
	from := c.keys.locks() + url.PathEscape(prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	var revision int64
	var epoch uint16
	var at collected
	for {
		resp, err := c.read(ctx,
			clientv3.OpGet(c.keys.epoch(), clientv3.WithRev(revision)),
			clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(page)),
		)
		if err != nil {
			return err
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		if epoch, err = epochOf(resp.Responses[0].GetResponseRange().Kvs); err != nil {
			return err
		}
		r := resp.Responses[1].GetResponseRange()
		for _, kv := range r.Kvs {
			lock, directory := c.keys.lockOf(string(kv.Key))
			if directory != at.Directory {
				if at.Directory != "" && !yield(at.status(epoch), nil) {
					return nil
				}
				at = collected{Status: Status{Lock: lock, Directory: directory, Revision: revision}}
			}
			at.kvs = append(at.kvs, kv)
		}
		if !r.More {
			break
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
	if at.Directory != "" {
		yield(at.status(epoch), nil)
	}
	return nil
}

// collected is a queue whose keys have arrived in the order of their names.
type collected struct {
	Status
	kvs []*mvccpb.KeyValue
}

func (q *collected) status(epoch uint16) Status {
	slices.SortFunc(q.kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	for _, kv := range q.kvs {
		q.append(holderOf(q.Lock, epoch, kv))
	}
	return q.Status
}

// lockOf is the lock that a key under locks/ belongs to. The name is "" if it
// is not the escaped form of one, or if the key lies beside the directories.
func (l layout) lockOf(key string) (lock, directory string) {
	segment, _, inside := strings.Cut(strings.TrimPrefix(key, l.locks()), "/")
	if !inside {
		return "", key
	}
	directory = l.locks() + segment + "/"
	lock, err := url.PathUnescape(segment)
	if err != nil || url.PathEscape(lock) != segment || revisionfence.CheckName(lock) != nil {
		return "", directory
	}
	return lock, directory
}
