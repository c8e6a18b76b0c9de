package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// interruptedError is the cause with which the demo's context ends when a signal
// asks it to.
type interruptedError struct{ signal syscall.Signal }

func (e *interruptedError) Error() string { return fmt.Sprintf("interrupted (%v)", e.signal) }

// untilSignal returns a context that ends with a signal that would otherwise end
// the process and leave keys behind. A second signal does what it always does.
func untilSignal(stderr io.Writer) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer signal.Stop(signals)
		select {
		case received := <-signals:
			s, _ := received.(syscall.Signal)
			fmt.Fprintf(stderr, "\n%s: %v: cleaning up; once more to leave at once\n", program, s)
			cancel(&interruptedError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// outputError is the cause with which the demo's context ends when what it tells
// cannot be written, as on a full disk.
type outputError struct{ err error }

func (e *outputError) Error() string { return fmt.Sprintf("write standard output: %v", e.err) }

func (e *outputError) Unwrap() error { return e.err }

// output is a standard output of which the reader may go away, as that of
// "| head" does: then the demo is over, too.
type output struct {
	io.Writer
	cancel context.CancelCauseFunc
}

// newOutput keeps SIGPIPE from ending the process. It is only noted, since a
// pipe to a worker that has died sends it as well.
func newOutput(w io.Writer, cancel context.CancelCauseFunc) *output {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return &output{w, cancel}
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	switch {
	case errors.Is(err, syscall.EPIPE):
		o.cancel(&interruptedError{syscall.SIGPIPE})
	case err != nil:
		o.cancel(&outputError{reason(err)})
	}
	return n, err
}
