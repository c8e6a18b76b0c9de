package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What it prints stands in README.md as well.
func Example() {
	main()
	// Output:
	// holds stock/42
	// stock: 9
	// late write refused: true
}

// TestREADMEShowsTheProgram: the quick start in the README is this program, and
// prints what it prints.
func TestREADMEShowsTheProgram(t *testing.T) {
	readme := read(t, "../../README.md")
	_, program, found := strings.Cut(read(t, "main.go"), "\npackage main\n")
	if !found {
		t.Fatal("main.go has no package clause")
	}
	_, got, found := strings.Cut(readme, "```go\npackage main\n")
	if !found {
		t.Fatal("README.md has no program")
	}
	got, rest, _ := strings.Cut(got, "```\n")
	if diff := cmp.Diff(program, got); diff != "" {
		t.Errorf("README.md differs from main.go (-main.go +README.md):\n%s", diff)
	}

	_, output, found := strings.Cut(read(t, "main_test.go"), "\t// Output:\n")
	output, _, _ = strings.Cut(output, "}\n")
	output = strings.ReplaceAll(output, "\t// ", "")
	_, printed, _ := strings.Cut(rest, "```\n")
	printed, _, ended := strings.Cut(printed, "```\n")
	if diff := cmp.Diff(output, printed); diff != "" || !found || !ended {
		t.Errorf("the first block after the program is not what it prints (-program +README.md):\n%s", diff)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
