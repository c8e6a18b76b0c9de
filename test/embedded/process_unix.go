//go:build unix && !linux

package embedded

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// childAttributes: a process group of its own keeps the terminal's Ctrl-C away
// from the child, so that the parent can end it in order. If the parent is
// killed while the child is paused, the group is orphaned, and the kernel sends
// a stopped orphan SIGHUP and SIGCONT, which end it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped says whether a child has stopped. Waiting for it with wait4 might take
// its end away from whoever waits for that.
func stopped(pid int) (bool, error) {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T"), err
}
