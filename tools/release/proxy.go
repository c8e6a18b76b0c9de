package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is a directory in the layout of a module proxy, which the go command
// reads as file://.
type proxy struct {
	dir   string
	cache string // a module cache of its own, since what is served here was never published
	repo  string // has nothing but a .git
}

// newProxy serves what is in the repository at root.
func newProxy(ctx context.Context, dir, root string) (*proxy, error) {
	p := &proxy{filepath.Join(dir, "proxy"), filepath.Join(dir, "cache"), filepath.Join(dir, "repo")}
	objects, err := git(ctx, root, "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return nil, err
	}
	for _, d := range []string{p.dir, p.cache, p.repo} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	// Package zip knows a repository by the directory of this name, which is a file
	// in a work tree that was added to another.
	return p, os.Symlink(objects, filepath.Join(p.repo, ".git"))
}

// env keeps the paths of this cache out of what is built, which would be built
// anew each time otherwise. And it lets the go command look here first, then at what this machine has already,
// then where it always looks. Our own modules have no entry in the checksum
// database, and must not get one.
func (p *proxy) env(ctx context.Context) ([]string, error) {
	usual, err := command(ctx, ".", nil, "go", "env", "GOPROXY", "GOMODCACHE", "GONOSUMDB")
	if err != nil {
		return nil, err
	}
	lines := append(strings.Split(usual, "\n"), "", "")
	here := "file://" + filepath.ToSlash(filepath.Join(lines[1], "cache", "download"))
	return []string{
		"GOPROXY=file://" + filepath.ToSlash(p.dir) + "," + here + "," + lines[0],
		"GONOSUMDB=" + strings.Trim(rootPath+","+lines[2], ","),
		"GOPRIVATE=", "GONOPROXY=",
		"GOMODCACHE=" + p.cache,
		"GOFLAGS=-modcacherw -mod=mod -trimpath",
		"GOWORK=off",
	}, nil
}

// add serves a version of a module, as it is in a commit.
func (p *proxy) add(commit string, m *mod, version string) (err error) {
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	gomod, err := m.file.Format()
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, time.Now().UTC()})
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// It refuses what no module may have, such as two names that differ in case.
	if err := zip.CreateFromVCS(file, module.Version{Path: m.path, Version: version}, p.repo, commit, m.dir); err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, version+".mod"), gomod, 0o644),
		os.WriteFile(filepath.Join(dir, version+".info"), info, 0o644),
		os.WriteFile(filepath.Join(dir, "list"), []byte(version+"\n"), 0o644),
	)
}
