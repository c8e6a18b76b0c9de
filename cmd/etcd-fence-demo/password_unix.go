//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// readSecret calls ask and reads a line from a terminal that does not show it. The
// terminal is as it was when the function returns, also after Ctrl-C.
func readSecret(ctx context.Context, f *os.File, ask func()) (secret string, err error) {
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return "", errNoTerminal
	}
	silent := *before
	silent.Lflag &^= unix.ECHO
	// So that the end of the line is seen.
	silent.Lflag |= unix.ECHONL | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, setTermios, &silent); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unix.IoctlSetTermios(fd, setTermios, before)) }()
	ask()

	type line struct {
		text string
		err  error
	}
	lines := make(chan line, 1)
	go func() { // ends with the process, if nothing is typed
		text, err := readLine(f)
		lines <- line{text, err}
	}()
	select {
	case l := <-lines:
		return l.text, l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// readLine reads byte by byte, since what comes after the line is not its own.
func readLine(r io.Reader) (string, error) {
	const longest = 4096
	var text []byte
	for b := make([]byte, 1); ; {
		switch n, err := r.Read(b); {
		case n == 1 && b[0] == '\n', errors.Is(err, io.EOF):
			return string(text), nil
		case err != nil:
			return "", err
		case n == 1:
			text = append(text, b[0])
		}
		if len(text) > longest {
			return "", fmt.Errorf("it has more than %d bytes", longest)
		}
	}
}
