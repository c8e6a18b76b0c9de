package etcdguard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded/wire"
)

// A call that raises the mark and loses the answer must not say that nothing was
// written. Of an Advance the mark is all there is; a Get did not write what it is
// about.
func TestLostAnswerToARaise(t *testing.T) {
	for name, tt := range map[string]struct {
		call func(context.Context, *testing.T, *setup, grant) error
		want resourceguard.Outcome
		says string
	}{
		"Advance": {
			call: func(ctx context.Context, _ *testing.T, s *setup, g grant) error {
				return s.guard.Advance(ctx, "l", g.token)
			},
			want: resourceguard.Unknown, says: "the mark may have been raised",
		},
		"Get": {
			call: func(ctx context.Context, t *testing.T, s *setup, g grant) error {
				t.Helper()
				_, err := fenced(t, s.guard, g).Get(ctx, "data")
				return err
			},
			want: resourceguard.NotApplied, says: "nothing was written but the mark",
		},
	} {
		s := start(t, highWater)
		g := acquire(t, s.truth, "l")
		ctx, cancel := context.WithCancel(soon(t))
		s.wire.OnUnary(func(sending context.Context, call *wire.Call) error {
			err := call.Send(sending)
			if txn, ok := call.Request.(*pb.TxnRequest); ok && len(txn.Success) > 0 && txn.Success[0].GetRequestPut() != nil {
				cancel() // the answer is lost with the caller's patience
				return context.Canceled
			}
			return err
		})
		err := tt.call(ctx, t, s, g)
		cancel()
		if o := resourceguard.OutcomeOf(err); !errors.Is(err, context.Canceled) || o != tt.want || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v with outcome %v, want %v and %q", name, err, o, tt.want, tt.says)
		}
		s.wantMarkText(t, "l", g.text())
	}
}

// An empty name is refused like by every other guard, even where LockOf takes it.
func TestResourceWithoutAName(t *testing.T) {
	for _, mode := range []etcdguard.Mode{etcdguard.Held, etcdguard.HighWater} {
		s := start(t, &etcdguard.Options{Mode: mode, LockOf: func(string) (string, error) { return "l", nil }})
		g := acquire(t, s.truth, "l")
		err := s.guard.Advance(soon(t), "", g.token)
		if !errors.Is(err, resourceguard.ErrInvalid) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%v, Advance: %v", mode, err)
		}
		if mode == etcdguard.Held {
			continue
		}
		err = s.guard.SetFloor(soon(t), revisionfence.Mark{Token: g.token}, "why")
		if !errors.Is(err, resourceguard.ErrInvalid) || resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
			t.Errorf("%v, SetFloor: %v", mode, err)
		}
	}
}

// A pointer that is nil is a token that is not there, and no panic.
func TestTokenOfANilPointer(t *testing.T) {
	s := start(t, highWater)
	var none *tokenPointer
	if _, err := s.guard.KV(etcdguard.FromToken(none)); !errors.Is(err, resourceguard.ErrNoToken) {
		t.Errorf("%v, want %v", err, resourceguard.ErrNoToken)
	}
}

type tokenPointer struct{ token revisionfence.Token }

func (p *tokenPointer) Token() revisionfence.Token { return p.token }
