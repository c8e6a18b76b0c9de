package docs

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// block is a fenced block of a page.
type block struct {
	kind string
	text string
	line int // of its first line
}

// blocksOf returns the blocks of a page. Whatever looks like the border of a
// block and is none of ours is an error, so that no block can hide.
func blocksOf(page string) ([]block, error) {
	var blocks []block
	var open *block
	n := 0
	for line := range strings.Lines(page) {
		n++
		line = strings.TrimSuffix(line, "\n")
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && line == "```":
			blocks, open = append(blocks, *open), nil
		case open != nil && fence:
			return nil, fmt.Errorf("line %d: a block inside of a block", n)
		case open != nil:
			open.text += line + "\n"
		case fence:
			open = &block{kind: info, line: n + 1}
		case strings.HasPrefix(strings.TrimLeft(line, " \t>"), "```"), strings.HasPrefix(strings.TrimLeft(line, " \t>"), "~~~"):
			return nil, fmt.Errorf("line %d: a block that does not begin with ``` at the margin", n)
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"):
			return nil, fmt.Errorf("line %d: an indented block has no kind", n)
		case strings.Contains(line, "<pre"), strings.Contains(line, "<code"):
			return nil, fmt.Errorf("line %d: a block in HTML has no kind", n)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: a block without an end", open.line)
	}
	for i, b := range blocks {
		switch b.kind {
		case "go", "sh", "sh fails":
		case "output":
			if i == 0 || blocks[i-1].kind == "output" {
				return nil, fmt.Errorf("line %d: output of nothing", b.line)
			}
		default:
			return nil, fmt.Errorf("line %d: %q is no kind of block", b.line, b.kind)
		}
	}
	return blocks, nil
}

// pages returns the pages by file name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := make(map[string]string)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = string(text)
	}
	for _, name := range []string{"adopting.md", "concepts.md", "faq.md", "rbac.md"} {
		if pages[name] == "" {
			t.Fatalf("there is no %s", name)
		}
	}
	return pages
}

// snippet is a marked place in a Go file, and what the example that it stands in
// prints, if it is one.
type snippet struct {
	text, output string
}

const (
	snippetBegin = "// docs begin"
	snippetEnd   = "// docs end"
)

// snippetsOf returns the marked places of a Go file. Each must run: it stands in
// a test, or in an example whose output is compared.
func snippetsOf(file string, source []byte) ([]snippet, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	outputs := make(map[string]string)
	for _, e := range doc.Examples(parsed) {
		if e.Output != "" {
			outputs["Example"+e.Name] = e.Output
		}
	}
	// around is the function that has the line.
	around := func(line int) string {
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && fset.Position(f.Pos()).Line < line && line < fset.Position(f.End()).Line {
				return f.Name.Name
			}
		}
		return ""
	}
	var found []snippet
	var lines []string
	begun := 0
	n := 0
	for line := range strings.Lines(string(source)) {
		n++
		switch strings.TrimSpace(line) {
		case snippetBegin:
			if begun != 0 {
				return nil, fmt.Errorf("%s:%d: %s twice", file, n, snippetBegin)
			}
			begun, lines = n, nil
		case snippetEnd:
			f := around(begun)
			output, example := outputs[f]
			if begun == 0 || f == "" || f != around(n) || !example && !strings.HasPrefix(f, "Test") {
				return nil, fmt.Errorf("%s:%d: not inside of one test, or of one example with output", file, n)
			}
			found = append(found, snippet{dedent(lines), output})
			begun = 0
		default:
			lines = append(lines, line)
		}
	}
	if begun != 0 {
		return nil, fmt.Errorf("%s:%d: %s without an end", file, begun, snippetBegin)
	}
	return found, nil
}

// dedent removes the tabs that all lines begin with.
func dedent(lines []string) string {
	least := -1
	for _, l := range lines {
		if tabs := len(l) - len(strings.TrimLeft(l, "\t")); strings.TrimSpace(l) != "" && (least < 0 || tabs < least) {
			least = tabs
		}
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l[min(max(least, 0), len(l)-1):])
	}
	return b.String()
}

// TestGoBlocks: the Go of each page is what the tests of the page run.
func TestGoBlocks(t *testing.T) {
	for name, page := range pages(t) {
		t.Run(name, func(t *testing.T) {
			blocks, err := blocksOf(page)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			file := strings.TrimSuffix(name, ".md") + "_test.go"
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want, err := snippetsOf(file, source)
			if err != nil {
				t.Fatal(err)
			}
			for i, b := range blocks {
				if b.kind != "go" {
					continue
				}
				if len(want) == 0 {
					t.Fatalf("%s:%d: there is no place in %s for this block", name, b.line, file)
				}
				if diff := cmp.Diff(want[0].text, b.text); diff != "" {
					t.Errorf("%s:%d: differs from the place in %s that runs (-file +page):\n%s", name, b.line, file, diff)
				}
				if i+1 < len(blocks) && blocks[i+1].kind == "output" {
					if diff := cmp.Diff(want[0].output, blocks[i+1].text); diff != "" {
						t.Errorf("%s:%d: differs from the output in %s (-file +page):\n%s", name, blocks[i+1].line, file, diff)
					}
				}
				want = want[1:]
			}
			if len(want) > 0 {
				t.Errorf("%s: this place in %s is in no block:\n%s", name, file, want[0].text)
			}
		})
	}
}

// TestBlocksCannotHide: what would not be run is refused.
func TestBlocksCannotHide(t *testing.T) {
	for name, page := range map[string]string{
		"no kind":         "```\nx\n```\n",
		"unknown kind":    "```yaml\nx\n```\n",
		"kind of another": "```sh once\nx\n```\n",
		"no end":          "```sh\nx\n",
		"in a list":       "- a\n  ```sh\n  x\n  ```\n",
		"in a quotation":  "> ```sh\n> x\n> ```\n",
		"tildes":          "~~~sh\nx\n~~~\n",
		"four backticks":  "````sh\nx\n````\n",
		"indented":        "text\n\n    x\n",
		"tab":             "text\n\n\tx\n",
		"HTML":            "<pre>x</pre>\n",
		"output first":    "```output\nx\n```\n",
		"output twice":    "```sh\nx\n```\n```output\nx\n```\n```output\nx\n```\n",
		"begins inside":   "```sh\n```go\n```\n",
	} {
		if blocks, err := blocksOf(page); err == nil {
			t.Errorf("%s: taken as %v", name, blocks)
		}
	}
	for name, file := range map[string]string{
		"helper":                 "package p\nfunc f() {\n// docs begin\n// docs end\n}\n",
		"no function":            "package p\n// docs begin\nvar x int\n// docs end\n",
		"example without output": "package p\nfunc Example() {\n// docs begin\n// docs end\n}\n",
		"over two tests":         "package p\nfunc TestA() {\n// docs begin\n}\nfunc TestB() {\n// docs end\n}\n",
		"no end":                 "package p\nfunc TestA() {\n// docs begin\n}\n",
		"no begin":               "package p\nfunc TestA() {\n// docs end\n}\n",
		"twice":                  "package p\nfunc TestA() {\n// docs begin\n// docs begin\n// docs end\n}\n",
	} {
		if found, err := snippetsOf("x_test.go", []byte(file)); err == nil {
			t.Errorf("%s: taken as %v", name, found)
		}
	}
}
