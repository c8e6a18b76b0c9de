package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-fence/etcd-fence/internal/etcdonce"
)

// transaction is one request to etcd.
type transaction struct {
	compares        []clientv3.Cmp
	then, otherwise []clientv3.Op
	reads           bool // changes nothing, so it may be sent again
}

// errTimeout is the end of a call whose caller set no deadline.
var errTimeout = errors.New("no answer within Options.Timeout")

// bounded gives ctx a deadline if it has none: clientv3 waits for a connection
// for as long as it is let.
func (g *Guard) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, g.opts.Timeout, fmt.Errorf("%w (%v)", errTimeout, g.opts.Timeout))
}

// send sends a transaction that writes once, and one that only reads until it has
// an answer, as clientv3 does with a Get.
func (g *Guard) send(ctx context.Context, t transaction, w what) (*clientv3.TxnResponse, error) {
	var wait *backoff.ExponentialBackOff
	for {
		resp, err := g.once.Txn(ctx).If(t.compares...).Then(t.then...).Else(t.otherwise...).Commit()
		if err == nil {
			return resp, nil
		}
		if t.reads && unavailable(err) {
			if wait == nil {
				wait = backoff.NewExponentialBackOff(backoff.WithInitialInterval(25*time.Millisecond),
					backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
			}
			if sleep(ctx, wait.NextBackOff()) {
				continue
			}
		}
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, w.failed(err, t.reads)
	}
}

// what is what an error is about.
type what struct {
	key      string // "" where there is none
	resource string // "" where it says no more than the key
	reads    bool   // the call, of which this may be a part, writes nothing but marks
	advance  bool   // the mark is all that the call is about
	raises   bool   // the request raises a mark
}

func (w what) String() string {
	switch {
	case w.key == "":
		return fmt.Sprintf("resource %q", w.resource)
	case w.resource == "":
		return fmt.Sprintf("key %q", w.key)
	}
	return fmt.Sprintf("key %q of resource %q", w.key, w.resource)
}

// failed describes an error of etcd or of a context. A write in doubt is called that:
// "context deadline exceeded" alone reads as if nothing had happened.
func (w what) failed(err error, reads bool) error {
	switch {
	case etcdonce.Definite(err):
		return classify(fmt.Errorf("etcdguard: %v: %w", w, err), true)
	case reads && w.raises && w.advance:
		return classify(fmt.Errorf("etcdguard: %v: outcome unknown: the mark may have been raised, or be raised later: %w", w, err), false)
	case reads && w.raises:
		return classify(fmt.Errorf("etcdguard: %v: no answer, and nothing was written but the mark, if that: %w", w, err), true)
	case reads:
		// Nothing of the write has been sent yet, or there is none.
		return classify(fmt.Errorf("etcdguard: %v: no answer, and nothing was written: %w", w, err), true)
	}
	return classify(fmt.Errorf("etcdguard: %v: outcome unknown: the write may have been applied, or be applied later: %w", w, err), false)
}

// unavailable is what clientv3 repeats a read for.
func unavailable(err error) bool {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
