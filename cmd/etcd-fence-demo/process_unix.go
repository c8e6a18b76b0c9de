//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkSystem reports a system on which the demo cannot run.
func checkSystem() error { return nil }

// process is a child that can be stopped. Nobody else may wait for it: what the
// kernel tells about a child, it tells once.
type process struct {
	pid int

	mu      sync.Mutex
	state   state
	status  syscall.WaitStatus // once it has ended
	changed chan struct{}      // closed at the next change of state
}

type state int

const (
	running state = iota
	stopped
	ended
)

// startProcess starts cmd, whose standard files must be *os.File or nil.
func startProcess(cmd *exec.Cmd) (*process, error) {
	// In a process group of its own the child does not get the terminal's
	// Ctrl-C, so that the parent decides in which order things end.
	cmd.SysProcAttr = childAttributes()
	p := &process{changed: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the death signal when the thread that started the child
		// ends, so that thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.watch()
			_ = cmd.Process.Release()
		}
	}()
	return p, <-started
}

// watch follows the child's state until it has ended. Cmd.Wait cannot be used:
// it does not tell that a child was stopped, and takes the news from who asks.
func (p *process) watch() {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && status.Exited(), err == nil && status.Signaled(), err != nil:
			p.set(ended, status)
			return
		default:
			p.set(stopped, status)
		}
	}
}

// set records a new state and wakes whoever waits for it.
func (p *process) set(s state, status syscall.WaitStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.status = s, status
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until the child is in that state. That it has ended is an error,
// unless that is waited for.
func (p *process) await(ctx context.Context, want state) error {
	for {
		p.mu.Lock()
		s, changed := p.state, p.changed
		p.mu.Unlock()
		switch {
		case s == want:
			return nil
		case s == ended:
			return fmt.Errorf("the process has ended: %s", p.ending())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// gone is closed when the child has ended.
func (p *process) gone() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.await(context.Background(), ended)
	}()
	return done
}

// ending says in words how the child ended.
func (p *process) ending() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Signaled() {
		return fmt.Sprintf("signal %d (%v)", p.status.Signal(), p.status.Signal())
	}
	return fmt.Sprintf("exit status %d", p.status.ExitStatus())
}

// stop sends SIGSTOP and waits until the kernel says that the whole process has
// stopped.
func (p *process) stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return p.await(ctx, stopped)
}

// resume sends SIGCONT. The kernel is not asked whether it worked: the child shows
// that by what it does, and macOS reports it in a way of its own.
func (p *process) resume() error {
	p.mu.Lock()
	if p.state == stopped {
		p.state = running
	}
	p.mu.Unlock()
	return p.signal(syscall.SIGCONT)
}

// kill ends the child at once, also a stopped one.
func (p *process) kill() error { return p.signal(syscall.SIGKILL) }

// signal does nothing once the child has ended: its number may be another's.
func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == ended {
		return nil
	}
	if err := syscall.Kill(p.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%v: %w", s, err)
	}
	return nil
}

// columns is the width of the terminal behind the file, 0 if it is none.
func columns(fd uintptr) int {
	size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 {
		return 80 // a terminal that does not know its size
	}
	return int(size.Col)
}
