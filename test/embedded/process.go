//go:build unix

package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const processMode = true

// childEnv holds the childSpec in the environment of a child.
const childEnv = "ETCD_FENCE_EMBEDDED_MEMBER"

// childSpec tells the child what to run.
type childSpec struct {
	Spec    spec
	Changes map[string]any // what Options.Config changed, by field
}

// childOrder is a line that the child reads from its standard input.
type childOrder struct {
	Peer uint64
	Cut  bool
}

// childReport is a line that the child writes to its standard output: when it
// has started, when it is ready, and after each order.
type childReport struct {
	ID        uint64 `json:",omitempty"`
	Error     string `json:",omitempty"`
	PortTaken bool   `json:",omitempty"`
}

// process is a member in a child process.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser // nil for a program that does not care
	exited chan struct{}  // closed once the child has been waited for
	paused bool           // guarded by Member.mu

	isReady  chan struct{} // closed when readyErr and member are known
	readyErr error
	member   uint64     // etcd's ID
	replies  chan error // to orders
}

func startProcess(ctx context.Context, m *Member, logs *logBuffer) (runner, error) {
	changes, err := changedFields(m)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(childSpec{Spec: m.spec(), Changes: changes})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = logs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it under the reader.
	stdout, childStdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = childStdout
	p, err := spawn(cmd)
	_ = childStdout.Close()
	if err != nil {
		_ = stdout.Close()
		return nil, err
	}
	p.stdin, p.isReady, p.replies = stdin, make(chan struct{}), make(chan error)
	report := make(chan error, 1)
	go func() {
		defer stdout.Close()
		reports := bufio.NewReader(stdout)
		_, err := readReport(reports)
		report <- err
		if err == nil {
			p.member, err = readReport(reports)
		}
		p.readyErr = err
		close(p.isReady)
		for err == nil {
			_, err = readReport(reports)
			select {
			case p.replies <- err:
			case <-p.exited:
			}
		}
	}()
	select {
	case err = <-report:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = p.kill(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// spawn starts a child that ends with this process.
func spawn(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = childAttributes()
	cmd.WaitDelay = time.Second
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// The death signal is sent when the thread that started the child ends,
		// so that thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is seen in its log
		}
	}()
	return p, <-started
}

func (p *process) ready(ctx context.Context) error {
	select {
	case <-p.isReady:
		return p.readyErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *process) id() uint64 { return p.member }

func (p *process) cut(ctx context.Context, peer uint64, on bool) error {
	if p.paused {
		return errors.New("the member is paused")
	}
	line, err := json.Marshal(childOrder{Peer: peer, Cut: on})
	if err != nil {
		return err
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		return err
	}
	select {
	case err := <-p.replies:
		return err
	case <-p.exited:
		return errors.New("the member's process has ended")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func readReport(r *bufio.Reader) (id uint64, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return 0, errors.New("the member's process has ended")
	}
	var report childReport
	switch err := json.Unmarshal(line, &report); {
	case err != nil:
		return 0, fmt.Errorf("the member's process said %q: %w", line, err)
	case report.PortTaken:
		return 0, fmt.Errorf("%w: %s", errPortTaken, report.Error)
	case report.Error != "":
		return 0, errors.New(report.Error)
	}
	return report.ID, nil
}

func (p *process) stop(ctx context.Context) error {
	if p.paused {
		return p.kill(ctx)
	}
	_ = p.stdin.Close() // the child takes the end of its input for the order to stop
	return p.wait(ctx)
}

// wait kills what has not ended in time.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.kill(context.WithoutCancel(ctx)))
	}
}

func (p *process) kill(ctx context.Context) error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("killed, but not gone yet: %w", context.Cause(ctx))
	}
}

// pause returns when the child has stopped. The signal alone does not stop it:
// its threads go on for as long as the scheduler lets them, and may answer.
func (p *process) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("embedded: pause: %w", err)
	}
	p.paused = true
	for deadline := time.Now().Add(callTimeout); ; {
		switch ok, err := stopped(p.cmd.Process.Pid); {
		case err != nil:
			return fmt.Errorf("embedded: pause: %w", err)
		case ok:
			return nil
		case time.Now().After(deadline):
			return errors.New("embedded: pause: the member does not stop")
		}
		time.Sleep(time.Millisecond) // the kernel tells only whoever waits for the child's end
	}
}

func (p *process) resume() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("embedded: resume: %w", err)
	}
	p.paused = false
	return nil
}
