//go:build unix && !linux

package embedded_test

import "testing"

func adoptOrphans(*testing.T) {}
