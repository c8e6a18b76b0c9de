package guardtest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/etcd-fence/etcd-fence/resourceguard"
)

// deletionRound lets an old owner delete as fast as it can while a newer one takes
// over and writes.
func (b *bench) deletionRound(s Subject, resource string) {
	old := b.h.Grant(b, lock)
	b.put(s, old.Write(resource), stamp(old.Token))
	olds, takenOver := b.untilRefused(old, func() error {
		_, err := s.Delete(b.ctx, old.Write(resource))
		return err
	})
	next := b.succeed(old)
	for range 4 {
		_, err := retried(b, func() (resourceguard.Result, error) {
			return s.Put(b.ctx, next.Write(resource), []byte(stamp(next.Token)))
		})
		if err != nil {
			b.Errorf("Put with the newest token: %v", err)
		}
		if value, exists := b.h.Read(b, resource); !exists || string(value) != stamp(next.Token) {
			b.Errorf("after %s had written, resource %q is %q, %v: an old owner deleted it", next.Token, resource, value, exists)
		}
	}
	takenOver.Store(true)
	olds.Wait()
	b.wantValue(resource, stamp(next.Token))
	b.wantMark(s, resource, next.Token)
	b.end(next)
}

// untilRefused lets an old owner do something over and over in three goroutines,
// until it is refused as stale. Set takenOver once it has to be.
func (b *bench) untilRefused(old Grant, do func() error) (running *sync.WaitGroup, takenOver *atomic.Bool) {
	running, takenOver = new(sync.WaitGroup), new(atomic.Bool)
	for range 3 {
		running.Go(func() {
			for {
				last := takenOver.Load() // one more after that must be refused
				err := do()
				switch {
				case errors.Is(err, resourceguard.ErrStale):
					return
				case errors.Is(err, resourceguard.ErrBlocked) && b.ctx.Err() == nil:
					continue
				case err != nil:
					b.Errorf("with %s among competitors: %v", old.Token, err)
					return
				case last:
					b.Errorf("%s was accepted after a newer token", old.Token)
					return
				}
			}
		})
	}
	return running, takenOver
}

// oneWriteRound lets one owner write from several goroutines at once, where it has
// one write.
func (b *bench) oneWriteRound(s Subject, resource string) {
	g := b.h.Grant(b, lock)
	var wg sync.WaitGroup
	var accepted atomic.Int64
	begin := make(chan struct{})
	for range 6 {
		wg.Go(func() {
			<-begin
			_, err := retried(b, func() (resourceguard.Result, error) {
				return s.Put(b.ctx, g.Write(resource), []byte(stamp(g.Token)))
			})
			switch {
			case err == nil:
				accepted.Add(1)
			case !errors.Is(err, resourceguard.ErrStale):
				b.Errorf("Put with %s among competitors: %v", g.Token, err)
			}
		})
	}
	close(begin)
	wg.Wait()
	if n := accepted.Load(); n != 1 {
		b.Errorf("of 6 writes at once under %s %d were accepted, want 1", g.Token, n)
	}
	b.end(g)
}

// advanceRound lets the barriers of many owners arrive in any order.
func (b *bench) advanceRound(s Subject, resource string) {
	grants := b.succession(6)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for _, g := range grants {
		wg.Go(func() {
			<-begin
			for range 4 {
				err := b.advance(s, resource, g)
				if errors.Is(err, resourceguard.ErrStale) {
					return
				}
				if err != nil {
					b.Errorf("Advance with %s among competitors: %v", g.Token, err)
					return
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	b.wantMark(s, resource, grants[len(grants)-1].Token)
	b.end(grants[len(grants)-1])
}

// advance repeats a barrier that a writer blocked, as its error asks for.
func (b *bench) advance(s Subject, resource string, g Grant) error {
	_, err := retried(b, func() (resourceguard.Result, error) {
		return resourceguard.Result{}, s.Advance(b.ctx, resource, g.Token)
	})
	return err
}
