package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcd-fence/etcd-fence/resourceguard"
	"github.com/etcd-fence/etcd-fence/revisionfence"
)

var (
	// roundsTime is how long rounds of competing writers are begun for.
	roundsTime = 500 * time.Millisecond
	// meanwhile is how long a write is held up for a newer one to overtake it. A
	// guard that makes the newer one wait makes the kit wait that long.
	meanwhile = 200 * time.Millisecond
)

const (
	// minRounds are tried at least, however slow the guard is.
	minRounds = 4

	// For the property that matters most all of the time, for others half of it.
	fully, briefly = 1, 2
)

// stepProperties are about check and effect being one step.
func stepProperties() []Property {
	return []Property{
		{
			Name: "CheckAndEffectAreOneStep",
			Doc:  "between a check and a later write a newer owner can write, and the old value wins after all",
			check: func(b *bench) {
				s := b.open()
				if slow, ok := s.(SlowPutter); ok {
					b.overtaken(s, "overtaken", func(w resourceguard.Write, during func()) error {
						_, err := slow.PutSlowly(b.ctx, w, []byte("5"), during)
						return err
					})
				} else {
					b.Logf("the subject is no SlowPutter: tried with competing writers only")
				}
				b.rounds(s, "takeover", fully, b.takeoverRound)
				if !b.h.AuthorityChecked {
					b.rounds(s, "crowd", fully, b.crowdRound)
				}
			},
		},
		{
			Name:  "CheckAndDeletionAreOneStep",
			Doc:   "an old owner that tidies up must not delete what a newer one has just written",
			Needs: []Capability{Deletes},
			check: func(b *bench) {
				s := b.open()
				if slow, ok := s.(SlowDeleter); ok {
					b.overtaken(s, "overtaken deletion", func(w resourceguard.Write, during func()) error {
						_, err := slow.DeleteSlowly(b.ctx, w, during)
						return err
					})
				} else {
					b.Logf("the subject is no SlowDeleter: tried with competing writers only")
				}
				b.rounds(s, "deletion", briefly, b.deletionRound)
			},
		},
	}
}

// overtaken holds a write of the old owner up until a newer owner has written,
// or has had the time for it.
func (b *bench) overtaken(s Subject, name string, slowly func(w resourceguard.Write, during func()) error) {
	resource, old := b.h.Resource(b, name, lock), b.h.Grant(b, lock)
	b.put(s, old.Write(resource), "7")

	var once sync.Once
	var next Grant
	var overtaking error
	overtook := make(chan struct{})
	during := func() {
		once.Do(func() {
			go func() {
				defer close(overtook)
				next = b.succeed(old)
				_, overtaking = retried(b, func() (resourceguard.Result, error) {
					return s.Put(b.ctx, next.Write(resource), []byte(newValue))
				})
			}()
		})
		wait(b.ctx, overtook, meanwhile)
	}
	err := slowly(old.Write(resource), during)
	once.Do(func() {
		close(overtook)
		b.Fatalf("the slow write did not call during: %v", err)
	})
	wait(b.ctx, overtook, perProperty)
	if b.Failed() {
		return
	}
	if overtaking != nil {
		b.Fatalf("Put with the newer token while an older write was held up: %v", overtaking)
	}
	if err != nil && resourceguard.OutcomeOf(err) != resourceguard.NotApplied {
		b.Errorf("a write that was overtaken: %q with outcome %q, want %q", err, resourceguard.OutcomeOf(err), resourceguard.NotApplied)
	}
	b.wantValue(resource, newValue)
	b.wantMark(s, resource, next.Token)
}

// wait returns when done is closed, ctx ends or d is over.
func wait(ctx context.Context, done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (b *bench) rounds(s Subject, name string, part time.Duration, round func(Subject, string)) {
	start, n := time.Now(), 0
	for ; !b.Failed() && (n < minRounds || time.Since(start) < roundsTime/part); n++ {
		round(s, b.h.Resource(b, fmt.Sprintf("%s %d", name, n), lock))
	}
	b.Logf("%d rounds of kind %s in %v", n, name, time.Since(start).Round(time.Millisecond))
}

// takeoverRound lets an old owner write as fast as it can while a newer one takes
// over. It works for guards of both kinds.
func (b *bench) takeoverRound(s Subject, resource string) {
	var h history
	old := b.h.Grant(b, lock)
	b.put(s, old.Write(resource), stamp(old.Token))

	var olds sync.WaitGroup
	var takenOver atomic.Bool
	for range 3 {
		olds.Go(func() {
			for {
				last := takenOver.Load() // one more after that must be refused
				err := h.put(b, s, old.Write(resource))
				if err != nil {
					return
				}
				if last {
					b.Errorf("Put with %s was accepted after a newer token", old.Token)
					return
				}
			}
		})
	}
	next := b.succeed(old)
	var news sync.WaitGroup
	for range 2 {
		news.Go(func() {
			for range 8 {
				if err := h.put(b, s, next.Write(resource)); err != nil {
					b.Errorf("Put with the newest token: %v", err)
				}
			}
		})
	}
	news.Wait()
	takenOver.Store(true)
	olds.Wait()
	b.wantValue(resource, stamp(next.Token))
	b.wantMark(s, resource, next.Token)
	h.check(b)
	b.end(next)
}

// crowdRound lets several owners of one lock write at once, for guards that do
// not ask who the present owner is.
func (b *bench) crowdRound(s Subject, resource string) {
	var h history
	grants := b.succession(6)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for _, g := range grants {
		wg.Go(func() {
			<-begin
			for range 8 {
				if h.put(b, s, g.Write(resource)) != nil {
					return
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	newest := grants[len(grants)-1].Token
	b.wantValue(resource, stamp(newest))
	b.wantMark(s, resource, newest)
	h.check(b)
}

// succession is as many owners of the lock, one after another.
func (b *bench) succession(n int) []Grant {
	b.Helper()
	grants := []Grant{b.h.Grant(b, lock)}
	for len(grants) < n {
		grants = append(grants, b.succeed(grants[len(grants)-1]))
	}
	return grants
}

// stamp is a value that says under which token it was written.
func stamp(t revisionfence.Token) string { return "written under " + t.String() }

// history is the accepted writes of one resource, in the order that can be seen
// from outside.
type history struct {
	clock atomic.Int64

	mu   sync.Mutex
	puts []accepted
}

type accepted struct {
	token             revisionfence.Token
	invoked, returned int64
}

// put writes and records. It returns nil or an ErrStale, and looks after every
// accepted write that no older token's value stands there.
func (h *history) put(b *bench, s Subject, w resourceguard.Write) error {
	a := accepted{token: w.Token, invoked: h.clock.Add(1)}
	_, err := retried(b, func() (resourceguard.Result, error) {
		return s.Put(b.ctx, w, []byte(stamp(w.Token)))
	})
	a.returned = h.clock.Add(1)
	if err != nil {
		if !errors.Is(err, resourceguard.ErrStale) {
			b.Errorf("Put with %s among competitors: %v", w.Token, err)
		}
		return err
	}
	h.mu.Lock()
	h.puts = append(h.puts, a)
	h.mu.Unlock()
	value, _ := b.h.Read(b, w.Resource)
	text := strings.TrimPrefix(string(value), "written under ")
	there, err := revisionfence.Parse(text)
	if err != nil {
		b.Errorf("resource %q is %q, which nobody wrote", w.Resource, value)
		return nil
	}
	if order, err := there.Compare(w.Token); err != nil || order < 0 {
		b.Errorf("after %s was accepted the value is one of the older token %s", w.Token, there)
	}
	return nil
}

// check looks for a write that was begun after one with a newer token had been
// accepted, and was accepted all the same.
func (h *history) check(b *bench) {
	for _, earlier := range h.puts {
		for _, later := range h.puts {
			if earlier.returned < later.invoked && later.token.Int64() < earlier.token.Int64() {
				b.Errorf("%s was accepted after %s", later.token, earlier.token)
				return
			}
		}
	}
}

// retried repeats a write that another one blocked, as its error asks for.
func retried(b *bench, put func() (resourceguard.Result, error)) (resourceguard.Result, error) {
	return retriedFor(b.ctx, put)
}

func retriedFor(ctx context.Context, put func() (resourceguard.Result, error)) (resourceguard.Result, error) {
	for {
		r, err := put()
		if !errors.Is(err, resourceguard.ErrBlocked) || ctx.Err() != nil {
			return r, err
		}
	}
}
