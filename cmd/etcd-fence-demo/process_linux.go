package main

import "syscall"

// childAttributes: the death signal is for a parent that is killed while the
// child is stopped and cannot see the end of its input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
