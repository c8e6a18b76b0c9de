package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

var prefix = []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCountOnly()}

// observes: what is shown in the end is what is so, and tokens rise on the way.
func observes(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	o := observe(t, s.c, lock)
	if h := o.next(t); h.Token != held.token {
		t.Errorf("shown %v, want the holder %s", h, held.token)
	}
	return cell{judge: func(t *testing.T) {
		held.leave(t)
		if s.waits != nil {
			if seen := receive(t, o.seen, "the end"); !s.waits(seen.err) {
				t.Errorf("shown %v, %v", seen.holder, seen.err)
			}
			return
		}
		g := acquire(t, s.other, lock)
		if err := s.granted(g); err != nil {
			t.Error(err)
		}
		last := held.token
		for _, h := range o.until(t, g.Token()) {
			if h.IsZero() {
				continue
			}
			if order, err := h.Token.Compare(last); err != nil || order < 0 {
				t.Errorf("shown %s after %s: %v", h.Token, last, err)
			}
			last = h.Token
		}
		release(t, g)
	}}
}

// sees is what those who ask are told while another process holds the lock.
func (s *scene) sees(what string, err error, holder coordinator.Holder, held holding) error {
	if err := s.reads.check(what, err); err != nil || s.holderDies {
		return err
	}
	if err == nil && holder.Token != held.token {
		return fmt.Errorf("%s: the holder is %v, want %s", what, holder, held.token)
	}
	return nil
}

func asksStatus(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{again: true, judge: held.leave, during: func(ctx context.Context) error {
		st, err := s.c.Status(ctx, lock)
		return s.sees("status", err, st.Holder, held)
	}}
}

func lists(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{again: true, judge: held.leave, during: func(ctx context.Context) error {
		for st, err := range s.c.List(ctx, lock) {
			if err != nil || st.Lock == lock {
				return s.sees("list", err, st.Holder, held)
			}
		}
		if s.holderDies {
			return nil
		}
		return errors.New("the lock is not listed")
	}}
}

func asksCurrent(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{again: true, judge: held.leave, during: func(ctx context.Context) error {
		current, err := s.c.IsCurrent(ctx, held.token)
		if err == nil && !current && !s.holderDies {
			return fmt.Errorf("%s is not current", held.token)
		}
		return s.reads.check("is current", err)
	}}
}

// evictsHeld: whatever the first attempt was told, the second one settles it.
func evictsHeld(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{
		during: func(ctx context.Context) error {
			err := s.c.Evict(ctx, held.token, "a fault")
			if s.holderDies && errors.Is(err, coordinator.ErrNotHeld) {
				return nil
			}
			if s.full {
				return err
			}
			return s.writes.check("evict", err)
		},
		judge: func(t *testing.T) {
			by := s.c
			if s.waits != nil {
				by = s.other // the other one may not any more
			}
			if err := by.Evict(within(t, patience), held.token, "a fault"); err != nil && !errors.Is(err, coordinator.ErrNotHeld) {
				t.Error(err)
			}
			if held.grant != nil {
				reason := coordinator.LostEvicted
				if s.full { // for the news of it there was no room
					reason = coordinator.LostKeyDeleted
				}
				s.endedBy(t, ended(t, held.grant), reason)
			}
		},
	}
}

// setsHeld: each attempt either is told to have failed or is what is seen.
func setsHeld(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	n := 0
	return cell{
		again: true,
		during: func(ctx context.Context) error {
			n++
			err := g.SetValue(ctx, fmt.Append(nil, n))
			if s.lost != nil && errors.Is(err, coordinator.ErrLost) {
				return nil
			}
			return s.writes.check("set value", err)
		},
		judge: func(t *testing.T) {
			if !s.lastsOr(t, g) {
				if err := g.SetValue(within(t, patience), nil); !errors.Is(err, coordinator.ErrLost) {
					t.Errorf("set the value of a lost grant: %v", err)
				}
				return
			}
			if err := g.SetValue(within(t, patience), []byte("last")); err != nil {
				t.Error(err)
			}
			if st, err := s.other.Status(within(t, patience), lock); err != nil || string(st.Holder.Value) != "last" {
				t.Errorf("the value is %q, %v", st.Holder.Value, err)
			}
			release(t, g)
		},
	}
}

func pings(_ *testing.T, s *scene, _ string) cell {
	return cell{
		again:  true,
		during: func(ctx context.Context) error { return s.writes.check("ping", s.c.Ping(ctx)) },
		judge: func(t *testing.T) {
			if err := s.c.Ping(within(t, patience)); err != nil && (s.waits == nil || !s.waits(err)) {
				t.Error(err)
			}
		},
	}
}

// asksHealth: it tells of what lasts, and is well again afterwards.
func asksHealth(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	return cell{
		during: func(ctx context.Context) error {
			for slices.Contains(s.lost, coordinator.LostUnproven) && s.c.Health().Err == nil {
				if ctx.Err() != nil {
					return errors.New("health is well though etcd is out of reach")
				}
				pause()
			}
			return nil
		},
		judge: func(t *testing.T) {
			if s.lastsOr(t, g) {
				release(t, g)
			}
			if err := s.c.Ping(within(t, patience)); err != nil {
				t.Error(err)
			}
			if h := s.c.Health(); h.Err != nil || h.TrustedFor <= 0 {
				t.Errorf("health afterwards: %+v", h)
			}
		},
	}
}

// closes: everything ends, whatever etcd says.
func closes(t *testing.T, s *scene, lock string) cell {
	c, err := coordinator.New(s.client, &s.opts)
	if err != nil {
		t.Fatal(err)
	}
	held := s.hold(t, lock+"-waiting")
	g := acquire(t, c, lock)
	if err := s.granted(g); err != nil {
		t.Error(err)
	}
	waiter := ask(t, c, lock+"-waiting")
	s.queued(t, lock+"-waiting", 2)
	return cell{
		during: func(ctx context.Context) error {
			err := c.Close(ctx)
			if err != nil && (s.writes.with == nil || !errors.Is(err, coordinator.ErrUnsettled)) {
				return fmt.Errorf("close: %w", err)
			}
			return nil
		},
		judge: func(t *testing.T) {
			s.endedBy(t, ended(t, g), append(s.lost, coordinator.LostClosed)...)
			if err := waiter.failed(t); !errors.Is(err, coordinator.ErrClosed) && (s.waits == nil || !s.waits(err)) {
				t.Errorf("waiting until closed: %v", err)
			}
			held.leave(t)
			s.free(t, lock+"-waiting")
		},
	}
}
