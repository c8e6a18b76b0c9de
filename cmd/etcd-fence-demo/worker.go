package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
)

const (
	// lockName is what the workers contend for: one lock for one article.
	lockName = "stock/42"
	// leaveTimeout is what a worker takes at most to give back what it holds.
	leaveTimeout = 2 * time.Second
)

// worker is the program in a worker's process.
type worker struct {
	client *clientv3.Client
	locks  *coordinator.Coordinator
	guard  *etcdguard.Guard
	grant  *coordinator.Grant

	// bound is for each request to etcd.
	bound time.Duration

	orders <-chan order
	say    *json.Encoder
}

var errLeave = errors.New("the parent has closed the pipe")

// serve is main in a worker's process.
func serve(stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	orders := make(chan order)
	go func() {
		// The pipe ends when the parent does, however that ends.
		defer cancel(errLeave)
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			var o order
			if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
				cancel(fmt.Errorf("this is for the demo itself to start: %w", err))
				return
			}
			select {
			case orders <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	w := &worker{orders: orders, say: json.NewEncoder(stdout)}
	err := w.serve(ctx)
	w.leave()
	if !errors.Is(err, errLeave) {
		fmt.Fprintf(stderr, "%s %s: error: %v\n", program, workerCommand, err)
		return exitFailed
	}
	return exitOK
}

// serve obeys until it cannot go on. The error says why, and is never nil.
func (w *worker) serve(ctx context.Context) error {
	for {
		o, err := w.next(ctx)
		if err != nil {
			return err
		}
		a, err := w.obey(ctx, o)
		if err != nil {
			a = answer{Got: gotFailed, Error: err.Error()}
		}
		if err := w.say.Encode(a); err != nil {
			return err
		}
	}
}

// next waits for an order, or for the end of the parent.
func (w *worker) next(ctx context.Context) (order, error) {
	select {
	case o := <-w.orders:
		return o, nil
	case <-ctx.Done():
		return order{}, context.Cause(ctx)
	}
}

// obey carries one order out. Its error is the answer "failed": the parent decides
// what comes of it.
func (w *worker) obey(ctx context.Context, o order) (answer, error) {
	switch o.Do {
	case doStart:
		return answer{Got: gotReady}, w.start(ctx, o)
	case doAsk:
		bound, cancel := context.WithTimeout(ctx, w.bound)
		defer cancel()
		return w.hold(w.locks.TryAcquire(bound, lockName, coordinator.Reason("changing the stock")))
	case doAcquire:
		return w.hold(w.locks.Acquire(ctx, lockName, coordinator.Reason("changing the stock")))
	case doWrite:
		kv, err := w.kv(o.Fenced)
		if err != nil {
			return answer{}, err
		}
		return w.write(ctx, kv, o)
	case doPrepare:
		return w.writeLater(ctx, o)
	case doRelease:
		return w.release(ctx)
	case doGo:
	}
	return answer{}, fmt.Errorf("cannot %q now", o.Do)
}

// start connects to etcd and makes sure that locks can be had there.
func (w *worker) start(ctx context.Context, o order) (err error) {
	w.bound = o.Target.CommandTimeout
	if w.client, err = o.Target.dial(); err != nil {
		return err
	}
	w.locks, err = coordinator.New(w.client, &coordinator.Options{Prefix: o.Prefix, TTL: o.TTL, Identity: o.Name})
	if err != nil {
		return err
	}
	if w.guard, err = etcdguard.New(w.client, &etcdguard.Options{Prefix: o.Prefix}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.bound)
	defer cancel()
	return w.locks.Ping(ctx)
}

// hold keeps the grant that was asked for, if it was given.
func (w *worker) hold(g *coordinator.Grant, err error) (answer, error) {
	var busy *coordinator.BusyError
	switch {
	case errors.As(err, &busy):
		return answer{Got: gotBusy, Holder: busy.Holder.Identity, Token: busy.Holder.Token}, nil
	case err != nil:
		return answer{}, err
	}
	w.grant = g
	return answer{Got: gotGranted, Token: g.Token(), Key: g.Key(), Lease: g.Lease(), TTL: g.TTL()}, nil
}

// kv is what the worker reads and writes through: the whole difference between
// the two tellings.
func (w *worker) kv(fenced bool) (clientv3.KV, error) {
	if !fenced {
		return w.client, nil
	}
	return w.guard.KV(w.grant)
}

// writeLater is a worker that is paused at the worst moment. It does everything
// that a careful program does before it writes: it reads, and looks whether its
// grant may still be relied on. Then it waits for a line on its pipe, and makes
// the write as soon as that is there.
//
// The parent stops the process while it waits, and writes the line before it
// continues it. So the write is the very next thing that happens, as if the
// process had been stopped between two instructions.
func (w *worker) writeLater(ctx context.Context, o order) (answer, error) {
	kv, err := w.kv(o.Fenced)
	if err != nil {
		return answer{}, err
	}
	bound, cancel := context.WithTimeout(ctx, w.bound)
	defer cancel()
	read, err := kv.Get(bound, o.Key)
	if err != nil {
		return answer{}, err
	}
	if len(read.Kvs) == 0 {
		return answer{}, fmt.Errorf("%s is not there", o.Key)
	}
	if err := w.grant.Err(); err != nil {
		return answer{}, err
	}
	trusted := w.grant.TrustedFor()
	if err := w.say.Encode(answer{Got: gotReady, Read: string(read.Kvs[0].Value), TrustedFor: trusted}); err != nil {
		return answer{}, err
	}

	switch next, err := w.next(ctx); {
	case err != nil:
		return answer{}, err // the parent is gone: nothing is written
	case next.Do != doGo:
		return answer{}, fmt.Errorf("want %q, got %q", doGo, next.Do)
	}
	return w.write(ctx, kv, o)
}

// write does not use the grant's context. That ends soon after a paused process
// is continued, and would now and then win the race against the write; luck is
// no protection, and would hide what is shown here.
func (w *worker) write(ctx context.Context, kv clientv3.KV, o order) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.bound)
	defer cancel()
	resp, err := kv.Put(ctx, o.Key, o.Value)
	var a answer
	var stale *resourceguard.StaleError
	switch {
	case errors.As(err, &stale):
		a = answer{Got: gotRefused, Presented: stale.Presented, Accepted: stale.Accepted, Error: err.Error()}
	case err != nil:
		return a, err
	default:
		a = answer{Got: gotWritten, Revision: resp.Header.Revision}
	}
	if err := w.grant.Err(); err != nil {
		a.Lost = err.Error()
		if lost := (*coordinator.LostError)(nil); errors.As(err, &lost) {
			a.Lost = string(lost.Reason)
		}
	}
	return a, nil
}

// release gives the lock up. The grant stays where it is: a release of what was
// lost, or released before, is part of the story.
func (w *worker) release(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.bound)
	defer cancel()
	switch err := w.grant.Release(ctx); {
	case errors.Is(err, coordinator.ErrNotHeld):
		return answer{Got: gotNotHeld, Error: err.Error()}, nil
	case err != nil:
		return answer{}, err
	}
	return answer{Got: gotReleased}, nil
}

// leave gives back what the worker holds. What that misses goes with its lease.
func (w *worker) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if w.locks != nil {
		_ = w.locks.Close(ctx)
	}
	if w.client != nil {
		_ = w.client.Close()
	}
}
