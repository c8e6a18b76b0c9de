package coordinator

import "golang.org/x/sys/unix"

// On macOS the clock of this name counts sleep; the one that Go calls
// monotonic does not.
const suspendClockID = unix.CLOCK_MONOTONIC
