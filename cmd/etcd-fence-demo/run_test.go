//go:build linux || darwin

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// patience bounds what takes a second or two on an idle machine.
const patience = 60 * time.Second

// show is a demo that runs, and what it has printed so far.
type show struct {
	t    *testing.T
	mark string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and all is read

	mu      sync.Mutex
	printed bytes.Buffer
	more    chan struct{} // closed at the next output
}

// startShow runs the demo on the etcd, with its output and its errors in one
// pipe, or in the terminal if one is given.
func startShow(t *testing.T, etcd *embedded.Cluster, terminal, slave *os.File, env ...string) *show {
	t.Helper()
	s := &show{t: t, mark: newMark(), done: make(chan struct{}), more: make(chan struct{})}
	// The lease is long enough for a test that is slow to act while A is stopped.
	s.cmd = exec.CommandContext(t.Context(), program, "--endpoints", etcd.Endpoints()[0], "--ttl", "10s")
	s.cmd.Env = append(append(os.Environ(), markName+"="+s.mark), env...)
	out := terminal
	if terminal == nil {
		var err error
		if out, slave, err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	} else {
		// Ctrl-C goes to whoever has the terminal.
		s.cmd.Stdin = slave
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	s.cmd.Stdout, s.cmd.Stderr = slave, slave
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	go func() {
		defer close(s.done)
		_, _ = io.Copy(s, out) // ends with an error where a terminal is closed
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		_ = out.Close()
	})
	return s
}

func (s *show) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.printed.Write(p)
	close(s.more)
	s.more = make(chan struct{})
	return len(p), nil
}

func (s *show) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.String()
}

// await waits until the demo has printed something, and returns what the groups
// of the pattern match.
func (s *show) await(pattern string) []string {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		found, more := re.FindStringSubmatch(s.printed.String()), s.more
		s.mu.Unlock()
		if found != nil {
			return found[1:]
		}
		select {
		case <-more:
		case <-s.done:
			s.t.Fatalf("it ended without printing %q:\n%s", pattern, s.text())
		case <-timeout:
			s.t.Fatalf("it does not print %q:\n%s", pattern, s.text())
		}
	}
}

// end waits for the demo to end and returns its exit status.
func (s *show) end() int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("it does not end:\n%s", s.text())
	}
	return s.cmd.ProcessState.ExitCode()
}

// nothingLeft wants that the demo has left no process and nothing in etcd.
func (s *show) nothingLeft(etcd *embedded.Cluster) {
	s.t.Helper()
	if left := processes(s.mark); len(left) > 0 {
		s.t.Errorf("processes are left: %q", left)
	}
	if keys, err := keysUnder(s.t.Context(), etcd.Client(), prefixes); err != nil || len(keys) > 0 {
		s.t.Errorf("keys are left: %q, %v", keys, err)
	}
	if n, err := leases(s.t.Context(), etcd.Client()); err != nil || n > 0 {
		s.t.Errorf("%d leases are left, %v", n, err)
	}
}

const whileStopped = "A's lease runs out in"

// A is stopped at these moments, so it cannot help.
func TestASignalCleansUp(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, nil)
			s := startShow(t, etcd, nil, nil)
			s.await(whileStopped)
			if err := s.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if status := s.end(); status != 128+int(signal) {
				t.Errorf("exit status %d", status)
			}
			if !strings.Contains(s.text(), signal.String()+": cleaning up") || strings.Contains(s.text(), "error") {
				t.Error(s.text())
			}
			s.nothingLeft(etcd)
		})
	}
}

// What "etcd-fence-demo | head" does.
func TestAClosedPipeCleansUp(t *testing.T) {
	t.Parallel()
	etcd := embedded.Start(t, nil)
	mark := newMark()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", program+" --endpoints "+etcd.Endpoints()[0]+" | head -n 1")
	cmd.Env = append(os.Environ(), markName+"="+mark)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v:\n%s", err, out)
	}
	// The shell waits for both.
	(&show{t: t, mark: mark}).nothingLeft(etcd)
}

// A worker that dies ends the demo, at once and with its name.
func TestADeadWorkerFailsTheDemo(t *testing.T) {
	for _, worker := range []string{"A", "B"} {
		t.Run(worker, func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, nil)
			s := startShow(t, etcd, nil, nil)
			pid, err := strconv.Atoi(s.await(worker + " is process ([0-9]+)")[0])
			if err != nil {
				t.Fatal(err)
			}
			s.await(whileStopped)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if status := s.end(); status != exitFailed {
				t.Errorf("exit status %d", status)
			}
			if strings.Contains(s.text(), "B  is granted the lock") {
				t.Error("it went on")
			}
			if want := regexp.MustCompile(`error: worker ` + worker + ` has died: signal 9 \(killed\)\n$`); !want.MatchString(s.text()) {
				t.Error(s.text())
			}
			s.nothingLeft(etcd)
		})
	}
}

// Nobody is left to clean up in etcd; but no process may be left, and a stopped
// one cannot see that its parent is gone.
func TestWorkersEndWithTheirParent(t *testing.T) {
	t.Parallel()
	etcd := embedded.Start(t, nil)
	s := startShow(t, etcd, nil, nil)
	var pids []int
	for _, text := range s.await("A is process ([0-9]+), B is process ([0-9]+)") {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	s.await(whileStopped)
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.end() // the workers had the write end of no pipe that is read here
	for _, pid := range pids {
		awaitGone(t, pid)
	}
}

// awaitGone waits for a process that is nobody's child here, so that no event
// tells of its end.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(patience); !gone(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

// gone also takes a process for gone that only waits to be buried: in some
// containers nobody does that.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// The story rests on A being stopped, not on a signal having been sent.
func TestStopReturnsWhenTheProcessHasStopped(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", "while :; do echo x; done")
	cmd.Stdout = w
	p, err := startProcess(cmd)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.kill(); err != nil {
			t.Error(err)
		}
		<-p.gone()
	}()
	for range 20 {
		if _, err := io.ReadFull(r, make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		if err := p.stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		told := p.state
		p.mu.Unlock()
		if told != stopped {
			t.Fatal("it did not wait until the kernel said so")
		}
		// ps knows the state on each system.
		if _, err := exec.LookPath("ps"); err != nil {
			t.Skip("a second opinion on the state of a process needs ps")
		}
		state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(p.pid)).Output()
		if err != nil || !strings.HasPrefix(strings.TrimSpace(string(state)), "T") {
			t.Fatalf("state %q, %v", state, err)
		}
		if err := p.resume(); err != nil {
			t.Fatal(err)
		}
	}
}
