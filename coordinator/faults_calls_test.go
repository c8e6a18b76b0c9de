package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/coordinator"
)

// columns are the calls.
var columns = []column{
	{name: "acquire, waiting", prepare: acquireWaits},
	{name: "acquire", prepare: acquireAsks},
	{name: "acquire all", prepare: acquireAllWaits},
	{name: "try, free", prepare: tryFree},
	{name: "try, held", prepare: tryHeld},
	{name: "try any", prepare: tryAny},
	{name: "hold", prepare: holds},
	{name: "draining", prepare: drains},
	{name: "max hold", prepare: holdsAtMost},
	{name: "do", prepare: does},
	{name: "lead", prepare: leads},
	{name: "lead, waiting", prepare: leadWaits},
	{name: "observe", prepare: observes},
	{name: "status", prepare: asksStatus},
	{name: "list", prepare: lists, unlisted: true},
	{name: "is current", prepare: asksCurrent},
	{name: "evict", prepare: evictsHeld},
	{name: "set value", prepare: setsHeld},
	{name: "release", prepare: releasesHeld},
	{name: "release to a waiter", prepare: handsOnHeld},
	{name: "forget", prepare: forgets},
	{name: "ping", prepare: pings},
	{name: "health", prepare: asksHealth},
	{name: "close", prepare: closes},
}

// lastsOr fails unless the grant lasts, if grants outlast the fault, or else
// ends for the fault's reason.
func (s *scene) lastsOr(t *testing.T, g *coordinator.Grant) (lasts bool) {
	t.Helper()
	if s.lost == nil {
		if err := g.Err(); err != nil {
			t.Errorf("the grant has ended: %v", err)
			return false
		}
		return true
	}
	s.endedBy(t, ended(t, g), s.lost...)
	return false
}

func (s *scene) endedBy(t *testing.T, err error, reasons ...coordinator.LostReason) {
	t.Helper()
	var lost *coordinator.LostError
	if !errors.As(err, &lost) || !slices.Contains(reasons, lost.Reason) {
		t.Errorf("the grant ended with %v, want %q", err, reasons)
	}
}

// goesOn judges waiting behind another process: the lock is granted when that
// leaves, and not before.
func (s *scene) goesOn(t *testing.T, waiter *asking, held holding) {
	t.Helper()
	if s.waits != nil {
		if err := waiter.failed(t); !s.waits(err) {
			t.Errorf("waiting ended with %v", err)
		}
		held.leave(t)
		return
	}
	if !s.holderDies {
		waiter.waits(t)
	}
	held.leave(t)
	g := waiter.granted(t)
	if err := s.granted(g); err != nil {
		t.Error(err)
	}
	release(t, g)
}

func acquireWaits(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	waiter := ask(t, s.c, lock)
	s.queued(t, lock, 2)
	return cell{judge: func(t *testing.T) { s.goesOn(t, waiter, held) }}
}

func acquireAsks(t *testing.T, s *scene, lock string) cell {
	return cell{again: true, judge: func(*testing.T) {}, during: func(ctx context.Context) error {
		g, err := s.c.Acquire(ctx, lock)
		return s.taken(ctx, g, s.writes.check("acquire", err))
	}}
}

// taken sees to a grant that came of a call.
func (s *scene) taken(ctx context.Context, g *coordinator.Grant, err error) error {
	if err != nil || g == nil {
		return err
	}
	if err := s.granted(g); err != nil {
		return err
	}
	if err := g.Release(ctx); err != nil && !s.releaseMay(err) {
		return err
	}
	return nil
}

// releaseMay tells whether a release may end so.
func (s *scene) releaseMay(err error) bool {
	return s.lost != nil && errors.Is(err, coordinator.ErrNotHeld) || s.writes.with != nil && errors.Is(err, coordinator.ErrUnsettled)
}

func acquireAllWaits(t *testing.T, s *scene, lock string) cell {
	// The locks are taken in the order of their names.
	first := lock + "-a"
	held := s.hold(t, lock+"-b")
	done := make(chan struct{})
	var all *coordinator.Grants
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	go func() {
		defer close(done)
		all, err = s.c.AcquireAll(ctx, []string{lock + "-b", first})
	}()
	s.queued(t, first, 1)
	s.queued(t, lock+"-b", 2)
	return cell{judge: func(t *testing.T) {
		if s.lost == nil && s.waits == nil {
			held.leave(t)
		}
		<-done
		switch {
		case s.lost != nil:
			s.endedBy(t, err, s.lost...)
		case s.waits != nil:
			if err == nil || !s.waits(err) {
				t.Errorf("waiting ended with %v", err)
			}
		case err != nil:
			t.Error(err)
		default:
			for _, name := range []string{first, lock + "-b"} {
				if err := s.granted(all.Grant(name)); err != nil {
					t.Error(err)
				}
			}
			if err := all.Release(within(t, patience)); err != nil {
				t.Error(err)
			}
		}
		if s.lost != nil || s.waits != nil {
			held.leave(t)
		}
		s.free(t, first)
		s.free(t, lock+"-b")
	}}
}

func tryFree(t *testing.T, s *scene, lock string) cell {
	return cell{again: true, judge: func(*testing.T) {}, during: func(ctx context.Context) error {
		g, err := s.c.TryAcquire(ctx, lock)
		return s.taken(ctx, g, s.writes.check("try", err))
	}}
}

// busy accepts the error that names the holder.
func (s *scene) busy(what string, err error, held holding) error {
	var busy *coordinator.BusyError
	if !errors.As(err, &busy) {
		return s.reads.check(what, err)
	}
	if busy.Holder.Token != held.token && !s.holderDies {
		return fmt.Errorf("%s: %w: want the holder %s", what, err, held.token)
	}
	return nil
}

func tryHeld(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{again: true, judge: held.leave, during: func(ctx context.Context) error {
		g, err := s.c.TryAcquire(ctx, lock)
		if g != nil && !s.holderDies {
			return fmt.Errorf("granted %s while %s is held", g.Token(), held.token)
		}
		return s.taken(ctx, g, s.busy("try", err, held))
	}}
}

func tryAny(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	return cell{again: true, judge: held.leave, during: func(ctx context.Context) error {
		g, err := s.c.TryAcquireAny(ctx, slices.Values([]string{lock, lock + "-free"}))
		if g != nil && g.Lock() == lock && !s.holderDies {
			return fmt.Errorf("granted %s while %s is held", g.Token(), held.token)
		}
		return s.taken(ctx, g, s.writes.check("try any", err))
	}}
}

func holds(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	return cell{judge: func(t *testing.T) {
		if s.lastsOr(t, g) {
			stands(t, s.truth, g)
			release(t, g)
		}
	}}
}

func drains(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	draining := g.Draining()
	return cell{judge: func(t *testing.T) {
		if !s.lastsOr(t, g) {
			if s.c.Health().Lease != g.Lease() { // all grants of the session drain
				receive(t, draining, "that the lost grant drains")
			}
			g = s.acquire(t, lock)
		}
		eventually(t, "no draining", func() bool {
			select {
			case <-g.Draining():
				return false
			default:
				return true
			}
		})
		release(t, g)
	}}
}

func holdsAtMost(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock, coordinator.MaxHold(time.Second))
	return cell{judge: func(t *testing.T) { s.endedBy(t, ended(t, g), append(s.lost, coordinator.LostHeldTooLong)...) }}
}

func does(t *testing.T, s *scene, lock string) cell {
	inside, finish, done := make(chan *coordinator.Grant, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.c.Do(t.Context(), lock, func(ctx context.Context, g *coordinator.Grant) error {
			inside <- g
			select {
			case <-ctx.Done():
			case <-finish:
			}
			return context.Cause(ctx)
		})
	}()
	if err := s.granted(receive(t, inside, "the function")); err != nil {
		t.Error(err)
	}
	return cell{judge: func(t *testing.T) {
		if s.lost == nil {
			close(finish)
			if err := receive(t, done, "the end of do"); err != nil {
				t.Error(err)
			}
			return
		}
		s.endedBy(t, receive(t, done, "the end of do"), s.lost...)
	}}
}

func leads(t *testing.T, s *scene, lock string) cell {
	tenures, finish := make(chan *coordinator.Grant, 10), make(chan struct{})
	l := lead(t, s.c, lock, s.tenure(tenures, finish))
	if err := s.granted(receive(t, tenures, "a tenure")); err != nil {
		t.Error(err)
	}
	return cell{judge: func(t *testing.T) {
		if s.lost != nil && s.waits == nil {
			if err := s.granted(receive(t, tenures, "another tenure")); err != nil {
				t.Error(err)
			}
		}
		close(finish)
		if err := l.returned(t); err != nil && (s.waits == nil || !s.waits(err)) {
			t.Error(err)
		}
		if len(tenures) > 0 {
			t.Error("one tenure too many")
		}
	}}
}

// tenure is a function under Lead that works until it is told to finish.
func (s *scene) tenure(tenures chan<- *coordinator.Grant, finish <-chan struct{}) func(context.Context, *coordinator.Grant) error {
	return func(ctx context.Context, g *coordinator.Grant) error {
		tenures <- g
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-finish:
			return nil
		}
	}
}

func leadWaits(t *testing.T, s *scene, lock string) cell {
	held := s.hold(t, lock)
	tenures, finish := make(chan *coordinator.Grant, 10), make(chan struct{})
	close(finish)
	l := lead(t, s.c, lock, s.tenure(tenures, finish))
	s.queued(t, lock, 2)
	return cell{judge: func(t *testing.T) {
		if len(tenures) > 0 && !s.holderDies {
			t.Error("a tenure while another process holds the lock")
		}
		if s.waits == nil {
			held.leave(t)
			if err := s.granted(receive(t, tenures, "a tenure")); err != nil {
				t.Error(err)
			}
		}
		if err := l.returned(t); err != nil && (s.waits == nil || !s.waits(err)) {
			t.Error(err)
		}
		if s.waits != nil {
			held.leave(t)
		}
	}}
}

func handsOnHeld(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	next := ask(t, s.c, lock)
	return cell{
		during: func(ctx context.Context) error {
			if err := g.Release(ctx); err != nil && !s.releaseMay(err) {
				return fmt.Errorf("release: %w", err)
			}
			return nil
		},
		judge: func(t *testing.T) {
			receive(t, next.done, "the end of waiting")
			if next.err != nil {
				if s.writes.check("waiting", next.err) != nil {
					t.Errorf("waiting ended with %v", next.err)
				}
				return
			}
			h := next.grant
			if err := s.granted(h); err != nil {
				t.Error(err)
			}
			// It may have been granted before the fault, or after it.
			if err := h.Release(within(t, patience)); err != nil && !s.releaseMay(err) {
				t.Error(err)
			}
		},
	}
}

func releasesHeld(t *testing.T, s *scene, lock string) cell {
	g := s.acquire(t, lock)
	return cell{judge: func(*testing.T) {}, during: func(ctx context.Context) error {
		if err := g.Release(ctx); err != nil && !s.releaseMay(err) {
			return fmt.Errorf("release: %w", err)
		}
		return nil
	}}
}

func forgets(t *testing.T, s *scene, lock string) cell {
	kept := obtain(t, s.c, lock)
	token := kept.Token()
	return cell{
		during: func(context.Context) error {
			if kept.Token() != token {
				return errors.New("the token has changed")
			}
			kept = nil
			runtime.GC()
			return nil
		},
		judge: func(t *testing.T) {
			collected(t, "the grant is collected and released", func() bool {
				resp, err := s.truth.Get(t.Context(), s.directory(lock)+"", prefix...)
				return err == nil && resp.Count == 0
			})
		},
	}
}
