package coordinator

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Observe yields who holds the lock, now and whenever that changes, or what the
// holder publishes; nobody is a zero [Holder]. Tokens rise from holder to holder.
// It reconnects by itself. A reader that is slow is not shown what happened
// meanwhile, only what is so now.
//
// It goes on until the loop is left. If ctx ends, it yields ctx's cause last, and
// likewise an error that trying again does not cure, such as [ErrClosed].
func (c *Coordinator) Observe(ctx context.Context, lock string) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		o := observer{c: c, lock: lock, yield: yield}
		err := o.run(ctx)
		if err != nil && !o.left {
			yield(Holder{}, fmt.Errorf("observe lock %q: %w", lock, err))
		}
	}
}

type observer struct {
	c         *Coordinator
	lock      string
	directory string
	yield     func(Holder, error) bool
	left      bool // the loop was left

	shown bool
	last  Holder
	mod   int64 // of the holder's key that was shown
}

func (o *observer) run(ctx context.Context) (err error) {
	if o.directory, err = o.c.directory(o.lock); err != nil {
		return err
	}
	for pause := newPause(); ; {
		err := o.follow(ctx, pause)
		switch {
		case o.left:
			return nil
		case ctx.Err() != nil:
			return endOf(ctx)
		case incurable(err):
			return err
		case o.c.base.Err() != nil:
			return ErrClosed
		}
		o.c.log.Debug("observing anew", "lock", o.lock, "error", err)
		pause.wait(ctx)
	}
}

// follow watches until the watch fails. Each event leads to a fresh look: what
// is yielded comes from linearizable reads, so it never goes back in time.
func (o *observer) follow(ctx context.Context, pause pause) error {
	var reader sync.WaitGroup
	defer reader.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.c.base, cancel)()
	var watch clientv3.WatchChan
	select {
	case b := <-o.c.watch(ctx, o.directory, o.directory, clientv3.WithPrefix()):
		if b.err != nil {
			// The client tells a watch that etcd refuses from one that broke by its
			// text alone. A read is refused for the same reasons, in a form that
			// says whether trying again can help.
			if err := o.look(ctx); incurable(err) {
				return err
			}
			return b.err
		}
		watch = b.watch
	case <-ctx.Done():
		return ctx.Err()
	}
	// The client keeps every event until it is read, and the loop that is yielded
	// to may take its time.
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	reader.Go(func() {
		for {
			resp, ok := <-watch
			if err := watchErr(resp, ok); err != nil {
				failed <- err
				return
			}
			select {
			case changed <- struct{}{}:
			default: // one look answers for both
			}
		}
	})
	// A watch can be silent though things happen: see awaitNear.
	doubt := time.NewTicker(o.c.opts.TTL)
	defer doubt.Stop()
	for {
		if err := o.look(ctx); err != nil || o.left {
			return err
		}
		pause.policy.Reset()
		select {
		case <-changed:
		case <-doubt.C:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *observer) look(ctx context.Context) error {
	queue, epoch, err := o.c.readHead(ctx, o.directory)
	if err != nil {
		return err
	}
	var h Holder
	var mod int64
	if len(queue) > 0 {
		h, mod = holderOf(o.lock, epoch, queue[0]), queue[0].ModRevision
	}
	if o.shown && o.last.Key == h.Key && o.mod == mod {
		return nil
	}
	o.shown, o.last, o.mod = true, h, mod
	o.left = !o.yield(h, nil)
	return nil
}
