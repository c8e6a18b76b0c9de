package embedded_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the new parent of a member that has lost its
// own, for as long as the test runs. The kernel then does not see an orphan.
func adoptOrphans(t *testing.T) {
	t.Helper()
	set := func(on uintptr) error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0) }
	if err := set(1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(0); err != nil {
			t.Error(err)
		}
	})
}
