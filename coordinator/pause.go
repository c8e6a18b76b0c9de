package coordinator

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// pause spaces out the attempts at something that has to succeed in the end.
type pause struct{ policy *backoff.ExponentialBackOff }

func newPause() pause {
	return pause{backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(25*time.Millisecond),
		backoff.WithMaxInterval(time.Second),
		backoff.WithMaxElapsedTime(0),
	)}
}

// wait pauses, longer each time, or until ctx ends.
func (p pause) wait(ctx context.Context) { p.waitUnless(ctx, nil) }

// waitUnless is wait that also ends when a channel is closed.
func (p pause) waitUnless(ctx context.Context, closed <-chan struct{}) {
	t := time.NewTimer(p.policy.NextBackOff())
	defer t.Stop()
	select {
	case <-t.C:
	case <-closed:
	case <-ctx.Done():
	}
}
