package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// errNoTerminal is that there is nobody to ask.
var errNoTerminal = errors.New("not a terminal")

// askPassword asks for the password of a user who was given without one.
func askPassword(ctx context.Context, t *target, stdin io.Reader, stderr io.Writer) error {
	if t.User == "" || t.Password != "" {
		return nil
	}
	err := errNoTerminal
	if f, ok := stdin.(*os.File); ok {
		t.Password, err = readSecret(ctx, f, func() { fmt.Fprintf(stderr, "Password of %s: ", t.User) })
	}
	switch {
	case errors.Is(err, errNoTerminal):
		return fmt.Errorf("the user %q needs a password: give --password, or ETCDCTL_PASSWORD, which other users of this machine cannot see; or run it on a terminal, which is asked", t.User)
	case err != nil:
		return fmt.Errorf("read the password: %w", err)
	case t.Password == "":
		return fmt.Errorf("the user %q needs a password, and none was typed", t.User)
	}
	return nil
}
