package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// unreleased are the modules that nobody is to import: the tools, the tests of the
// documentation, and servers of other versions for our own tests. Names ending in
// a slash stand for all below.
var unreleased = []string{"docs", "tools", "test/compat/"}

// mod is a module of the repository.
type mod struct {
	path string
	dir  string // below the root of the repository, with slashes; "" for the root
	file *modfile.File
}

// tag is the name of the tag that makes a version of the module.
func (m *mod) tag(version string) string { return path.Join(m.dir, version) }

// findModules returns the modules that are released, each after those of them
// that it requires.
func findModules(ctx context.Context, root string) ([]*mod, error) {
	files, err := git(ctx, root, "ls-files", "--", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var found []*mod
	for name := range strings.FieldsSeq(files) {
		dir := strings.Trim(strings.TrimSuffix(name, "go.mod"), "/")
		if !released(dir) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		found = append(found, &mod{path: file.Module.Mod.Path, dir: dir, file: file})
	}
	slices.SortFunc(found, func(a, b *mod) int { return cmp.Compare(a.dir, b.dir) })
	return sorted(found)
}

func released(dir string) bool {
	for _, u := range unreleased {
		if dir == u || strings.HasSuffix(u, "/") && strings.HasPrefix(dir, u) {
			return false
		}
	}
	return !slices.Contains(strings.Split(dir, "/"), "testdata")
}

// sorted puts each module behind those that it requires, whose checksums it needs.
func sorted(all []*mod) ([]*mod, error) {
	var done []*mod
	for len(done) < len(all) {
		before := len(done)
		for _, m := range all {
			if !slices.Contains(done, m) && !slices.ContainsFunc(m.requires(all), func(r *mod) bool { return !slices.Contains(done, r) }) {
				done = append(done, m)
			}
		}
		if len(done) == before {
			return nil, fmt.Errorf("modules require each other in a circle; %d of %d do not", len(done), len(all))
		}
	}
	return done, nil
}

// requires returns those of the modules that m requires.
func (m *mod) requires(all []*mod) (required []*mod) {
	for _, other := range all {
		if slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.path }) {
			required = append(required, other)
		}
	}
	return required
}

// prepare takes the replace directives for our modules out of go.mod, and makes it
// require them at the version.
func (m *mod) prepare(all []*mod, version string) ([]byte, error) {
	for _, r := range slices.Clone(m.file.Replace) {
		if !slices.ContainsFunc(all, func(other *mod) bool { return other.path == r.Old.Path }) {
			// It would be void for whoever imports the module, and in the way of go install.
			return nil, fmt.Errorf("%s replaces %s, which is no module of this repository", m.file.Syntax.Name, r.Old.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return nil, err
		}
	}
	for _, r := range m.requires(all) {
		if err := m.file.AddRequire(r.path, version); err != nil {
			return nil, err
		}
	}
	m.file.Cleanup()
	return m.file.Format()
}
