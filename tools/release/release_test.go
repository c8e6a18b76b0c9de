package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newRepository makes a repository with a remote, a module at its root, one below
// that has a replace directive for it, one that requires both, and tools.
func newRepository(t *testing.T) (root string) {
	t.Helper()
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	root = filepath.Join(t.TempDir(), "repository")
	const replaced = "\n\nreplace " + rootPath + " => ../\n"
	for name, text := range map[string]string{
		"LICENSE":               "anybody may\n",
		"go.mod":                "module " + rootPath + "\n\ngo 1.26.0\n",
		"root.go":               "package root\n\nconst A = 1\n",
		"cmd/etcd-fence-demo/m": "",
		"zebra/go.mod":          "module " + rootPath + "/zebra\n\ngo 1.26.0\n\nrequire " + rootPath + " v0.0.0" + replaced,
		"zebra/zebra.go":        "package zebra\n\nimport root \"" + rootPath + "\"\n\nconst B = root.A\n",
		"ant/go.mod": "module " + rootPath + "/ant\n\ngo 1.26.0\n\nrequire (\n\t" + rootPath + " v0.0.0\n\t" + rootPath + "/zebra v0.0.0\n)\n\n" +
			"replace (\n\t" + rootPath + " => ../\n\t" + rootPath + "/zebra => ../zebra\n)\n",
		"ant/ant.go":                 "package ant\n\nimport (\n\troot \"" + rootPath + "\"\n\t\"" + rootPath + "/zebra\"\n)\n\nconst C = root.A + zebra.B\n",
		"tools/go.mod":               "module " + rootPath + "/tools\n\ngo 1.26.0\n",
		"test/compat/etcd35/go.mod":  "module " + rootPath + "/test/compat/etcd35\n\ngo 1.26.0\n",
		"zebra/testdata/data/go.mod": "module example.org/data\n",
	} {
		write(t, filepath.Join(root, filepath.FromSlash(name)), text)
	}
	remote := filepath.Join(t.TempDir(), "remote.git")
	do(t, ".", "git", "init", "--quiet", "--bare", remote)
	do(t, root, "git", "init", "--quiet", "--initial-branch=main")
	do(t, root, "git", "config", "user.name", "test")
	do(t, root, "git", "config", "user.email", "test@localhost")
	do(t, root, "git", "remote", "add", "origin", remote)
	do(t, root, "git", "add", "--all")
	do(t, root, "git", "commit", "--quiet", "-m", "all")
	do(t, root, "git", "push", "--quiet", "origin", "main")
	return root
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := command(t.Context(), dir, nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAReleaseIsTaggedAndNotPushed(t *testing.T) {
	root := newRepository(t)
	before := do(t, root, "git", "rev-parse", "HEAD")
	var out bytes.Buffer
	tags, err := release(t.Context(), root, "v0.3.0", &out)
	if err != nil {
		t.Fatal(err)
	}
	// zebra before ant, which requires it; and nothing of the tools.
	if want := []string{"v0.3.0", "zebra/v0.3.0", "ant/v0.3.0"}; !slices.Equal(tags, want) {
		t.Errorf("tags %q, want %q", tags, want)
	}
	if got := strings.Fields(do(t, root, "git", "tag")); len(got) != 3 {
		t.Errorf("the repository has the tags %q", got)
	}
	for file, want := range map[string][]string{
		"zebra/go.mod": {rootPath + " v0.3.0"},
		"zebra/go.sum": {rootPath + " v0.3.0 h1:", rootPath + " v0.3.0/go.mod h1:"},
		"ant/go.mod":   {rootPath + " v0.3.0", rootPath + "/zebra v0.3.0"},
		"ant/go.sum":   {rootPath + " v0.3.0 h1:", rootPath + "/zebra v0.3.0 h1:"},
	} {
		got := do(t, root, "git", "show", "v0.3.0^{commit}:"+file)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s has no %q:\n%s", file, w, got)
			}
		}
		if strings.Contains(got, "replace") {
			t.Errorf("%s:\n%s", file, got)
		}
	}
	// What is on main stays as it is, and so does the remote.
	if got := do(t, root, "git", "rev-parse", "HEAD"); got != before {
		t.Errorf("HEAD has moved from %s to %s", before, got)
	}
	if got := do(t, root, "git", "status", "--porcelain"); got != "" {
		t.Errorf("changed:\n%s", got)
	}
	if got := do(t, root, "git", "ls-remote", "origin"); strings.Contains(got, "tags") {
		t.Errorf("pushed:\n%s", got)
	}
	if got := do(t, root, "git", "worktree", "list"); strings.Contains(got, "\n") {
		t.Errorf("left a work tree:\n%s", got)
	}
}

func TestWhatCannotBeReleasedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		change  func(t *testing.T, root string)
		want    string
	}{
		"no version":           {version: "", want: "want one like v0.3.0"},
		"no v":                 {version: "0.3.0", want: "want one like v0.3.0"},
		"two numbers":          {version: "v0.3", want: "want one like v0.3.0"},
		"build metadata":       {version: "v0.3.0+linux", want: "want one like v0.3.0"},
		"another import path":  {version: "v2.0.0", want: "have to end in v2"},
		"a file of nobody":     {version: "v0.3.0", change: func(t *testing.T, root string) { write(t, filepath.Join(root, "new"), "") }, want: "?? new"},
		"an uncommitted line":  {version: "v0.3.0", change: func(t *testing.T, root string) { write(t, filepath.Join(root, "LICENSE"), "nobody may\n") }, want: "M LICENSE"},
		"an existing tag":      {version: "v0.3.0", change: func(t *testing.T, root string) { do(t, root, "git", "tag", "v0.3.0") }, want: "a tag v0.3.0 already"},
		"a tag of one module":  {version: "v0.3.0", change: func(t *testing.T, root string) { do(t, root, "git", "tag", "zebra/v0.3.0") }, want: "a tag zebra/v0.3.0 already"},
		"a replaced stranger":  {version: "v0.3.0", change: replaceStranger, want: "replaces example.org/fork"},
		"a file git cannot be": {version: "v0.3.0", change: twoCases, want: "case-insensitive file name collision"},
	} {
		t.Run(name, func(t *testing.T) {
			root := newRepository(t)
			if c.change != nil {
				c.change(t, root)
			}
			before := do(t, root, "git", "tag")
			tags, err := release(t.Context(), root, c.version, new(bytes.Buffer))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q and %v, want an error with %q", tags, err, c.want)
			}
			if got := do(t, root, "git", "tag"); got != before {
				t.Errorf("tags are left: %q", got)
			}
		})
	}
}

func replaceStranger(t *testing.T, root string) {
	text, err := os.ReadFile(filepath.Join(root, "zebra", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "zebra", "go.mod"), string(text)+"\nreplace example.org/fork => example.org/other v1.0.0\n")
	do(t, root, "git", "commit", "--quiet", "--all", "-m", "fork")
}

// twoCases adds what no module may have.
func twoCases(t *testing.T, root string) {
	write(t, filepath.Join(root, "zebra", "Name.txt"), "")
	write(t, filepath.Join(root, "zebra", "NAME.txt"), "")
	do(t, root, "git", "add", "--all")
	do(t, root, "git", "commit", "--quiet", "-m", "two")
}
