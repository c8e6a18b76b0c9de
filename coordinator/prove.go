package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchClock ends the session as soon as its trust window closes, whether or
// not anything is heard from the network.
func (s *session) watchClock() {
	ticker := time.NewTicker(lookInterval(s.ttl))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if !s.trusted() {
				return
			}
			if s.trustedFor() < s.c.opts.DrainMargin {
				s.drain()
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// manyKeys is how many keys a session lists without a thought. One that holds
// more lists them less often, so that the proof costs the same however many
// locks there are; in between it only reads its news.
const manyKeys = 1000

// prove proves the lease alive, over and over, and looks at its keys each time.
// It runs beside the keepalive of etcd's session, because that one counts from
// the arrival of an answer.
func (s *session) prove() {
	interval := proofInterval(s.ttl)
	timer := time.NewTimer(interval)
	defer timer.Stop()
	listEvery, unlisted := 1, 0
	told := s.create // the revision up to which the news have been read
	for {
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
		var next time.Duration
		began := s.c.now()
		switch err := s.proveOnce(interval); {
		case err == nil:
			if unlisted++; unlisted >= listEvery {
				if n, err := s.audit(interval); err == nil {
					listEvery, unlisted = 1+n/manyKeys, 0
				}
			} else {
				told = s.readNews(interval, told)
			}
			s.mu.Lock()
			close(s.ticked)
			s.ticked = make(chan struct{})
			s.mu.Unlock()
			// The next proof does not wait longer because the look at the keys did.
			next = max(0, interval-s.c.now().since(began))
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.leaseGone()
			return
		case s.ctx.Err() != nil:
			return
		default:
			s.c.metrics.renewalFailures.Inc()
			next = interval / 8 // a proof is owed: try again soon
		}
		timer.Reset(next)
	}
}

// proveOnce renews the lease. What counts is when the request was sent.
//
// A member that has stopped, with its sockets open, answers nothing and fails
// nothing. So after half of the time there is a second attempt beside the first,
// which the client's balancer sends elsewhere if there is more than one member.
func (s *session) proveOnce(bound time.Duration) error {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel() // and with it the attempt that is not waited for any more
	answers := make(chan error, 2)
	attempt := func() {
		sent := s.c.now()
		_, err := s.c.lessor.KeepAliveOnce(ctx, s.lease)
		if err == nil {
			s.proved(sent)
		}
		answers <- err
	}
	attempts.Go(attempt)
	late := time.NewTimer(bound / 2)
	defer late.Stop()
	for pending := 1; ; {
		select {
		case err := <-answers:
			if pending--; err == nil || pending == 0 || errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return err
			}
		case <-late.C:
			pending++
			attempts.Go(attempt)
		}
	}
}

// audit compares the keys that hang on the lease with the keys that this
// process knows of, and returns how many there are. A renewal that succeeds says
// nothing of the keys: an operator can delete them, and a server can renew a
// lease while it revokes it (etcd-io/etcd#14758).
//
// The list is not linearizable, so it only raises suspicions; a linearizable
// request decides each of them.
func (s *session) audit(bound time.Duration) (int, error) {
	c := s.c
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()

	c.mu.Lock()
	var expected []*entry
	for _, e := range s.entries {
		if e.create != 0 {
			expected = append(expected, e)
		}
	}
	c.mu.Unlock()

	resp, err := c.lessor.TimeToLive(ctx, s.lease, clientv3.WithAttachedKeys())
	if err != nil {
		return 0, err
	}
	if resp.TTL < 0 {
		return 0, nil // the next proof tells for certain
	}
	listed := make(map[string]bool, len(resp.Keys))
	var strays []string
	c.mu.Lock()
	if s.ctx.Err() != nil {
		c.mu.Unlock()
		return 0, nil // its keys are known to nobody any more, and go with the lease
	}
	for _, k := range resp.Keys {
		key := string(k)
		listed[key] = true
		if s.entries[key] == nil && s.madeLocked(key) {
			strays = append(strays, key)
		}
	}
	c.mu.Unlock()

	if !listed[s.key] {
		if _, _, err := s.missing(ctx, s.key, s.create); err != nil {
			return 0, err
		}
	}
	for _, e := range expected {
		if !listed[e.key] {
			if err := s.loseMissing(ctx, e); err != nil {
				return 0, err
			}
		}
	}
	for _, key := range strays {
		if err := s.removeStray(ctx, key); err != nil {
			return 0, err
		}
	}
	return len(resp.Keys), nil
}

// madeLocked reports whether a key that nothing here knows of can be the work of
// an acquire of this session. A user may hang keys of his own on the lease, and
// name them after [Grant.Owner]: they look like ours, and are not where a lock of
// this session ever lay, or have a serial that was never used.
func (s *session) madeLocked(key string) bool {
	serial, ok := s.c.keys.isLockKeyOf(s.lease, key)
	if !ok || serial == 0 || serial > s.serial {
		return false
	}
	if !s.c.keys.anywhere {
		return true // this package keeps nothing else there, nor may anybody
	}
	_, used := s.used[directoryHash(key[:len(key)-len(leaf(key))])]
	return used
}

// missing decides whether the key of this create revision is gone, and why. It
// ends the session, and fails with errSessionOver, if the session key is gone too.
func (s *session) missing(ctx context.Context, key string, create int64) (lost LostReason, detail string, err error) {
	resp, err := s.c.read(ctx,
		clientv3.OpGet(key, clientv3.WithKeysOnly()),
		clientv3.OpGet(s.c.keys.eviction(s.lease, key)),
		clientv3.OpGet(s.key, clientv3.WithKeysOnly()),
	)
	if err == nil && createRevision(resp.Responses[2].GetResponseRange().Kvs) != s.create {
		s.keyGone()
		return "", "", errSessionOver
	}
	if err != nil || createRevision(resp.Responses[0].GetResponseRange().Kvs) == create {
		return "", "", err
	}
	var news evictionRecord
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		if json.Unmarshal(kv.Value, &news) != nil {
			continue
		}
		if news.Format > format { // that it was evicted is certain
			return LostEvicted, "", nil
		}
		return LostEvicted, fmt.Sprintf("by %s: %s", news.By, news.Reason), nil
	}
	return LostKeyDeleted, "", nil
}

// loseMissing loses an entry whose key was not seen where it should be, if it is
// really gone.
func (s *session) loseMissing(ctx context.Context, e *entry) error {
	reason, detail, err := s.missing(ctx, e.key, e.create)
	if errors.Is(err, errSessionOver) {
		return nil // and with it the entry is lost
	}
	if err == nil && reason != "" {
		s.c.lose(e, reason, detail)
	}
	return err
}

// removeStray deletes a lock key of ours that nothing here knows of: the late
// copy of an acquire, delivered after its lock had been released. Left alone it
// would hold the lock for as long as the process lives. It cannot become known
// any more, since a serial is never used again.
func (s *session) removeStray(ctx context.Context, key string) error {
	resp, err := s.c.kv.Get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	create := resp.Kvs[0].CreateRevision
	s.c.log.Warn("removing a lock key that nobody waits for", "key", key, "create_revision", create)
	_, err = s.c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", create)).
		Then(clientv3.OpDelete(key)).
		Commit()
	return err
}
