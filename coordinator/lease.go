package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// leases is a client's Lease, but for what clientv3 does in a way that does not
// fit here.
type leases struct {
	clientv3.Lease
	remote pb.LeaseClient
}

func newLeases(client *clientv3.Client) leases {
	return leases{Lease: client.Lease, remote: pb.NewLeaseClient(client.ActiveConnection())}
}

// KeepAliveOnce renews a lease with one attempt. That of clientv3 opens one
// stream after another, without a pause, for as long as a server or a proxy
// refuses them at once: thousands in a second, and each asks for an auth token.
// Whoever calls has its own pace.
//
// A member without a leader cannot renew anything, and would keep the request
// until its own time-out; asked for a leader it says so, and the next attempt
// goes to another member. An auth token that has expired is no concern of this:
// the connection gets one for each stream.
func (l leases) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	attempt, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel() // ends the stream
	stream, err := l.remote.LeaseKeepAlive(attempt, grpc.WaitForReady(true))
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	// After io.EOF it is Recv that tells why.
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return nil, clientv3.ContextError(ctx, err)
	}
	resp, err := stream.Recv()
	switch {
	case err != nil:
		return nil, clientv3.ContextError(ctx, err)
	case resp.ID != int64(id):
		return nil, fmt.Errorf("%w: the renewal of lease %s was answered for %s", ErrFormat, leaseHex(id), leaseHex(clientv3.LeaseID(resp.ID)))
	case resp.TTL <= 0:
		return nil, rpctypes.ErrLeaseNotFound
	}
	return &clientv3.LeaseKeepAliveResponse{ResponseHeader: resp.GetHeader(), ID: id, TTL: resp.TTL}, nil
}

// grant asks for a lease of this ID and returns the TTL that was granted. With an
// error, sent tells whether the lease may exist all the same.
func (l leases) grant(ctx context.Context, id clientv3.LeaseID, ttl time.Duration) (granted time.Duration, sent bool, err error) {
	var at peer.Peer // stays empty if the request never got a connection
	resp, err := l.remote.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)}, grpc.WaitForReady(true), grpc.Peer(&at))
	if err != nil {
		return 0, at.Addr != nil, clientv3.ContextError(ctx, err)
	}
	if resp.ID != int64(id) || resp.TTL <= 0 {
		// A server that only looks like etcd: without leases there are no locks.
		return 0, true, fmt.Errorf("%w: the server granted lease %d for %d s, and was asked for lease %d", ErrFormat, resp.ID, resp.TTL, id)
	}
	return time.Duration(resp.TTL) * time.Second, true, nil
}

// lease takes a lease, and says for how long it was granted and from when on that
// counts at the earliest. A lease of which no answer came may be there: it is
// what the next attempt asks for, and Close revokes it.
func (c *Coordinator) lease(ctx context.Context) (id clientv3.LeaseID, ttl time.Duration, from instant, err error) {
	c.mu.Lock()
	id = c.unanswered
	c.mu.Unlock()
	if id == clientv3.NoLease {
		id = newLeaseID()
	}
	from = c.now()
	ttl, sent, err := c.leases.grant(ctx, id, c.opts.TTL)
	if errors.Is(err, rpctypes.ErrLeaseExist) {
		// An attempt that had no answer was applied, some time ago.
		from = c.now()
		var renewed *clientv3.LeaseKeepAliveResponse
		if renewed, err = c.leases.KeepAliveOnce(ctx, id); err == nil {
			ttl = time.Duration(renewed.TTL) * time.Second
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrLeaseNotFound):
		c.unanswered = clientv3.NoLease
	case sent && !etcdonce.Definite(err):
		c.unanswered = id
		if c.closed {
			c.buryUnansweredLocked()
		}
	}
	return id, ttl, from, err
}

func (c *Coordinator) buryUnansweredLocked() {
	if id := c.unanswered; id != clientv3.NoLease {
		c.unanswered = clientv3.NoLease
		c.spawnLocked(func() { c.bury(id, c.opts.TTL, func() {}) })
	}
}

// refusedTTLs is for how many TTLs etcd is asked for what it refuses for a
// reason that mostly lasts, such as a missing permission.
const refusedTTLs = 3

// bury revokes a lease until it is known to be gone, and calls ended then, under
// the lock. It asks for as long as etcd does not answer: when it is back, it
// counts the lease's time from the start. If etcd refuses to revoke the lease, it
// ends by itself, since nobody renews it.
func (c *Coordinator) bury(lease clientv3.LeaseID, ttl time.Duration, ended func()) {
	start := c.now()
	var last error
	for pause := newPause(); c.base.Err() == nil; pause.wait(c.base) {
		err := c.revoke(lease)
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			c.mu.Lock()
			defer c.mu.Unlock()
			ended()
			return
		}
		if c.base.Err() == nil {
			last = err
		}
		if incurable(err) && c.now().since(start) > refusedTTLs*ttl {
			break
		}
	}
	c.log.Warn("lease not revoked", "lease", leaseHex(lease), "error", last)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orphans++
	if last != nil {
		c.orphaned = last
	}
}

// revoke is one attempt to end a lease. If that is refused, the lease may have
// ended all the same, and anybody may ask that.
func (c *Coordinator) revoke(lease clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(c.base, c.callTimeout)
	defer cancel()
	_, err := c.lessor.Revoke(ctx, lease)
	if err == nil || !incurable(err) {
		return err
	}
	if left, lookErr := c.lessor.TimeToLive(ctx, lease); lookErr == nil && left.TTL < 0 {
		return nil
	}
	return err
}

// newLeaseID chooses a lease ID. etcd would choose one too, but tells it only
// with an answer that can be lost; this one can be revoked all the same. It comes
// from the system's randomness, which two copies of a virtual machine do not
// share.
func newLeaseID() clientv3.LeaseID {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := clientv3.LeaseID(binary.BigEndian.Uint64(b[:]) >> 1); id != clientv3.NoLease {
			return id
		}
	}
}
