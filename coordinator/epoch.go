package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// epoch is the epoch record as it was read.
type epoch struct {
	record epochRecord
	mod    int64
}

// readEpoch reads the epoch record. A prefix that nobody has used yet gets one;
// a record that is missing from a used prefix was removed, or etcd was restored
// to a time before it: a new one would start again at 0, and repeat tokens that
// marks already hold.
func (c *Coordinator) readEpoch(ctx context.Context) (epoch, error) {
	if err := c.checkNesting(ctx); err != nil {
		return epoch{}, err
	}
	resp, err := c.kv.Get(ctx, c.keys.epoch())
	if err != nil {
		return epoch{}, fmt.Errorf("read the epoch record %s: %w", c.keys.epoch(), err)
	}
	if len(resp.Kvs) == 0 {
		return c.createEpoch(ctx, resp.Header.ClusterId)
	}
	record, err := decodeEpoch(resp.Kvs[0])
	if err != nil {
		return epoch{}, err
	}
	if have := clusterHex(resp.Header.ClusterId); record.Cluster != have {
		return epoch{}, &RestoredError{fmt.Sprintf("the epoch record names cluster %s, this is cluster %s", record.Cluster, have)}
	}
	return epoch{record, resp.Kvs[0].ModRevision}, nil
}

// checkNesting refuses a prefix that lies where another coordinator's things are:
// "/a/locks/x/" below "/a/", whose lock "x" would be held by the epoch record of
// the one below. Few prefixes have a form that can be meant.
func (c *Coordinator) checkNesting(ctx context.Context) error {
	for outer := range above(c.keys.prefix) {
		l := layout{prefix: outer}
		inside := func(place string) bool { return strings.HasPrefix(c.keys.prefix, place) }
		if !inside(l.locks()) && !inside(l.sessions()) && !inside(l.marks()) && !inside(l.ops()) && !inside(l.floors()) {
			continue
		}
		resp, err := c.kv.Get(ctx, l.epoch())
		switch {
		case codeOf(err) == codes.PermissionDenied:
			continue // who may not look there has nothing to do with it
		case err != nil:
			return fmt.Errorf("look for a coordinator's prefix around %s: %w", c.keys.prefix, err)
		case len(resp.Kvs) == 0:
			continue
		}
		if _, err := decodeEpoch(resp.Kvs[0]); err == nil { // else it is a key of something else
			return fmt.Errorf("%w: Prefix %q lies inside of %q, which another coordinator uses: its locks would stand in the queues of the other; use a prefix beside it", ErrInvalidOption, c.keys.prefix, outer)
		}
	}
	return nil
}

func (c *Coordinator) createEpoch(ctx context.Context, cluster uint64) (epoch, error) {
	record := epochRecord{
		Format: format, Cluster: clusterHex(cluster), RaftIndex: c.raftIndex(ctx),
		By: c.opts.Identity, At: time.Now(),
	}
	empty := func(dir string) clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(dir).WithPrefix(), "=", 0)
	}
	resp, err := c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.keys.epoch()), "=", 0),
			empty(c.keys.sessions()), empty(c.keys.marks()), empty(c.keys.ops()), empty(c.keys.floors())).
		Then(clientv3.OpPut(c.keys.epoch(), encode(record))).
		Else(clientv3.OpGet(c.keys.epoch(), clientv3.WithCountOnly())).
		Commit()
	switch {
	case codeOf(err) == codes.PermissionDenied:
		return epoch{}, fmt.Errorf("create the epoch record %s: %w; a user who may write it has to call Ping once for this prefix", c.keys.epoch(), err)
	case err != nil:
		return epoch{}, fmt.Errorf("create the epoch record %s: %w", c.keys.epoch(), err)
	case resp.Succeeded:
		return epoch{record, resp.Header.Revision}, nil
	case resp.Responses[0].GetResponseRange().Count > 0:
		return epoch{}, errEpochMoved // another process was first
	}
	return epoch{}, &RestoredError{fmt.Sprintf("there is no epoch record %s, though sessions, marks or the records of guards lie beside it", c.keys.epoch())}
}

// raftIndex asks the first endpoint that answers for its raft index; 0 if none
// does. It is an anchor for detecting restores later: without it that detection
// is weaker, so it is not worth failing for.
func (c *Coordinator) raftIndex(ctx context.Context) uint64 {
	for _, endpoint := range c.client.Endpoints() {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := c.client.Status(ctx, endpoint)
		cancel()
		if err == nil {
			return status.RaftIndex
		}
	}
	return 0
}

func clusterHex(id uint64) string { return strconv.FormatUint(id, 16) }

// opening is one attempt to open a session, shared by all who need one.
type opening struct {
	start   instant
	done    chan struct{}
	err     error
	waiting int // who has not left
}

// session returns the coordinator's live session, opening one if there is none.
// Opening is shared, and bounded by itself: the context of whoever happened to
// come first must not decide for the others.
func (c *Coordinator) session(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if s := c.current; s != nil {
			c.mu.Unlock()
			if s.trusted() {
				return s, nil
			}
			continue // end has cleared it
		}
		o := c.opening
		if o == nil {
			o = c.startOpeningLocked()
		}
		o.waiting++
		c.mu.Unlock()

		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			// The attempt goes on: a lease that is being granted now could not be
			// found again. Whoever comes next joins it.
			c.mu.Lock()
			o.waiting--
			c.mu.Unlock()
			return nil, fmt.Errorf("open a session at etcd: no answer yet: %w", endOf(ctx))
		}
	}
}

func (c *Coordinator) startOpeningLocked() *opening {
	o := &opening{start: c.now(), done: make(chan struct{})}
	c.opening = o
	c.spawnLocked(func() {
		// Made here, without the lock: the client's own context may be one of the
		// user's making, and is asked for its deadline.
		ctx, cancel := context.WithTimeout(c.base, c.openTimeout)
		defer cancel()
		s, err := c.open(ctx)
		for tries := 1; errors.Is(err, errEpochMoved) && tries < 10; tries++ {
			s, err = c.open(ctx)
		}
		if err == nil { // before anybody can have a grant of it, or end it
			c.log.Info("session open", "lease", leaseHex(s.lease), "ttl", s.ttl, "epoch", s.epoch)
			c.opts.Hooks.sessionStart(s)
		}
		if needed := c.adopt(o, s, err); !needed && err == nil {
			c.opts.Hooks.sessionEnd(s, LostClosed)
		}
	})
	return o
}

// adopt ends an attempt to open a session, and reports whether that is now the
// coordinator's.
func (c *Coordinator) adopt(o *opening, s *session, err error) (needed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(o.done)
	c.opening = nil
	switch {
	case err != nil:
		o.err = fmt.Errorf("open a session at etcd: %w", ownBound(err))
		c.trouble = o.err
		return false
	case c.closed || o.waiting == 0:
		// Nobody needs it: the coordinator was closed, or all who waited left.
		s.cancel(&sessionOver{LostClosed})
		c.spawnLocked(s.bury)
		return false
	}
	c.current, c.trouble = s, nil
	c.spawnLocked(s.watchClock)
	c.spawnLocked(s.prove)
	s.unhook = context.AfterFunc(c.base, func() { s.end(LostClosed) })
	return true
}
