package embedded

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes: a process group of its own keeps the terminal's Ctrl-C away
// from the child, so that the parent can end it in order. The death signal is
// for a parent that is killed while the child is paused and cannot see the end
// of its input. The kernel ends stopped orphans by itself, but they are none to
// it if a subreaper of the same session adopts them, which is what runs tests in
// many a container.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped says whether all threads of a child have stopped. It leaves the
// child's state for whoever waits for its end.
func stopped(pid int) (bool, error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return info.Signo != 0, err
		}
	}
}
