//go:build !linux && !darwin

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// errSystem is all that the demo has to say where it cannot run.
var errSystem = fmt.Errorf("the demo stops a process with SIGSTOP, which is written for Linux and macOS and not for %s; the library itself works here", runtime.GOOS)

// checkSystem reports a system on which the demo cannot run.
func checkSystem() error { return errSystem }

type process struct{ pid int }

type state int

const ended state = 0

func startProcess(*exec.Cmd) (*process, error) { return nil, errSystem }

func (p *process) await(context.Context, state) error { return errSystem }
func (p *process) gone() <-chan struct{}              { return nil }
func (p *process) ending() string                     { return "" }
func (p *process) stop(context.Context) error         { return errSystem }
func (p *process) resume() error                      { return errSystem }
func (p *process) kill() error                        { return errSystem }

func readSecret(context.Context, *os.File, func()) (string, error) { return "", errNoTerminal }

// columns is the width of the terminal behind the file; nothing here looks.
func columns(uintptr) int { return 0 }
