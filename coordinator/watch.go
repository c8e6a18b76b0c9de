package coordinator

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// begun waits until a watch has begun. Meanwhile it looks at each proof, so that
// waiting goes on where watches do not.
func (q *queue) begun(ctx context.Context, e *entry, begins <-chan begunWatch) (watch clientv3.WatchChan, created *pb.ResponseHeader, owner bool, err error) {
	for {
		select {
		case b := <-begins:
			if errors.Is(b.err, errTooManyWatches) {
				v, err := q.readPlace(ctx, e, false)
				return nil, nil, err == nil && v.owner, b.err
			}
			return b.watch, b.created, false, b.err
		case <-e.s.tick():
			if v, err := q.readPlace(ctx, e, false); err == nil && v.owner {
				return nil, nil, true, nil
			}
		case <-e.gone:
			return nil, nil, false, errKeyGone
		case <-ctx.Done():
			return nil, nil, false, ctx.Err()
		}
	}
}

// begunWatch is a watch that the server has, or why it has not.
type begunWatch struct {
	watch   clientv3.WatchChan
	created *pb.ResponseHeader // what the server said of itself then
	err     error
}

// maxUnbegun is how many watches of a queue nobody waits for any more though they
// have not begun. Where watches do not begin, each waiter that gives up leaves one.
const maxUnbegun = 4

var errTooManyWatches = errors.New("too many watches have not begun")

// watch opens a watch of a key in a directory from now on, until ctx ends. It is
// delivered when the server has it.
//
// If the context of a watch ends before that, the client forgets it, and the
// server keeps it until the client is closed. So a watch that nobody waits for
// any more is first let begin, and then ended: only the end of the coordinator
// cuts that short.
func (c *Coordinator) watch(ctx context.Context, directory, key string, opts ...clientv3.OpOption) <-chan begunWatch {
	begins := make(chan begunWatch, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unbegun[directory] >= maxUnbegun {
		begins <- begunWatch{err: errTooManyWatches}
		return begins
	}
	if !c.spawnInLocked(&c.watches, func() { c.begin(ctx, directory, key, opts, begins) }) {
		begins <- begunWatch{err: ErrClosed}
	}
	return begins
}

func (c *Coordinator) begin(ctx context.Context, directory, key string, opts []clientv3.OpOption, begins chan<- begunWatch) {
	var begun, abandoned bool // guarded by c.mu
	stopCounting := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if abandoned = !begun; abandoned {
			c.unbegun[directory]++
		}
	})
	// A member that is cut off from its leader must say so, not be silent.
	watching, end := context.WithCancel(clientv3.WithRequireLeader(context.WithoutCancel(ctx)))
	stop := context.AfterFunc(c.base, end)
	w := c.watcher.Watch(watching, key, append(opts, clientv3.WithCreatedNotify())...)
	resp, ok := <-w
	stop()
	stopCounting()
	c.mu.Lock()
	if begun = true; abandoned {
		if c.unbegun[directory]--; c.unbegun[directory] == 0 {
			delete(c.unbegun, directory)
		}
	}
	c.mu.Unlock()
	err := watchErr(resp, ok)
	if err != nil {
		end()
	} else {
		context.AfterFunc(ctx, end)
	}
	begins <- begunWatch{w, resp.Header, err}
}

func watchErr(resp clientv3.WatchResponse, ok bool) error {
	if !ok {
		return errors.New("the watch ended")
	}
	return resp.Err()
}
