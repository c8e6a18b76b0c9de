// Package api has no code. Its test holds the exported API of each module
// against a golden file, so that no change of it goes unseen: it stands in the
// diff of the commit that makes it. `make api` writes the files anew.
package api

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	root   = "../.."
	golden = "testdata"
)

func TestTheAPIIsTheGoldenOne(t *testing.T) {
	modules, err := findModules(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) < 2 {
		t.Fatalf("only the modules %v were found", modules)
	}
	wanted := make(map[string]bool)
	for _, m := range modules {
		got, err := m.api()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			continue // commands only: nothing to import
		}
		file := filepath.Join(golden, m.file())
		wanted[file] = true
		if *update {
			write(t, file, got)
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%v\nMake it with: make api", err)
			continue
		}
		if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
			t.Errorf("the exported API of %s differs from internal/api/%s (-golden +code):\n%s\n"+
				"If that is meant, run `make api` and commit the file. What is removed or changed needs a line in CHANGELOG.md.",
				m.path, filepath.ToSlash(file), diff)
		}
	}

	files, err := filepath.Glob(filepath.Join(golden, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if wanted[file] {
			continue
		}
		if !*update {
			t.Errorf("%s: no module has this API any more; remove it with: make api", file)
		} else if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
}

// lines makes a diff of lines out of one of bytes. A checkout on Windows may end
// them in another way.
func lines(text []byte) []string {
	return strings.Split(string(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))), "\n")
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// What a user's code can depend on is in the text, and nothing else is.
func TestTheTextHasWhatIsExported(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/m\n\ngo 1.26.0\n",
		"p/p.go": `// Package p is.
package p

import ("context"; "errors")

// A comment is not API.
type T struct {
	Field int ` + "`json:\"field\"`" + ` // nor is this
	hidden int
}
func (t *T) Method(ctx context.Context, n int) error { return nil }
func (t *T) own() {}
type own struct{}
func (own) Promoted() {}
type Outer struct{ own }
type Iface interface { Do(); own() }
type Number[K comparable] map[K]int
const (
	A = 1 + iota
	b
	C
)
var ErrX = errors.New("the text of an error is not API")
var Value, other int
func New() (*T, error) { return nil, nil }
func helper() {}
`,
		"p/p_linux.go":         "package p\n\nconst OnLinux = true\n",
		"p/p_windows.go":       "package p\n\nconst OnWindows = true\n",
		"p/p_test.go":          "package p\n\nfunc ExportedForTests() {}\n",
		"p/internal/i/i.go":    "package i\n\nfunc Internal() {}\n",
		"cmd/c/main.go":        "package main\n\nfunc Exported() {}\nfunc main() {}\n",
		"p/testdata/t/t.go":    "package t\n\nfunc Data() {}\n",
		"nested/go.mod":        "module example.org/m/nested\n",
		"nested/n.go":          "package nested\n\nfunc Nested() {}\n",
		"p/testdata/go.mod":    "module example.org/data\n",
		".hidden/go.mod":       "module example.org/hidden\n",
		"commands/go.mod":      "module example.org/m/commands\n",
		"commands/main.go":     "package main\n\nfunc main() {}\n",
		"commands/_old/old.go": "package old\n\nfunc Old() {}\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		write(t, file, []byte(text))
	}
	modules, err := findModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, m := range modules {
		paths = append(paths, m.path+" in "+m.file())
	}
	wantPaths := []string{"example.org/m in m.txt", "example.org/m/commands in commands.txt", "example.org/m/nested in nested.txt"}
	if diff := cmp.Diff(wantPaths, paths); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	for i, want := range []string{
		`package example.org/m/p

const (
	A = 1 + iota
	C
)
const OnLinux = true
var ErrX = errors.New()
var Value int
type Iface interface {
	Do()
	// contains filtered or unexported methods
}
type Number[K comparable] map[K]int
type Outer struct {
	// contains filtered or unexported fields
}
func (Outer) Promoted()
type T struct {
	Field int ` + "`json:\"field\"`" + `
	// contains filtered or unexported fields
}
func New() (*T, error)
func (t *T) Method(ctx context.Context, n int) error
`,
		"",
		"package example.org/m/nested\n\nfunc Nested()\n",
	} {
		got, err := modules[i].api()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(lines([]byte(want)), lines(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", modules[i].path, diff)
		}
	}
}
