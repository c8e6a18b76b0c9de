package coordinator

import (
	"testing"
	"time"
)

// readyEntry is a lock key that etcd has just shown to own its lock, and a
// goroutine that waits for it.
func (b *bench) readyEntry(t *testing.T) (*queue, *entry, *waiter) {
	t.Helper()
	c := b.s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	q := &queue{c: c, lock: "stock", directory: c.keys.directory("stock"), pause: newPause()}
	q.driving = true // the test is its driver
	e := q.newEntryLocked(b.s, &waiter{})
	e.create, q.entry = 8, e
	w := &waiter{ctx: t.Context(), lock: "stock", result: make(chan result, 1)}
	q.joinLocked(w)
	return q, e, w
}

func (w *waiter) granted() bool {
	select {
	case r := <-w.result:
		return r.grant != nil
	default:
		return false
	}
}

func TestGrantIsDeliveredWhileTheWindowIsOpen(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		q, e, w := b.readyEntry(t)
		q.deliver(e)
		if !w.granted() {
			t.Error("not granted")
		}
	})
}

// The answer lay in a socket while the machine slept: its goroutine may run
// before the one that looks at the clock does.
func TestAnswerThatWasReadAfterTheWindowClosedGrantsNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		q, e, w := b.readyEntry(t)
		b.sleepMachine(time.Minute)
		q.deliver(e)
		if w.granted() {
			t.Error("granted, though the window is closed")
		}
		if b.s.over() == nil {
			t.Error("the session goes on")
		}
	})
}

// The key was found missing, or its session over, after the answer that had
// shown it.
func TestKeyThatWasLostMeanwhileGrantsNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		q, e, w := b.readyEntry(t)
		b.s.c.lose(e, LostKeyDeleted, "")
		q.deliver(e)
		if w.granted() {
			t.Error("granted on a key that is gone")
		}
	})
}

func TestKeyThatNobodyWantsAnyMoreGrantsNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		q, e, w := b.readyEntry(t)
		if left, _ := q.withdraw(w); !left {
			t.Fatal("the waiter had been answered")
		}
		q.deliver(e)
		if w.granted() || e.grant != nil {
			t.Error("granted to a waiter that had left")
		}
	})
}

func TestProofThatIsAnsweredOutOfOrderShortensNothing(t *testing.T) {
	trusting(t, func(t *testing.T, b *bench) {
		earlier := b.s.c.now()
		time.Sleep(time.Second)
		b.s.proved(b.s.c.now())
		left := b.g.TrustedFor()
		b.s.proved(earlier)
		if now := b.g.TrustedFor(); now != left {
			t.Errorf("trusted for %v, and then for %v", left, now)
		}
	})
}

func TestLocksTakenTogetherAreGrantedWhileTheWindowIsOpen(t *testing.T) {
	for _, open := range []bool{true, false} {
		trusting(t, func(t *testing.T, b *bench) {
			c := b.s.c
			at := &together{c: c, s: b.s, done: make(chan struct{})}
			for _, lock := range []string{"a", "b"} {
				w := &waiter{ctx: t.Context(), lock: lock, result: make(chan result, 1)}
				c.mu.Lock()
				q := c.newQueueLocked(lock, c.keys.directory(lock))
				q.driving, q.entry = true, q.newEntryLocked(b.s, w)
				at.waiters, at.entries = append(at.waiters, w), append(at.entries, q.entry)
				c.mu.Unlock()
			}
			if !open {
				b.sleepMachine(time.Minute)
			}
			at.finish(8, nil)
			if granted := at.grants != nil; granted != open {
				t.Errorf("window open %v: granted %v", open, granted)
			}
		})
	}
}
