//go:build !unix

package embedded_test

import (
	"errors"
	"testing"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func needsProcess(t *testing.T) {
	t.Helper()
	t.Skip("a member in a process of its own needs a Unix")
}

func removeProgram() {}

func TestProcessModeIsRefused(t *testing.T) {
	_, err := embedded.Run(t.Context(), &embedded.Options{Process: true})
	if !errors.Is(err, embedded.ErrUnsupported) {
		t.Errorf("process mode here: %v", err)
	}
}
