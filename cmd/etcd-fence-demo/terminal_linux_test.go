package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// newTerminal returns both ends of a pseudo-terminal of 80 columns.
func newTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	// Through RawConn, so that the file stays one whose Read ends with Close.
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed != nil {
			return
		}
		if number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); failed != nil {
			return
		}
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 80})
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// What a terminal shows, and that a real Ctrl-C, which the terminal sends to all
// processes in the foreground, cleans up.
func TestOnATerminal(t *testing.T) {
	const colour, redraw = "\x1b[33mA\x1b[0m", "\r\x1b[K"
	for name, c := range map[string]struct {
		env              []string
		colours, redraws bool
	}{
		"colours":  {[]string{"NO_COLOR=", "TERM=xterm"}, true, true},
		"NO_COLOR": {[]string{"NO_COLOR=1", "TERM=xterm"}, false, true},
		"dumb":     {[]string{"NO_COLOR=", "TERM=dumb"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, nil)
			master, slave := newTerminal(t)
			s := startShow(t, etcd, master, slave, c.env...)
			s.await(whileStopped)
			if _, err := master.WriteString("\x03"); err != nil {
				t.Fatal(err)
			}
			if status := s.end(); status != 130 {
				t.Errorf("exit status %d", status)
			}
			if got := strings.Contains(s.text(), colour); got != c.colours {
				t.Errorf("colours: %v, want %v:\n%q", got, c.colours, s.text())
			}
			if got := strings.Contains(s.text(), redraw); got != c.redraws {
				t.Errorf("redrawn lines: %v, want %v:\n%q", got, c.redraws, s.text())
			}
			s.nothingLeft(etcd)
		})
	}
}

// A password is typed where nobody reads it over a shoulder, or in a transcript.
func TestThePasswordIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		typed, answer string
		shown         bool
	}{
		"right":  {typed: "secret:1\n", answer: whileStopped},
		"wrong":  {typed: "guess\n", answer: "does not know the user \"worker\" with this password"},
		"none":   {"\n", "needs a password, and none was typed", true},
		"Ctrl-C": {"\x03", "cleaning up", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, &embedded.Options{Auth: new(embedded.Auth)})
			if err := addUsers(t.Context(), etcd.Client()); err != nil {
				t.Fatal(err)
			}
			master, slave := newTerminal(t)
			s := startShow(t, etcd, master, slave, "ETCDCTL_USER=worker")
			s.await("Password of worker: ")
			if echo(t, master) {
				t.Error("the terminal would show the password")
			}
			if _, err := master.WriteString(c.typed); err != nil {
				t.Fatal(err)
			}
			s.await(c.answer)
			if c.answer == whileStopped {
				if _, err := master.WriteString("\x03"); err != nil {
					t.Fatal(err)
				}
			}
			s.end()
			if !echo(t, master) {
				t.Error("the terminal does not show what is typed any more")
			}
			if !c.shown && strings.Contains(s.text(), strings.TrimSpace(c.typed)) {
				t.Errorf("the password is in the output:\n%q", s.text())
			}
			if keys, err := keysUnder(t.Context(), etcd.Client(), prefixes); err != nil || len(keys) > 0 {
				t.Errorf("keys are left: %q, %v", keys, err)
			}
		})
	}
}

// echo reports whether the terminal shows what is typed.
func echo(t *testing.T, master *os.File) bool {
	t.Helper()
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var termios *unix.Termios
	var failed error
	err = raw.Control(func(fd uintptr) { termios, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return termios.Lflag&unix.ECHO != 0
}
