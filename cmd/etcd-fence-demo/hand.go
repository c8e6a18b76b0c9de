package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// killTimeout is how long a worker may take to leave when it was asked to.
const killTimeout = leaveTimeout + time.Second

// hand is a worker process as the parent sees it. Only one goroutine may use it.
type hand struct {
	name    string // "A" or "B"
	process *process
	// patience is how long the worker may take for what waits for nobody.
	patience time.Duration
	orders   *os.File
	answers  <-chan answer // closed when the worker has ended
	gone     <-chan struct{}
	// heard is closed when all that the worker wrote to its standard error is in
	// stderr.
	heard  <-chan struct{}
	stderr *bytes.Buffer
}

// hire starts a worker process. It has not connected to etcd yet.
func hire(name string, patience time.Duration) (*hand, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Pipes of our own, since those of exec.Cmd are closed by its Wait, which
	// cannot be used here: see process.
	cmd := exec.Command(self, workerCommand)
	var ours, theirs [3]*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // a nil *os.File only says so
		}
	}()
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w", name, err)
		}
		if ours[i], theirs[i] = r, w; i == 0 {
			ours[i], theirs[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]

	h := &hand{name: name, patience: patience, orders: ours[0], stderr: new(bytes.Buffer)}
	if h.process, err = startProcess(cmd); err != nil {
		for _, f := range ours {
			_ = f.Close()
		}
		return nil, fmt.Errorf("worker %s: %w", name, err)
	}
	h.gone = h.process.gone()
	answers, heard := make(chan answer), make(chan struct{})
	h.answers, h.heard = answers, heard
	go h.listen(ours[1], answers)
	go func() {
		defer close(heard)
		defer ours[2].Close()
		// A worker that says very much must neither fill the memory nor be held up
		// by a full pipe.
		_, _ = io.Copy(h.stderr, io.LimitReader(ours[2], 1<<16))
		_, _ = io.Copy(io.Discard, ours[2])
	}()
	return h, nil
}

// listen passes the worker's answers on until it has ended.
func (h *hand) listen(r io.ReadCloser, answers chan<- answer) {
	defer close(answers)
	defer r.Close()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			a = answer{Got: gotFailed, Error: fmt.Sprintf("said %q: %v", lines.Text(), err)}
		}
		select {
		case answers <- a:
		case <-h.gone: // an answer that nobody waits for any more
			return
		}
	}
}

// do gives an order and waits for the answer.
func (h *hand) do(ctx context.Context, o order, want ...result) (answer, error) {
	if err := h.tell(o); err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.patience, fmt.Errorf("no answer within %v", h.patience))
	defer cancel()
	return h.hear(ctx, o.Do, want...)
}

// tell gives an order.
func (h *hand) tell(o order) error {
	if err := json.NewEncoder(h.orders).Encode(o); err != nil {
		return h.failed(o.Do, err)
	}
	return nil
}

// hear waits for the answer to an order, which must be one of those that are
// wanted.
func (h *hand) hear(ctx context.Context, do verb, want ...result) (answer, error) {
	select {
	case a, ok := <-h.answers:
		if !ok {
			<-h.gone
			return a, h.last()
		}
		for _, w := range want {
			if a.Got == w {
				return a, nil
			}
		}
		if a.Error == "" {
			a.Error = fmt.Sprintf("it was %s", a.Got)
		}
		return a, h.failed(do, errors.New(a.Error))
	case <-ctx.Done():
		return answer{}, h.failed(do, context.Cause(ctx))
	}
}

// failed says which order could not be carried out, and by whom.
func (h *hand) failed(do verb, err error) error {
	return fmt.Errorf("worker %s, %s: %w", h.name, do, err)
}

// deadError is a worker that has ended before it was asked to.
type deadError struct{ name, how, lastWords string }

func (e *deadError) Error() string {
	text := fmt.Sprintf("worker %s has died: %s", e.name, e.how)
	if e.lastWords != "" {
		text += "\n" + e.lastWords
	}
	return text
}

// last is how a worker that is gone has ended.
func (h *hand) last() *deadError {
	<-h.heard
	return &deadError{h.name, h.process.ending(), strings.TrimSpace(h.stderr.String())}
}

// dismiss lets the worker give back what it holds, and ends its process in any
// case. A stopped one is continued: it finds its pipe closed and writes nothing.
func (h *hand) dismiss() error {
	_ = h.orders.Close()
	_ = h.process.resume()
	leave, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if h.process.await(leave, ended) == nil {
		return nil
	}
	err := h.process.kill()
	die, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if h.process.await(die, ended) != nil {
		return &leftError{fmt.Sprintf("worker %s, process %d", h.name, h.process.pid), errors.Join(errors.New("it does not end"), err)}
	}
	return nil
}
