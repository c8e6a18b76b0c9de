package embedded

import "syscall"

// childAttributes: a process group of its own keeps the terminal's Ctrl-C away
// from the child, so that the parent can end it in order. The death signal is
// for a parent that is killed while the child is paused and cannot see the end
// of its input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
