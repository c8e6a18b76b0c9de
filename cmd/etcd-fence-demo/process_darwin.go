package main

import "syscall"

// childAttributes: if the parent is killed while the child is stopped, the
// child's process group is orphaned, and the kernel sends a stopped orphan SIGHUP
// and SIGCONT, which end it.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
