// Package imports has no code. Its test pins who imports whom, because the
// promises of the packages rest on it: a service that only checks tokens links
// no etcd, a guard can be trusted without trusting the coordinator, and nothing
// that goes into production links the testing package.
package imports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const module = "github.com/etcd-fence/etcd-fence"

// rule says what a package, and the packages below it, may import besides the
// standard library and each other. Names of ours are relative to the module;
// names of others stand for all packages below them.
type rule struct {
	pkg     string
	imports []string
	testing bool // it is for tests, so it may import testing
	nested  bool // it is a module of its own, which is listed only if go.work has it
}

const (
	backoff    = "github.com/cenkalti/backoff/v4"
	etcdAPI    = "go.etcd.io/etcd/api/v3"
	etcdClient = "go.etcd.io/etcd/client/v3"
	grpc       = "google.golang.org/grpc"
	protobuf   = "google.golang.org/protobuf"
)

// rules has every package of the module, and of those that go.work has besides. The longest name that fits counts.
// Guards and the coordinator do not appear in each other's rules: they meet in
// interfaces that each states for itself.
var rules = []rule{
	{pkg: "revisionfence"},
	{pkg: "resourceguard", imports: []string{"revisionfence"}},
	{pkg: "resourceguard/guardtest", imports: []string{"revisionfence", "resourceguard"}, testing: true},
	{pkg: "resourceguard/memguard", imports: []string{"revisionfence", "resourceguard"}},
	{pkg: "resourceguard/etcdguard", imports: []string{"revisionfence", "resourceguard", "internal/etcdonce", backoff, etcdAPI, etcdClient, grpc, protobuf, "github.com/prometheus/client_golang"}},
	{pkg: "coordinator", imports: []string{
		"revisionfence", "internal/etcdonce", backoff, etcdAPI, etcdClient, grpc, protobuf,
		"github.com/prometheus/client_golang", "go.uber.org/zap", "golang.org/x/sys",
	}},
	{pkg: "internal/etcdonce", imports: []string{etcdAPI, etcdClient, grpc, protobuf}},
	{pkg: "internal/imports", testing: true},
	{pkg: "internal/api", testing: true},
	{pkg: "docs", nested: true}, // tests only
	{pkg: "test/embedded", imports: []string{etcdAPI, etcdClient, "go.etcd.io/etcd/server/v3", grpc, protobuf, "go.uber.org/zap", "golang.org/x/sys"}},
	{pkg: "test/embedded/snapshot", imports: []string{"test/embedded", "go.etcd.io/etcd/etcdutl/v3", "go.uber.org/zap"}, nested: true},
	{pkg: "cmd", imports: []string{
		"revisionfence", "resourceguard", "resourceguard/etcdguard", "coordinator", "test/embedded",
		etcdAPI, etcdClient, grpc, "go.uber.org/zap", "golang.org/x/sys",
	}},
	{pkg: "examples", imports: []string{"revisionfence", "resourceguard", "resourceguard/etcdguard", "coordinator", "test/embedded", etcdClient}},
}

// ruleOf returns the rule for a package of ours, given by its full path.
func ruleOf(path string) (rule, bool) {
	name, ours := strings.CutPrefix(path, module+"/")
	var found rule
	for _, r := range rules {
		if ours && within(name, r.pkg) && len(r.pkg) > len(found.pkg) {
			found = r
		}
	}
	return found, found.pkg != ""
}

func within(name, parent string) bool {
	return name == parent || strings.HasPrefix(name, parent+"/")
}

// allows says whether a package under r may import path directly.
func (r rule) allows(path string, standard bool) bool {
	switch {
	case path == "testing" || strings.HasPrefix(path, "testing/"):
		return r.testing
	case standard:
		return true
	}
	name, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return slices.ContainsFunc(r.imports, func(other string) bool { return within(path, other) })
	}
	// Of ours the rule that governs the imported package has to be named, so
	// that resourceguard does not stand for the guards below it.
	target, ok := ruleOf(path)
	return ok && (target.pkg == r.pkg || slices.Contains(r.imports, target.pkg)) && name != ""
}

// listed is what go list tells about a package.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps,GoFiles"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, stderr.String())
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// noteFiles looks at each file of Go. go test repeats a result for as long as what
// the test has looked at stays the same, and does not know what go list reads.
func noteFiles(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case filepath.Ext(file) == ".go" || d.Name() == "go.mod" || d.Name() == "go.work":
			_, err = os.Stat(file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhoImportsWhom(t *testing.T) {
	noteFiles(t)
	standard := make(map[string]bool)
	var ours []listed
	for _, p := range list(t, "-deps", module+"/...") {
		standard[p.ImportPath] = p.Standard
		if within(p.ImportPath, module) {
			ours = append(ours, p)
		}
	}
	used := make(map[string]bool)
	for _, p := range ours {
		r, ok := ruleOf(p.ImportPath)
		if !ok {
			t.Errorf("%s has no rule: say here what it may import", p.ImportPath)
			continue
		}
		used[r.pkg] = true
		for _, imported := range p.Imports {
			if !r.allows(imported, standard[imported]) {
				t.Errorf("%s imports %s; the rule for %s allows the standard library, itself and %v", p.ImportPath, imported, r.pkg, r.imports)
			}
		}
		// A library may bring testing along as well.
		if !r.testing && len(p.GoFiles) > 0 && slices.Contains(p.Deps, "testing") {
			t.Errorf("%s links testing into whatever links it", p.ImportPath)
		}
	}
	for _, r := range rules {
		if !used[r.pkg] && !r.nested {
			t.Errorf("there is no package for the rule for %s", r.pkg)
		}
	}
}

// TestRulesRefuse shows that the rules can be broken, by what they are there
// for.
func TestRulesRefuse(t *testing.T) {
	for _, c := range []struct {
		pkg, imports string
		standard, ok bool
	}{
		{pkg: "revisionfence", imports: "encoding/json", standard: true, ok: true},
		{pkg: "revisionfence", imports: "testing", standard: true},
		{pkg: "revisionfence", imports: etcdClient},
		{pkg: "revisionfence", imports: module + "/resourceguard"},
		{pkg: "resourceguard", imports: module + "/revisionfence", ok: true},
		{pkg: "resourceguard", imports: module + "/resourceguard/memguard"},
		{pkg: "resourceguard/memguard", imports: module + "/resourceguard/etcdguard"},
		{pkg: "resourceguard/memguard", imports: module + "/resourceguard/guardtest"},
		{pkg: "resourceguard/etcdguard", imports: module + "/coordinator"},
		{pkg: "resourceguard/etcdguard", imports: etcdClient + "/concurrency", ok: true},
		{pkg: "resourceguard/etcdguard", imports: etcdClient + "x"},
		{pkg: "resourceguard/guardtest", imports: "testing/synctest", standard: true, ok: true},
		{pkg: "coordinator", imports: module + "/resourceguard"},
		{pkg: "coordinator", imports: module + "/coordinator/internal/queue", ok: true},
		{pkg: "coordinator", imports: module + "/test/embedded"},
		{pkg: "test/embedded/wire", imports: module + "/test/embedded", ok: true},
		{pkg: "test/embedded", imports: "testing", standard: true},
	} {
		r, found := ruleOf(module + "/" + c.pkg)
		if !found {
			t.Errorf("%s has no rule", c.pkg)
		}
		if ok := r.allows(c.imports, c.standard); ok != c.ok {
			t.Errorf("%s importing %s: %v, want %v", c.pkg, c.imports, ok, c.ok)
		}
	}
	if _, found := ruleOf(module + "/brandnew"); found {
		t.Error("a package without a rule has one")
	}
}
