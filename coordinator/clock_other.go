//go:build !linux && !darwin

package coordinator

import "time"

// suspendClock is the wall clock here: it counts sleep. It can be set: forward
// ends a grant early, which is safe; backward changes nothing, because the
// larger of the two clocks counts.
func suspendClock() time.Duration { return time.Duration(time.Now().Round(0).UnixNano()) }
