package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packages are those of ours that the pages speak of.
var packages = map[string]string{
	"coordinator":   "../coordinator",
	"embedded":      "../test/embedded",
	"etcdguard":     "../resourceguard/etcdguard",
	"guardtest":     "../resourceguard/guardtest",
	"memguard":      "../resourceguard/memguard",
	"resourceguard": "../resourceguard",
	"revisionfence": "../revisionfence",
}

// parsed returns the files of a package without its tests.
func parsed(t *testing.T, dir string) iter.Seq[*ast.File] {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no Go files in %s: %v", dir, err)
	}
	return func(yield func(*ast.File) bool) {
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(file) {
				return
			}
		}
	}
}

// declared returns what our packages export: pkg.Name, and pkg.Type.Member.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	add := func(parts ...string) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !ast.IsExported(p) && packages[p] == "" }) {
			all[strings.Join(parts, ".")] = true
		}
	}
	members := func(pkg, of string, fields *ast.FieldList) {
		for _, f := range fields.List {
			for _, n := range f.Names {
				add(pkg, of, n.Name)
			}
		}
	}
	for pkg, dir := range packages {
		for file := range parsed(t, dir) {
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil {
						add(pkg, d.Name.Name)
						continue
					}
					recv := d.Recv.List[0].Type
					if star, ok := recv.(*ast.StarExpr); ok {
						recv = star.X
					}
					if id, ok := recv.(*ast.Ident); ok {
						add(pkg, id.Name, d.Name.Name)
						if id.Name == "hold" { // embedded in Grant
							add(pkg, "Grant", d.Name.Name)
						}
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						switch s := s.(type) {
						case *ast.ValueSpec:
							for _, n := range s.Names {
								add(pkg, n.Name)
							}
						case *ast.TypeSpec:
							add(pkg, s.Name.Name)
							switch of := s.Type.(type) {
							case *ast.StructType:
								members(pkg, s.Name.Name, of.Fields)
							case *ast.InterfaceType:
								members(pkg, s.Name.Name, of.Methods)
							}
						}
					}
				}
			}
		}
	}
	return all
}

var (
	code       = regexp.MustCompile("`[^`\n]+`")
	identifier = regexp.MustCompile(`\b(?:[a-z]+\.)?[A-Z]\w+(?:\.[A-Z]\w+)*`)
)

// identifiers yields what looks like a Go identifier in the code of a line.
func identifiers(line string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, span := range code.FindAllString(line, -1) {
			for _, name := range identifier.FindAllString(span, -1) {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// foreign are identifiers of other packages, and words that only look like one.
var foreign = regexp.MustCompile(`^(clientv3|concurrency|rpctypes|context|errors|slog|prometheus|sync)\.|^ETCDCTL_|^(Username|Password|PermissionDenied|SIGSTOP)$|^(Mutex|Election|Session|KV)(\.\w+)*$`)

// TestIdentifiersExist: what the pages call by name exists in our packages.
func TestIdentifiersExist(t *testing.T) {
	exported := declared(t)
	known := func(name string) bool {
		if exported[name] {
			return true
		}
		for pkg := range packages {
			if exported[pkg+"."+name] {
				return true
			}
		}
		return false
	}
	checked := 0
	for name, page := range pages(t) {
		n := 0
		for line := range strings.Lines(prose(page)) {
			n++
			for id := range identifiers(line) {
				if foreign.MatchString(id) {
					continue
				}
				checked++
				if !known(id) {
					t.Errorf("%s:%d: there is no %s", name, n, id)
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("looked at %d identifiers only", checked)
	}
	for _, wrong := range []string{"coordinator.Nonsense", "Grant.Nonsense", "etcdguard.Coordinator", "Nonsense"} {
		if known(wrong) {
			t.Errorf("%s is taken to exist", wrong)
		}
	}
}

// TestMetricsExist: the metrics that the pages name are those of the package
// comments, which the tests of the packages compare with what is registered.
func TestMetricsExist(t *testing.T) {
	var comments strings.Builder
	for _, dir := range packages {
		for file := range parsed(t, dir) {
			comments.WriteString(file.Doc.Text())
		}
	}
	metric := regexp.MustCompile(`\betcd_fence_\w+`)
	documented := metric.FindAllString(comments.String(), -1)
	found := 0
	for name, page := range pages(t) {
		for _, m := range metric.FindAllString(page, -1) {
			found++
			base := strings.TrimSuffix(strings.TrimSuffix(m, "_bucket"), "_count")
			if !slices.Contains(documented, base) {
				t.Errorf("%s: no package comment has a metric %s", name, m)
			}
		}
	}
	if found == 0 {
		t.Error("the pages name no metric")
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksLead: links into the repository lead to a file, and to a heading in it.
func TestLinksLead(t *testing.T) {
	all := pages(t)
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all["../README.md"] = string(readme)
	checked := 0
	for name, page := range all {
		for _, m := range link.FindAllStringSubmatch(prose(page), -1) {
			target := m[1]
			if strings.Contains(target, "://") {
				continue
			}
			checked++
			file, heading, _ := strings.Cut(target, "#")
			path := filepath.Join(filepath.Dir(name), file)
			if file == "" {
				path = name
			}
			text, err := os.ReadFile(path)
			if err != nil {
				if info, err := os.Stat(path); err == nil && info.IsDir() && heading == "" {
					continue
				}
				t.Errorf("%s: %s leads nowhere", name, target)
				continue
			}
			if heading != "" && !slices.Contains(headings(prose(string(text))), heading) {
				t.Errorf("%s: %s: there is no such heading", name, target)
			}
		}
	}
	if checked < 20 {
		t.Errorf("looked at %d links only", checked)
	}
}

// prose returns a page with its blocks, which are compiled or printed, left empty.
func prose(page string) string {
	var b strings.Builder
	inBlock := false
	for line := range strings.Lines(page) {
		fence := strings.HasPrefix(line, "```")
		if inBlock || fence {
			line = "\n"
		}
		b.WriteString(line)
		inBlock = inBlock != fence
	}
	return b.String()
}

// headings returns the anchors that GitHub gives to the headings of a page.
func headings(page string) []string {
	var anchors []string
	other := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(page) {
		if text := strings.TrimLeft(line, "#"); text != line && strings.HasPrefix(text, " ") {
			text = other.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), "")
			anchors = append(anchors, strings.ReplaceAll(text, " ", "-"))
		}
	}
	return anchors
}
