package main

import (
	"context"
	"errors"
	"fmt"
	"go/build"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// rehearsed is a version that nobody will ever publish.
const rehearsed = "v0.0.0-rehearsal"

// program uses what a program with locks uses.
const program = `package main

import (
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/resourceguard/etcdguard"
)

func write(ctx context.Context, client *clientv3.Client) error {
	locks, err := coordinator.New(client, nil)
	if err != nil {
		return err
	}
	defer locks.Close(ctx)
	guard, err := etcdguard.New(client, nil)
	if err != nil {
		return err
	}
	return locks.Do(ctx, "stock/42", func(ctx context.Context, grant *coordinator.Grant) error {
		kv, err := guard.KV(grant)
		if err != nil {
			return err
		}
		_, err = kv.Put(ctx, "stock", "8")
		return err
	})
}

func main() {
	_, err := coordinator.New(nil, nil)
	fmt.Fprintln(os.Stderr, write != nil, err)
}
`

// rehearse makes a release of a clone, serves it, and does with it what users do.
func rehearse(ctx context.Context, root string, out io.Writer) (err error) {
	began := time.Now()
	dirty, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if dirty != "" {
		fmt.Fprintf(out, "What is not committed is not rehearsed:\n%s\n", dirty)
	}
	temp, err := os.MkdirTemp("", "rehearsal-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	clone := filepath.Join(temp, "clone")
	if _, err := git(ctx, temp, "clone", "--quiet", root, clone); err != nil {
		return err
	}
	// The clone is made by whoever runs CI, who may have no name in git.
	for _, setting := range [][2]string{{"user.name", "rehearsal"}, {"user.email", "rehearsal@localhost"}, {"commit.gpgSign", "false"}, {"tag.gpgSign", "false"}} {
		if _, err := git(ctx, clone, "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	tags, err := release(ctx, clone, rehearsed, out)
	if err != nil {
		return err
	}
	u, err := serve(ctx, temp, clone, tags[0])
	if err != nil {
		return err
	}
	for _, m := range u.modules {
		if err := u.use(ctx, m, out); err != nil {
			return fmt.Errorf("%s@%s: %w", m.path, rehearsed, err)
		}
	}
	fmt.Fprintf(out, "%d modules were released, fetched and built after %.0f s\n", len(tags), time.Since(began).Seconds())
	return nil
}

// user is somebody who has nothing but the proxy.
type user struct {
	temp    string
	clone   string // at the release
	modules []*mod
	env     []string
}

// serve puts the release into a proxy, from the tags alone.
func serve(ctx context.Context, temp, clone, tag string) (*user, error) {
	if _, err := git(ctx, clone, "checkout", "--quiet", "--detach", tag); err != nil {
		return nil, err
	}
	modules, err := findModules(ctx, clone)
	if err != nil {
		return nil, err
	}
	p, err := newProxy(ctx, temp, clone)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		if err := p.add(m.tag(rehearsed), m, rehearsed); err != nil {
			return nil, err
		}
	}
	env, err := p.env(ctx)
	return &user{temp, clone, modules, append(env, "CGO_ENABLED=0")}, err
}

// use fetches a module into an empty one, builds all of its packages there, and
// installs its commands.
func (u *user) use(ctx context.Context, m *mod, out io.Writer) error {
	dir, err := os.MkdirTemp(u.temp, "user-")
	if err != nil {
		return err
	}
	imports, commands, err := u.packages(m)
	if err != nil {
		return err
	}
	steps := [][]string{{"mod", "init", "example.org/user"}}
	if len(imports) > 0 {
		steps = append(steps, []string{"get", m.path + "@" + rehearsed})
		main := "package main\n\nfunc main() {}\n"
		if m.dir == "" {
			main = program
		}
		all := "package main\n\nimport (\n"
		for _, name := range imports {
			all += fmt.Sprintf("\t_ %q\n", name)
		}
		err := errors.Join(
			os.WriteFile(filepath.Join(dir, "main.go"), []byte(main), 0o644),
			os.WriteFile(filepath.Join(dir, "all.go"), []byte(all+")\n"), 0o644),
		)
		if err != nil {
			return err
		}
		steps = append(steps, []string{"get", "."}, []string{"build", "-o", os.DevNull, "."})
	}
	for _, name := range commands {
		steps = append(steps, []string{"install", name + "@" + rehearsed})
	}
	env := slices.Concat(u.env, []string{"GOBIN=" + filepath.Join(dir, "bin")})
	for _, step := range steps {
		began := time.Now()
		if _, err := command(ctx, dir, env, "go", step...); err != nil {
			return err
		}
		fmt.Fprintf(out, "  %5.1f s  go %s\n", time.Since(began).Seconds(), strings.Join(step, " "))
	}
	for _, name := range commands {
		if !strings.Contains(name, "/cmd/") {
			continue // an example, which may have no help
		}
		installed := filepath.Join(dir, "bin", path.Base(name))
		if runtime.GOOS == "windows" {
			installed += ".exe"
		}
		if _, err := command(ctx, dir, nil, installed, "--help"); err != nil {
			return err
		}
	}
	return nil
}

// packages lists what can be imported from a module, and its commands.
func (u *user) packages(m *mod) (imports, commands []string, err error) {
	base := filepath.Join(u.clone, filepath.FromSlash(m.dir))
	err = filepath.WalkDir(base, func(dir string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != base {
			_, err := os.Stat(filepath.Join(dir, "go.mod"))
			if n := d.Name(); err == nil || n == "testdata" || n == "internal" || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") {
				return filepath.SkipDir
			}
		}
		p, err := build.ImportDir(dir, 0)
		if none := (*build.NoGoError)(nil); errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(base, dir)
		name := path.Join(m.path, filepath.ToSlash(below))
		if p.Name == "main" {
			commands = append(commands, name)
		} else if len(p.GoFiles) > 0 {
			imports = append(imports, name)
		}
		return err
	})
	return imports, commands, err
}
