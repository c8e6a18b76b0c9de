package coordinator

import "time"

// instant is a moment by two clocks, neither of which can be set: the
// monotonic clock, which may stand still while the machine sleeps, and one
// that counts sleep. Go's own timers and time.Since use the first alone, so a
// laptop or a virtual machine that was suspended past its lease would not
// notice (golang/go#24595).
type instant struct {
	monotonic time.Time
	suspend   time.Duration
}

// clock tells the time; tests put their own in its place.
type clock func() instant

func systemClock() instant {
	return instant{monotonic: time.Now(), suspend: suspendClock()}
}

// since is the time elapsed from u to i: the larger of what the clocks say,
// which errs towards having waited too long.
func (i instant) since(u instant) time.Duration {
	return max(i.monotonic.Sub(u.monotonic), i.suspend-u.suspend)
}
