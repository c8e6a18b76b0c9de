package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// module is a directory with a go.mod.
type module struct {
	path string // "github.com/.../test"
	dir  string
	name string // its path below the root module, or the last element of that
}

// file is the name of its golden file.
func (m module) file() string { return strings.ReplaceAll(m.name, "/", "-") + ".txt" }

// skipped says whether the go command looks into no directory of this name.
func skipped(name string) bool {
	return name == "testdata" || name == "vendor" || (name != "." && name != ".." && strings.HasPrefix(name, ".")) || strings.HasPrefix(name, "_")
}

// findModules finds the modules below a directory, which is one itself. It looks
// for their files, and not into go.work, since not all of them stand there.
func findModules(root string) ([]module, error) {
	var modules []module
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && skipped(d.Name()):
			return filepath.SkipDir
		case d.IsDir() || d.Name() != "go.mod":
			return nil
		}
		m := module{dir: filepath.Dir(file)}
		if m.path, err = modulePath(file); err != nil {
			return err
		}
		below, err := filepath.Rel(root, m.dir)
		if m.name = filepath.ToSlash(below); below == "." {
			m.name = path.Base(m.path)
		}
		modules = append(modules, m)
		return err
	})
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return modules, err
}

func modulePath(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if name, found := strings.CutPrefix(lines.Text(), "module "); found {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("%s: no line begins with \"module\"", file)
}

// api is the exported API of all packages that others can import, as text.
func (m module) api() ([]byte, error) {
	var out bytes.Buffer
	err := filepath.WalkDir(m.dir, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != m.dir {
			_, err := os.Stat(filepath.Join(dir, "go.mod"))
			if err == nil || skipped(d.Name()) || d.Name() == "internal" {
				return filepath.SkipDir
			}
		}
		below, err := filepath.Rel(m.dir, dir)
		if err != nil {
			return err
		}
		return writePackage(&out, dir, path.Join(m.path, filepath.ToSlash(below)))
	})
	return bytes.TrimLeft(out.Bytes(), "\n"), err
}

// writePackage writes the API of one package, if the directory has one.
func writePackage(out *bytes.Buffer, dir, importPath string) error {
	// The same files on every machine. What only another system has is not here.
	system := build.Default
	system.GOOS, system.GOARCH, system.CgoEnabled = "linux", "amd64", false
	listed, err := system.ImportDir(dir, 0)
	if none := (*build.NoGoError)(nil); errors.As(err, &none) {
		return nil
	}
	if err != nil || listed.Name == "main" {
		return err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range listed.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, importPath)
	if err != nil {
		return err
	}
	w := &writer{fset: fset, out: out}
	w.line("\npackage %s\n", importPath)
	w.values(p.Consts)
	w.values(p.Vars)
	w.funcs(p.Funcs)
	for _, t := range p.Types {
		w.node(t.Decl)
		w.values(t.Consts)
		w.values(t.Vars)
		w.funcs(t.Funcs)
		w.funcs(t.Methods)
	}
	return w.err
}

// writer writes declarations as gofmt does, without their comments.
type writer struct {
	fset *token.FileSet
	out  *bytes.Buffer
	err  error
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w.out, format+"\n", args...) }

func (w *writer) values(values []*doc.Value) {
	for _, v := range values {
		w.node(v.Decl)
	}
}

func (w *writer) funcs(funcs []*doc.Func) {
	for _, f := range funcs {
		w.node(f.Decl)
	}
}

// node writes one declaration. Package doc has removed what is not exported.
func (w *writer) node(decl ast.Decl) {
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			n.Doc = nil
		case *ast.FuncDecl:
			n.Doc, n.Body = nil, nil
		case *ast.Field:
			n.Doc, n.Comment = nil, nil
		case *ast.TypeSpec:
			n.Doc, n.Comment = nil, nil
		case *ast.ValueSpec:
			n.Doc, n.Comment = nil, nil
			for _, v := range n.Values {
				// What an error says may change.
				if call, ok := v.(*ast.CallExpr); ok {
					call.Args = nil
				}
			}
		}
		return true
	})
	var text bytes.Buffer
	config := printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}
	if err := config.Fprint(&text, w.fset, decl); err != nil {
		w.err = err
	}
	for line := range strings.Lines(text.String()) {
		// Where comments were, lines are empty.
		if strings.TrimSpace(line) != "" {
			w.line("%s", strings.TrimSuffix(line, "\n"))
		}
	}
}
