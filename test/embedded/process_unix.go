//go:build unix && !linux

package embedded

import "syscall"

// childAttributes: a process group of its own keeps the terminal's Ctrl-C away
// from the child, so that the parent can end it in order. If the parent is
// killed while the child is paused, the group is orphaned, and the kernel sends
// a stopped orphan SIGHUP and SIGCONT, which end it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
