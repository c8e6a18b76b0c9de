//go:build linux || darwin

package coordinator

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspendClock reads a clock that goes on while the machine sleeps.
func suspendClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(suspendClockID, &ts); err != nil {
		return 0 // the monotonic clock decides alone
	}
	return time.Duration(ts.Nano())
}
