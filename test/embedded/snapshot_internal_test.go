package embedded

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// A server that sends nonsense is hard to come by.
func TestASnapshotThatIsNotWhatItSaysIsRefused(t *testing.T) {
	body := strings.Repeat("page", 128)
	sum := sha256.Sum256([]byte(body))
	whole := body + string(sum[:])
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		data io.Reader
		ok   bool
	}{
		"whole":           {strings.NewReader(whole), true},
		"byte by byte":    {iotest.OneByteReader(strings.NewReader(whole)), true},
		"one bit flipped": {strings.NewReader("q" + whole[1:]), false},
		"cut short":       {strings.NewReader(whole[:len(whole)-1]), false},
		"no sum":          {strings.NewReader(body), false},
		"nothing":         {strings.NewReader(""), false},
		"broken off":      {io.MultiReader(strings.NewReader(whole), iotest.ErrReader(broken)), false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshot.db")
			err := writeSnapshot(path, c.data)
			if (err == nil) != c.ok {
				t.Errorf("error %v", err)
			}
			data, _ := os.ReadFile(path)
			if c.ok && !bytes.Equal(data, []byte(whole)) {
				t.Errorf("%d bytes written, want %d", len(data), len(whole))
			}
			if entries, _ := os.ReadDir(filepath.Dir(path)); !c.ok && len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}
