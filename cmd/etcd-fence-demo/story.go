package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// The numbers of the story. A has read 10 and sells 5; B sells 2, then takes one
// back.
const (
	stockAtFirst = "10"
	writtenByB   = "8"
	writtenLate  = "5"
	writtenAgain = "9"
)

// story tells the acts with two workers.
type story struct {
	ground *ground
	ttl    time.Duration
	line   *timeline
	a, b   *hand
}

// act is one telling: what it is about, and what the table has to know of it.
// What etcd held is not in it: the table reads that from etcd, at the revisions
// at which etcd stood then.
type act struct {
	title  string
	key    string
	fenced bool

	grantA, grantB grant
	late           answer // to A's write
	lateRelease    answer

	// Revisions at which etcd stood after these steps.
	afterSeed, afterB, afterLate, afterAgain, afterRelease int64
}

// grant is what a worker says that it was granted.
type grant struct {
	key   string
	token revisionfence.Token
}

// hire starts the workers and connects them.
func (s *story) hire(ctx context.Context) (err error) {
	patience := s.ground.target.patience()
	if s.a, err = hire("A", patience); err != nil {
		return err
	}
	if s.b, err = hire("B", patience); err != nil {
		return err
	}
	for _, h := range []*hand{s.a, s.b} {
		start := order{
			Do: doStart, Target: s.ground.target, Prefix: s.ground.prefix + "etcd-fence/",
			TTL: s.ttl, Name: "worker " + h.name,
		}
		if _, err := h.do(ctx, start, gotReady); err != nil {
			return err
		}
	}
	return nil
}

// watch ends the story when a worker dies, also one that has no order just now.
func (s *story) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-s.a.gone:
		cancel(s.a.last())
	case <-s.b.gone:
		cancel(s.b.last())
	case <-ctx.Done():
	}
}

// dismiss ends the workers.
func (s *story) dismiss() error {
	var errs []error
	for _, h := range []*hand{s.a, s.b} {
		if h != nil {
			errs = append(errs, h.dismiss())
		}
	}
	return errors.Join(errs...)
}

// tell tells the story once.
func (s *story) tell(ctx context.Context, a *act) (err error) {
	s.line.begin(a.title)
	if err := s.seed(ctx, a); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *act) error{s.grantToA, s.pauseA, s.grantToB, s.wakeA, s.finish} {
		if err := step(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// seed sets the stock, as somebody did long before. The parent does so, so that
// the first write of a worker in the history is one of the story.
func (s *story) seed(ctx context.Context, a *act) (err error) {
	bound, cancel := context.WithTimeout(ctx, s.ground.target.CommandTimeout)
	defer cancel()
	if _, err := s.ground.client.Put(bound, a.key, stockAtFirst); err != nil {
		return err
	}
	a.afterSeed, err = s.revision(ctx)
	return err
}

// revision is where etcd stands now. Nobody but the workers uses the prefix, and
// they do only what they are told: so this is after the step before, and before
// the next one.
func (s *story) revision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.ground.target.CommandTimeout)
	defer cancel()
	resp, err := s.ground.client.Get(ctx, s.ground.prefix, clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// grantToA lets A take the lock, and B learn that it is taken.
func (s *story) grantToA(ctx context.Context, a *act) error {
	got, err := s.a.do(ctx, order{Do: doAsk}, gotGranted)
	if err != nil {
		return err
	}
	a.grantA = grant{got.Key, got.Token}
	s.line.say(workerA, plain, "is granted the lock: token %s, lease %v (asked for %v)", got.Token, got.TTL, s.ttl)

	busy, err := s.b.do(ctx, order{Do: doAsk}, gotBusy)
	if err != nil {
		return err
	}
	s.line.say(workerB, plain, "asks for the lock: busy, %s holds it with token %s", busy.Holder, busy.Token)
	return nil
}

// pauseA stops A between its last check and its write.
func (s *story) pauseA(ctx context.Context, a *act) error {
	prepared, err := s.a.do(ctx, order{Do: doPrepare, Key: a.key, Value: writtenLate, Fenced: a.fenced}, gotReady)
	if err != nil {
		return err
	}
	s.line.say(workerA, plain, "reads stock = %s, checks its grant (good for %.1f s more), is about to write %s",
		prepared.Read, prepared.TrustedFor.Seconds(), writtenLate)

	ctx, cancel := context.WithTimeoutCause(ctx, s.a.patience, errors.New("it does not stop"))
	defer cancel()
	if err := s.a.process.stop(ctx); err != nil {
		return s.a.failed("SIGSTOP", err)
	}
	s.line.say(nobody, plain, "A is stopped (SIGSTOP), after its check and before its write")
	return nil
}

// grantToB waits for A's lease to run out. Nothing but the grant to B tells that
// it has.
func (s *story) grantToB(ctx context.Context, a *act) error {
	// After a change of leader etcd starts all leases anew.
	limit := 3*s.ttl + 30*time.Second
	bound, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("A's lease has not run out within %v", limit))
	defer cancel()
	s.line.say(workerB, plain, "waits for the lock")
	if err := s.b.tell(order{Do: doAcquire}); err != nil {
		return err
	}
	// Only one of them prints at a time.
	done := make(chan struct{})
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		s.line.countdown("A's lease runs out", s.ttl, done)
	}()
	got, err := s.b.hear(bound, doAcquire, gotGranted)
	close(done)
	<-counted
	if err != nil {
		return err
	}
	a.grantB = grant{got.Key, got.Token}
	s.line.say(workerB, plain, "is granted the lock: token %s; A's lease has run out", got.Token)

	if err := s.write(ctx, a, writtenByB); err != nil {
		return err
	}
	a.afterB, err = s.revision(ctx)
	return err
}

// write lets B write.
func (s *story) write(ctx context.Context, a *act, value string) error {
	got, err := s.b.do(ctx, order{Do: doWrite, Key: a.key, Value: value, Fenced: a.fenced}, gotWritten)
	if err != nil {
		return err
	}
	s.line.say(workerB, plain, "writes stock = %s: stored, revision %d", value, got.Revision)
	return nil
}

// wakeA continues A. The order to go is in its pipe before it runs again.
func (s *story) wakeA(ctx context.Context, a *act) (err error) {
	if err := s.a.tell(order{Do: doGo}); err != nil {
		return err
	}
	s.line.say(nobody, plain, "A is continued (SIGCONT); its next step is the write")
	if err := s.a.process.resume(); err != nil {
		return s.a.failed("SIGCONT", err)
	}
	bound, cancel := context.WithTimeoutCause(ctx, s.a.patience, fmt.Errorf("no answer within %v", s.a.patience))
	defer cancel()
	if a.late, err = s.a.hear(bound, doGo, gotWritten, gotRefused); err != nil {
		return err
	}
	if a.late.Got == gotRefused {
		s.line.say(workerA, green, "writes stock = %s: REFUSED as stale; it has token %s, etcd has accepted %s",
			writtenLate, a.late.Presented, a.late.Accepted)
		s.line.say(workerA, faint, "the error in full: %s", a.late.Error)
	} else {
		s.line.say(workerA, red, "writes stock = %s: STORED, revision %d; the old value has overwritten the new one",
			writtenLate, a.late.Revision)
	}
	a.afterLate, err = s.revision(ctx)
	return err
}

// finish lets B write once more, and A release what it no longer holds.
func (s *story) finish(ctx context.Context, a *act) (err error) {
	if err := s.write(ctx, a, writtenAgain); err != nil {
		return err
	}
	if a.afterAgain, err = s.revision(ctx); err != nil {
		return err
	}
	if a.lateRelease, err = s.a.do(ctx, order{Do: doRelease}, gotReleased, gotNotHeld); err != nil {
		return err
	}
	if a.lateRelease.Got == gotNotHeld {
		s.line.say(workerA, green, "releases the lock: REFUSED, it is not held; B keeps it")
		s.line.say(workerA, faint, "the error in full: %s", a.lateRelease.Error)
	} else {
		s.line.say(workerA, red, "releases the lock: DONE, though the lock is B's")
	}
	a.afterRelease, err = s.revision(ctx)
	return err
}

// handBack makes the lock free for the next act.
func (s *story) handBack(ctx context.Context) error {
	if _, err := s.b.do(ctx, order{Do: doRelease}, gotReleased); err != nil {
		return err
	}
	s.line.say(workerB, plain, "releases the lock: done")
	return nil
}
