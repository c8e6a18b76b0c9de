// Command etcd-fence-demo shows what a fencing token is for, with two worker
// processes on a real etcd.
//
// Worker A is stopped with SIGSTOP for longer than its lease, between its last
// check and its write, while worker B is granted the lock and writes. The story
// is told twice: with a plain client, where A's old value wins, and through
// etcdguard, where etcd refuses it. A table read back from etcd closes it.
//
//	go run ./cmd/etcd-fence-demo
//	go run ./cmd/etcd-fence-demo --endpoints 10.0.0.1:2379,10.0.0.2:2379
//
// Without --endpoints it starts an etcd of its own, in its own process. With
// --endpoints it keeps to a fresh prefix and removes it again, also after
// Ctrl-C. See --help for the flags and the exit status. Linux and macOS only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// The exit status. For a signal it is 128 and its number, as a shell reports it.
const (
	exitOK     = 0
	exitFailed = 1 // a row of the table is wrong, or the demo could not be finished
	exitUsage  = 2
	exitSignal = 128
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main without the process around it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == workerCommand {
		return serve(stdin, stdout, stderr)
	}
	o, warnings, err := parseFlags(args, os.Environ())
	if err != nil {
		fmt.Fprintf(stderr, "%s: error: %v\n%s: hint: see %s --help\n", program, err, program, program)
		return exitUsage
	}
	if o.help {
		if _, err := fmt.Fprint(stdout, usage); err != nil {
			fmt.Fprintf(stderr, "%s: error: %v\n", program, &outputError{reason(err)})
			return exitFailed
		}
		return exitOK
	}

	for _, w := range warnings {
		fmt.Fprintf(stderr, "%s: warning: %s\n", program, w)
	}

	ctx, cancel := untilSignal(stderr)
	defer cancel(nil)
	ok := false
	if err = checkSystem(); err == nil {
		err = askPassword(ctx, &o.target, stdin, stderr)
	}
	if err == nil {
		ok, err = demonstrate(ctx, o, newOutput(stdout, cancel), styleFor(stdout))
	}
	unwritten := (*outputError)(nil)
	switch interrupted := (*interruptedError)(nil); {
	case errors.As(context.Cause(ctx), &unwritten):
		fmt.Fprintf(stderr, "%s: error: %v\n", program, unwritten)
		if left := (*leftError)(nil); errors.As(err, &left) {
			fmt.Fprintf(stderr, "%s: error: %v\n", program, left)
		}
		return exitFailed
	case errors.As(context.Cause(ctx), &interrupted):
		// What was under way failed because of it; that is not worth telling.
		if left := (*leftError)(nil); errors.As(err, &left) {
			fmt.Fprintf(stderr, "%s: error: %v\n", program, left)
		}
		return exitSignal + int(interrupted.signal)
	case err != nil:
		fmt.Fprintf(stderr, "%s: error: %v\n", program, err)
		return exitFailed
	case !ok:
		return exitFailed
	}
	return exitOK
}
