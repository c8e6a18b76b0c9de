package coordinator

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/etcd-fence/etcd-fence/revisionfence"
)

// queue is what this process knows and wants of one lock: who of its goroutines
// waits, in order, and the one lock key that it has in etcd for all of them. It
// goes by directory, because that is what etcd excludes by. It exists while
// somebody holds or wants the lock.
//
// All that happens at etcd for a queue is done by one goroutine at a time, the
// driver, step by step. It is not the goroutine of whoever wants the lock, so
// that a caller who leaves does not cancel a request whose outcome would then
// have to be found out. No driver runs while a lock is merely held.
type queue struct {
	c         *Coordinator
	lock      string // as the first who asked called it; others may call it otherwise
	directory string
	pause     pause // between attempts that failed
	again     pause // between attempts whose key was taken away

	// Guarded by Coordinator.mu.

	waiters list.List // of *waiter
	entry   *entry
	driving bool
	asking  bool               // the driver asks for the lock, for the waiter at the front
	stop    context.CancelFunc // ends the driver's present wait
	settled []chan struct{}    // closed when what a leaver left behind is gone, or wanted again
	holder  Holder             // who owns the lock, if it is not this process
	trouble error              // why the lock could not even be asked for, last time
	taken   int                // how often in a row a key of those who wait was taken away
}

// waiter is one goroutine that wants the lock.
type waiter struct {
	ctx     context.Context // whose values the grant keeps
	outer   *held           // the grants that it works under
	since   time.Time       // when it came
	lock    string          // as it calls the lock: the name in its token
	reason  string
	value   []byte
	maxHold time.Duration
	try     bool
	result  chan result // buffered: delivering never blocks
	place   *list.Element
}

type result struct {
	grant *Grant
	err   error
}

// startLocked makes the driver run, if it does not run already.
func (q *queue) startLocked() {
	if q.driving {
		return
	}
	q.driving = true
	if !q.c.spawnLocked(q.drive) {
		q.driving = false
	}
}

// joinLocked appends a waiter.
func (q *queue) joinLocked(w *waiter) {
	w.place = q.waiters.PushBack(w)
	for _, done := range q.settled {
		close(done) // what the leavers left behind is wanted again
	}
	q.settled = nil
	q.c.counts.waiting.Add(1)
	if e := q.entry; e == nil || e.grant == nil || e.lost != "" {
		q.startLocked()
	}
}

func (q *queue) removeLocked(w *waiter) {
	q.waiters.Remove(w.place)
	w.place = nil
	q.c.counts.waiting.Add(-1)
}

func (q *queue) frontLocked() *waiter {
	if f := q.waiters.Front(); f != nil {
		return f.Value.(*waiter)
	}
	return nil
}

// answerLocked takes a waiter out of the queue with its result.
func (q *queue) answerLocked(w *waiter, r result) {
	if w.place == nil {
		return // has left
	}
	q.removeLocked(w)
	q.taken = 0
	if q.entry == nil {
		q.asking = false // who comes now is asked for afresh
	}
	w.result <- r
}

// withdraw takes a waiter out that no longer wants the lock, unless it has been
// answered already. The channel is closed once nothing of it is left at etcd.
func (q *queue) withdraw(w *waiter) (left bool, settled <-chan struct{}) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	if w.place == nil {
		return false, nil
	}
	q.removeLocked(w)
	done := make(chan struct{})
	if q.waiters.Len() > 0 || !q.driving {
		close(done)
		return true, done
	}
	q.settled = append(q.settled, done)
	if q.stop != nil {
		q.stop()
	}
	return true, done
}

// wanted reports whether anybody waits.
func (q *queue) wanted() bool {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.waiters.Len() > 0
}

// waiting returns a context that ends when nobody waits any more.
func (q *queue) waiting() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(q.c.base)
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	if q.waiters.Len() == 0 {
		cancel()
	}
	q.stop = cancel
	return ctx, func() {
		q.c.mu.Lock()
		q.stop = nil
		q.c.mu.Unlock()
		cancel()
	}
}

func (q *queue) drive() {
	for q.step() {
	}
}

// step does the next thing that is to be done, and reports whether there was one.
func (q *queue) step() bool {
	c := q.c
	c.mu.Lock()
	e, w := q.entry, q.frontLocked()
	if e != nil && e.lost != "" {
		q.entry = nil
		if e.grant == nil {
			q.taken++
		}
		c.mu.Unlock()
		e.finishLost()
		return true
	}
	if w != nil || e == nil {
		for _, done := range q.settled {
			close(done)
		}
		q.settled = nil
	}
	switch {
	case e == nil && w == nil: // nothing left
		q.driving = false
		c.vanishLocked(q)
		c.mu.Unlock()
		return false
	case e == nil:
		q.asking = true
		c.mu.Unlock()
		q.begin(w)
		c.mu.Lock()
		q.asking = false
		c.mu.Unlock()
	case e.grant == nil && w == nil: // nobody wants the key any more
		c.mu.Unlock()
		q.depart(e)
	case e.grant == nil:
		c.mu.Unlock()
		q.await(e)
	case !e.grant.leaving: // held
		q.driving = false
		c.mu.Unlock()
		return false
	case w == nil:
		c.mu.Unlock()
		q.depart(e)
	default:
		c.mu.Unlock()
		q.handOn(e, w)
	}
	return true
}

// begin puts a lock key of this process into the queue at etcd.
func (q *queue) begin(w *waiter) {
	ctx, done := q.waiting()
	defer done()
	q.spare(ctx)
	s, err := q.c.session(ctx)
	if err != nil {
		q.failed(ctx, w, err)
		return
	}
	var tries []*waiter
	if w.try {
		// A look first: most tries fail, and a read costs no proposal. It answers all
		// that have come by now.
		tries = q.tries()
		taken, err := q.look(ctx, s)
		switch {
		case err != nil:
			q.failed(ctx, w, err)
			return
		case !taken.IsZero():
			q.busy(tries, taken)
			return
		}
	}

	q.c.mu.Lock()
	e := q.newEntryLocked(s, w)
	q.entry = e
	q.c.mu.Unlock()
	enter := e.enter
	if w.try {
		enter = e.enterIfFree
	}
	at, err := enter()
	if err == nil {
		q.pause.policy.Reset()
		if at.first == nil {
			// Adopted: where it stands is not known. Mostly it owns the lock, and
			// nothing needs to be watched.
			v, err := q.readPlace(ctx, e, false)
			at.owner = err == nil && v.owner
		}
		if at.owner {
			q.deliver(e)
		} else if at.first != nil {
			q.saw(holderOf(q.lock, s.epoch, at.first))
		}
		return
	}
	e.forget()
	q.c.mu.Lock()
	q.entry = nil
	if errors.Is(err, errKeyGone) || errors.Is(err, errSessionOver) {
		q.taken++
	}
	q.c.mu.Unlock()
	switch {
	case errors.Is(err, errTaken):
		q.busy(tries, holderOf(q.lock, s.epoch, at.first))
	case errors.Is(err, errKeyGone), errors.Is(err, errSessionOver):
		// Nothing is left of it: start afresh.
	default:
		q.failed(ctx, w, err)
	}
}

// spare pauses if keys were taken away again and again, as by somebody who deletes
// them in a loop. The first time is no reason to wait.
func (q *queue) spare(ctx context.Context) {
	q.c.mu.Lock()
	taken := q.taken
	q.c.mu.Unlock()
	switch {
	case taken == 0:
		q.again.policy.Reset()
	case taken > 1:
		q.again.wait(ctx)
	}
}

// look asks who owns the lock now.
func (q *queue) look(ctx context.Context, s *session) (Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, q.c.callTimeout)
	defer cancel()
	resp, err := q.c.kv.Do(ctx, q.head())
	if err != nil {
		return Holder{}, fmt.Errorf("look at lock %q: %w", q.lock, err)
	}
	if kvs := resp.Get().Kvs; len(kvs) > 0 {
		return holderOf(q.lock, s.epoch, kvs[0]), nil
	}
	return Holder{}, nil
}

// tries are those in the queue that do not wait for the lock, only for an answer.
func (q *queue) tries() []*waiter {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.triesLocked()
}

func (q *queue) triesLocked() []*waiter {
	var tries []*waiter
	for f := q.waiters.Front(); f != nil; f = f.Next() {
		if w := f.Value.(*waiter); w.try {
			tries = append(tries, w)
		}
	}
	return tries
}

func (q *queue) busy(tries []*waiter, h Holder) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	q.busyLocked(tries, h)
}

func (q *queue) busyLocked(tries []*waiter, h Holder) {
	for _, w := range tries {
		q.answerLocked(w, result{err: &BusyError{Lock: w.lock, Holder: h}})
	}
}

// saw remembers who owns the lock, for those who ask.
func (q *queue) saw(h Holder) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	q.holder, q.trouble = h, nil
	q.busyLocked(q.triesLocked(), h)
}

// failed deals with an error that left nothing behind: an error that waiting
// cannot cure goes to the waiter, after any other the attempt is repeated for
// as long as somebody waits.
func (q *queue) failed(ctx context.Context, w *waiter, err error) {
	if q.c.base.Err() != nil {
		err = fmt.Errorf("%w, or its client was", ErrClosed)
	} else if ctx.Err() != nil {
		return // nobody waits: this is why
	}
	q.c.mu.Lock()
	first := q.trouble == nil
	final := w.try || incurable(err)
	err = ownBound(err)
	q.trouble, q.holder = err, Holder{}
	for _, try := range q.triesLocked() {
		q.answerLocked(try, result{err: err})
	}
	if final {
		q.answerLocked(w, result{err: err})
		q.c.mu.Unlock()
		return
	}
	q.c.mu.Unlock()
	if first {
		q.c.log.Warn("lock not asked for yet", "lock", q.lock, "error", err)
	}
	q.pause.wait(ctx)
}

// incurable reports whether an error will be the same at the next attempt.
func incurable(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalidOption) || errors.Is(err, ErrRestored) || errors.Is(err, ErrFormat) ||
		errors.Is(err, rpctypes.ErrNoSpace) {
		return true
	}
	switch codeOf(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.FailedPrecondition:
		return true
	}
	return false
}

// deliver makes the first waiter the holder. The caller has seen, in a
// linearizable answer, that the entry owns the lock.
//
// Step G1: not unless the trust window is open now. However long the answer
// took, a handle whose time is already over is never returned.
func (q *queue) deliver(e *entry) {
	if !e.s.trusted() {
		return
	}
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w := q.frontLocked()
	if w == nil || e.lost != "" {
		return // the next step sees to the key
	}
	token, err := revisionfence.New(w.lock, e.s.epoch, e.create)
	if err != nil {
		for w := q.frontLocked(); w != nil; w = q.frontLocked() {
			q.answerLocked(w, result{err: fmt.Errorf("lock %q: %w", w.lock, err)})
		}
		return
	}
	q.holder, q.trouble = Holder{}, nil
	g := newGrant(e, token, w)
	e.grant = g.hold
	if record := w.record(c); !record.equal(e.record) {
		// The key was put for somebody who has left. To tell that from a
		// transaction on the way here would cost every hand-on.
		e.record, g.outdated = record, true
		c.spawnLocked(g.hold.rewrite)
	}
	q.answerLocked(w, result{grant: g})
	q.busyLocked(q.triesLocked(), e.holder())
}
