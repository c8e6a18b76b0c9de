package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// fakeLessor answers proofs in the bubble's time. Real ones are tested beside,
// on a real etcd; what takes minutes or needs a machine to sleep is tested here.
type fakeLessor struct {
	clientv3.Lease

	mu      sync.Mutex
	delay   time.Duration // between a request and its answer
	err     error
	revoked int
	keys    [][]byte
	asked   int
	silent  func(n int) bool // whether the n-th request is never answered
	hidden  bool             // the list of keys never is
}

func (f *fakeLessor) answer(ctx context.Context) error {
	f.mu.Lock()
	delay, err := f.delay, f.err
	if f.asked++; f.silent != nil && f.silent(f.asked) {
		delay = time.Hour
	}
	f.mu.Unlock()
	select {
	case <-time.After(delay):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeLessor) set(delay time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay, f.err = delay, err
}

func (f *fakeLessor) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	return &clientv3.LeaseKeepAliveResponse{ID: id, TTL: 10}, nil
}

func (f *fakeLessor) TimeToLive(ctx context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	if f.hidden {
		<-ctx.Done()
	}
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	return &clientv3.LeaseTimeToLiveResponse{ResponseHeader: &pb.ResponseHeader{}, ID: id, TTL: 10, Keys: f.keys}, nil
}

func (f *fakeLessor) Revoke(context.Context, clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revoked++
	return &clientv3.LeaseRevokeResponse{}, nil
}

// bench is a session of 10 s with one grant, on a fake lease.
type bench struct {
	lessor *fakeLessor
	s      *session
	g      *Grant

	mu    sync.Mutex
	slept time.Duration // time that only the suspend-counting clock has seen
}

func (b *bench) sleepMachine(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slept += d
}

// trusting runs f in a bubble.
func trusting(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{lessor: &fakeLessor{}}
		start := time.Now()
		c := &Coordinator{
			lessor: b.lessor, log: slog.New(slog.DiscardHandler),
			now: func() instant {
				b.mu.Lock()
				defer b.mu.Unlock()
				return instant{monotonic: time.Now(), suspend: time.Since(start) + b.slept}
			},
			opts: Options{Prefix: DefaultPrefix, TTL: 10 * time.Second, CleanupTimeout: time.Second},
			keys: layout{prefix: DefaultPrefix}, callTimeout: 5 * time.Second,
			queues: make(map[string]*queue),
		}
		c.opts.DrainMargin = c.opts.TTL / 3
		c.metrics, _ = newMetrics(c)
		c.base, c.stop = context.WithCancel(t.Context())
		s := &session{
			c: c, lease: 42, ttl: 10 * time.Second, key: c.keys.session(42), create: 5,
			buried: make(chan struct{}), proof: c.now(), ticked: make(chan struct{}), draining: make(chan struct{}),
			entries: make(map[string]*entry),
		}
		s.settling.s = s
		s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(c.base))
		b.s = s
		q := &queue{c: c, lock: "orders", directory: c.keys.directory("orders"), pause: newPause()}
		e := q.newEntryLocked(s, &waiter{})
		e.create, q.entry, c.queues[q.directory], c.current = 7, e, q, s
		b.lessor.keys = [][]byte{[]byte(s.key), []byte(e.key)}
		token, err := revisionfence.New("orders", 0, 7)
		if err != nil {
			t.Fatal(err)
		}
		b.g = newGrant(e, token, &waiter{ctx: t.Context()})
		e.grant = b.g.hold
		c.mu.Lock()
		c.spawnLocked(s.watchClock)
		c.spawnLocked(s.prove)
		c.mu.Unlock()

		f(t, b)

		s.end(LostClosed)
		synctest.Wait()
		c.stop()
		if b.lessor.revoked == 0 {
			t.Error("the session is over and its lease was not revoked")
		}
	})
}

func (b *bench) holds(t *testing.T) {
	t.Helper()
	if err := b.g.Err(); err != nil || b.g.TrustedFor() <= 0 || b.g.ctx.Err() != nil {
		t.Fatalf("err %v, trusted for %v", err, b.g.TrustedFor())
	}
}

func (b *bench) lost(t *testing.T, reason LostReason) {
	t.Helper()
	var lost *LostError
	if err := b.g.Err(); !errors.As(err, &lost) || lost.Reason != reason || b.g.TrustedFor() != 0 || b.g.ctx.Err() == nil {
		t.Fatalf("err %v, trusted for %v", b.g.Err(), b.g.TrustedFor())
	}
}

func TestProvenLeaseIsTrustedForAsLongAsItIsProven(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		for range 60 {
			time.Sleep(time.Minute)
			b.holds(t)
		}
	})
}

// One of three members has stopped, and the client asks them in turn, or the same
// one again and again for a while: no request to it is answered, and none fails.
func TestStoppedMemberCostsNoLease(t *testing.T) {
	for name, silent := range map[string]func(n int) bool{
		"in turn":                   func(n int) bool { return n%3 == 0 },
		"each first of two":         func(n int) bool { return n%2 == 1 },
		"five in a row, then seven": func(n int) bool { return n%12 < 5 },
	} {
		t.Run(name, func(t *testing.T) {
			trusting(t, func(t *testing.T, b *bench) {
				b.lessor.mu.Lock()
				b.lessor.silent = silent
				b.lessor.mu.Unlock()
				for range 10 {
					time.Sleep(time.Minute)
					b.holds(t)
				}
			})
		})
	}
}

// The look at the keys comes after the proof, and takes nothing from the next.
func TestProofsDoNotWaitForTheListOfKeys(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.lessor.hidden = true
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if left, want := b.g.TrustedFor(), 9*time.Second-proofInterval(b.s.ttl)-time.Millisecond; left < want {
				t.Fatalf("trusted for %v, want at least %v", left, want)
			}
		}
	})
}

// The window is the granted TTL less a tenth, from the sending of the last proof.
func TestWindowCountsFromSending(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		time.Sleep(proofInterval(b.s.ttl) + time.Millisecond) // one proof, just sent and answered
		if left := b.g.TrustedFor(); left != 9*time.Second-time.Millisecond {
			t.Fatalf("a proof was sent a millisecond ago: trusted for %v", left)
		}
		b.lessor.set(0, errors.New("no answer"))
		time.Sleep(9*time.Second - 2*time.Millisecond)
		b.holds(t)
		time.Sleep(time.Millisecond)
		b.lost(t, LostUnproven)
	})
}

func TestSlowProofDoesNotExtendTheWindow(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		const slow = 1900 * time.Millisecond // still within a proof's own bound
		b.lessor.set(slow, nil)
		time.Sleep(proofInterval(b.s.ttl) + slow + time.Millisecond)
		if left := b.g.TrustedFor(); left != 9*time.Second-slow-time.Millisecond {
			t.Fatalf("a proof that took %v: trusted for %v", slow, left)
		}
	})
}

// The context must end by itself: a holder that waits for it calls nothing.
func TestWindowClosesWithoutAnybodyAsking(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.lessor.set(time.Hour, nil) // black hole
		start := time.Now()
		<-b.g.ctx.Done()
		// The last proof was the session's opening.
		if took := time.Since(start); took > 9*time.Second+lookInterval(b.s.ttl) || took < 8*time.Second {
			t.Errorf("the context ended after %v", took)
		}
		b.lost(t, LostUnproven)
	})
}

func TestOneFailedProofLosesNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		for range 10 {
			b.lessor.set(0, errors.New("no answer"))
			time.Sleep(b.s.ttl / 3)
			b.holds(t)
			b.lessor.set(0, nil)
			time.Sleep(b.s.ttl / 3)
			b.holds(t)
		}
	})
}

// A suspended machine: Go's timers and its monotonic clock have not moved.
func TestSleepOfTheMachineCounts(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		time.Sleep(time.Second)
		b.holds(t)
		b.sleepMachine(10 * time.Minute)
		b.lost(t, LostUnproven) // at once, before any ticker
	})
}

func TestProofThatWasInFlightDuringSleepIsTooLate(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.lessor.set(time.Second, nil)
		time.Sleep(proofInterval(b.s.ttl) + 500*time.Millisecond) // a proof is on its way
		b.sleepMachine(10 * time.Minute)
		time.Sleep(time.Second) // its answer arrives, and says that all is well
		b.lost(t, LostUnproven)
	})
}

// A clock that is set back does not lengthen anything.
func TestClockThatGoesBackChangesNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.sleepMachine(-10 * time.Minute)
		time.Sleep(time.Minute)
		b.holds(t)
		b.lessor.set(time.Hour, nil)
		time.Sleep(b.s.ttl)
		b.lost(t, LostUnproven)
	})
}

func TestLostStaysLost(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.lessor.set(time.Hour, nil)
		<-b.g.ctx.Done()
		first := b.g.Err()
		b.lessor.set(0, nil)
		b.s.proved(b.s.c.now()) // an answer that arrives after all
		time.Sleep(time.Minute)
		b.lost(t, LostUnproven)
		if b.g.Err() != first {
			t.Errorf("the reason has changed from %v to %v", first, b.g.Err())
		}
		if err := b.g.Release(t.Context()); !errors.Is(err, ErrNotHeld) || !errors.Is(err, ErrLost) {
			t.Errorf("release of a lost grant: %v", err)
		}
	})
}

func TestLeaseThatEtcdDoesNotKnow(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		b.lessor.set(0, rpctypes.ErrLeaseNotFound)
		time.Sleep(proofInterval(b.s.ttl))
		synctest.Wait()
		b.lost(t, LostRevoked)
	})
}

func TestMarginAndIntervalLeaveRoom(t *testing.T) {
	t.Parallel()
	for ttl := MinTTL; ttl <= MaxTTL; ttl += 7 * time.Second {
		window := ttl - margin(ttl)
		// A closed window must be noticed before the lease can have ended.
		if look := lookInterval(ttl); look <= 0 || look > ttl/20 || look >= margin(ttl) {
			t.Errorf("TTL %v: a look at the clock every %v, margin %v", ttl, look, margin(ttl))
		}
		// Two proofs in a row may fail, each taking all of its time.
		if p := proofInterval(ttl); 3*p > window {
			t.Errorf("TTL %v: proofs every %v in a window of %v", ttl, p, window)
		}
	}
}
