//go:build !unix

package embedded

import "context"

const processMode = false

func startProcess(context.Context, *Member, *logBuffer) (runner, error) {
	return nil, ErrUnsupported
}

func startBinary(context.Context, *Member, *logBuffer) (runner, error) {
	return nil, ErrUnsupported
}
