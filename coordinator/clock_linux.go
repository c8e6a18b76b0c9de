package coordinator

import "golang.org/x/sys/unix"

const suspendClockID = unix.CLOCK_BOOTTIME
