package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// rootPath is the module at the root of the repository.
const rootPath = "github.com/etcd-fence/etcd-fence"

// release tags all modules in the repository at root, and returns the tags. It
// changes neither the work tree nor a branch, and leaves no tag when it fails.
func release(ctx context.Context, root, version string, out io.Writer) (tags []string, err error) {
	if err := check(ctx, root, version); err != nil {
		return nil, err
	}
	modules, err := findModules(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		tag := m.tag(version)
		if _, err := git(ctx, root, "rev-parse", "--quiet", "--verify", "refs/tags/"+tag); err == nil {
			return nil, fmt.Errorf("there is a tag %s already; a version that was published can never be changed", tag)
		}
		tags = append(tags, tag)
	}
	commit, err := commitRelease(ctx, root, version, modules)
	if err != nil {
		return nil, err
	}
	for i, tag := range tags {
		if _, err := git(ctx, root, "tag", "-a", "-m", modules[i].path+" "+version, tag, commit); err != nil {
			// Half a release is worse than none.
			for _, made := range tags[:i] {
				_, undone := git(context.WithoutCancel(ctx), root, "tag", "-d", made)
				err = errors.Join(err, undone)
			}
			return nil, err
		}
		fmt.Fprintf(out, "tagged %s\n", tag)
	}
	return tags, nil
}

// check refuses what could not be a release.
func check(ctx context.Context, root, version string) error {
	switch {
	case !semver.IsValid(version) || semver.Canonical(version) != version:
		return fmt.Errorf("version %q: want one like v0.3.0, or v0.3.0-rc.1", version)
	case semver.Major(version) != "v0" && semver.Major(version) != "v1":
		return fmt.Errorf("version %q: from v2 on the module paths have to end in %s", version, semver.Major(version))
	}
	dirty, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if dirty != "" {
		return fmt.Errorf("a release is made of what is committed; commit or remove these first:\n%s", dirty)
	}
	return nil
}

// commitRelease makes the commit that the tags point to, in a work tree of its own.
func commitRelease(ctx context.Context, root, version string, modules []*mod) (commit string, err error) {
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	tree := filepath.Join(temp, "tree")
	if _, err := git(ctx, root, "worktree", "add", "--detach", tree, "HEAD"); err != nil {
		return "", err
	}
	defer func() {
		_, removed := git(context.WithoutCancel(ctx), root, "worktree", "remove", "--force", tree)
		err = errors.Join(err, removed)
	}()
	p, err := newProxy(ctx, temp, root)
	if err != nil {
		return "", err
	}
	env, err := p.env(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		if err := m.rewrite(ctx, tree, version, modules, env); err != nil {
			return "", fmt.Errorf("%s: %w", m.path, err)
		}
		if _, err := git(ctx, tree, "add", "--all"); err != nil {
			return "", err
		}
		// All modules end in one commit, which --amend makes of the commits that the
		// proxy needs on the way. There is always one, also when nothing had to change.
		args := []string{"commit", "--quiet", "--no-verify", "--allow-empty", "-m", "Release " + version}
		if commit != "" {
			args = append(args, "--amend")
		}
		if _, err := git(ctx, tree, args...); err != nil {
			return "", err
		}
		if commit, err = git(ctx, tree, "rev-parse", "HEAD"); err != nil {
			return "", err
		}
		if err := p.add(commit, m, version); err != nil {
			return "", err
		}
	}
	return commit, nil
}

// rewrite brings go.mod and go.sum into the form in which they are released. The
// checksums of our own modules are among them, so each module has to be served
// before those that require it are rewritten.
func (m *mod) rewrite(ctx context.Context, tree, version string, all []*mod, env []string) error {
	replaced := len(m.file.Replace) > 0
	text, err := m.prepare(all, version)
	if err != nil {
		return err
	}
	dir := filepath.Join(tree, filepath.FromSlash(m.dir))
	name := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return err
	}
	if !replaced && len(m.requires(all)) == 0 {
		return nil // it is as on main, where it was tidy
	}
	if _, err := command(ctx, dir, env, "go", "mod", "tidy"); err != nil {
		return err
	}
	if text, err = os.ReadFile(name); err != nil {
		return err
	}
	if m.file, err = modfile.Parse(name, text, nil); err != nil {
		return err
	}
	if strings.Contains(string(text), "replace ") {
		return errors.New("there is a replace directive left in go.mod")
	}
	return nil
}
