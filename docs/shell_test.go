package docs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// shell is one session of a reader who types in what a page says.
type shell struct {
	dir    string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	blocks int
}

// newShell starts a shell whose etcdctl talks to the cluster. It fails with
// exec.ErrNotFound where there is no shell.
func newShell(ctx context.Context, etcd *embedded.Cluster) (*shell, error) {
	path, err := exec.LookPath("sh")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "docs-shell-")
	if err != nil {
		return nil, err
	}
	s := &shell{dir: dir, cmd: exec.CommandContext(ctx, path)}
	s.cmd.Dir = s.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCDCTL_") {
			s.cmd.Env = append(s.cmd.Env, v)
		}
	}
	s.cmd.Env = append(s.cmd.Env, "ETCDCTL_ENDPOINTS="+strings.Join(etcd.Endpoints(), ","))
	s.cmd.WaitDelay = time.Second
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	s.cmd.Stderr = s.cmd.Stdout
	return s, s.cmd.Start()
}

// close ends the shell. Whatever a block made of it has been told already.
func (s *shell) close() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// run runs a block and returns what it printed. Each command must succeed, or,
// if it fails is what is wanted, the only one must fail.
func (s *shell) run(text string, fails bool) (string, error) {
	s.blocks++
	file := filepath.Join(s.dir, strconv.Itoa(s.blocks)+".sh")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", err
	}
	const mark = "--8<-- "
	// A command that fails ends the shell, and with it the output, before the mark.
	line := fmt.Sprintf("set -eu; . '%s' </dev/null; set +eu; echo '%s0'\n", file, mark)
	if fails {
		line = fmt.Sprintf("(. '%s' </dev/null); echo '%s'$?\n", file, mark)
	}
	if _, err := io.WriteString(s.in, line); err != nil {
		return "", err
	}
	var printed strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if status, ok := strings.CutPrefix(line, mark); ok {
			if failed := strings.TrimSpace(status) != "0"; failed != fails {
				return printed.String(), errors.New("succeeded")
			}
			return printed.String(), nil
		}
		printed.WriteString(line)
		if err != nil {
			return printed.String(), errors.New("failed")
		}
	}
}

// runPage runs the shell blocks of a page, as one session, and compares what they
// print.
func runPage(ctx context.Context, name string, etcd *embedded.Cluster) error {
	page, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	blocks, err := blocksOf(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	sh, err := newShell(ctx, etcd)
	if err != nil {
		return err
	}
	defer sh.close()
	for i, b := range blocks {
		if b.kind != "sh" && b.kind != "sh fails" {
			continue
		}
		got, err := sh.run(b.text, b.kind == "sh fails")
		if err != nil {
			return fmt.Errorf("%s:%d: %w\n%s%s", name, b.line, err, b.text, got)
		}
		if i+1 < len(blocks) && blocks[i+1].kind == "output" && !printed(blocks[i+1].text, got) {
			return fmt.Errorf("%s:%d: printed\n%swant\n%s", name, b.line, got, blocks[i+1].text)
		}
	}
	return nil
}

// printed compares an output block with what was printed.
func printed(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[^\n]*")
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(got)
}

// TestCommands runs the commands of each page.
func TestCommands(t *testing.T) {
	for name, page := range pages(t) {
		t.Run(name, func(t *testing.T) {
			var err error
			switch {
			case name == "rbac.md":
				_, err = asThePageSays()
			case strings.Contains(page, "\n```sh"):
				err = runPage(t.Context(), name, cluster(t))
			}
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip("there is no sh to run the commands with")
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestShellNotices: a command that does not do what the page says fails its test.
func TestShellNotices(t *testing.T) {
	etcd := cluster(t)
	shell := func() *shell {
		sh, err := newShell(t.Context(), etcd)
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("there is no sh to run the commands with")
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sh.close)
		return sh
	}
	for name, c := range map[string]struct {
		text  string
		fails bool
	}{
		"failure":              {"false\n", false},
		"failure in between":   {"false\ntrue\n", false},
		"unset variable":       {"echo $NOT_SET_ANYWHERE\n", false},
		"success":              {"true\n", true},
		"exit":                 {"exit 0\n", false},
		"failure of etcdctl":   {"etcdctl get\n", false},
		"command that is none": {"etcdctl-no-such-command\n", false},
	} {
		if got, err := shell().run(c.text, c.fails); err == nil {
			t.Errorf("%s: not noticed; it printed %q", name, got)
		}
	}
	sh := shell()
	for _, c := range []struct {
		text, want string
		fails      bool
	}{
		{"x=1\nexport ETCDCTL_WRITE_OUT=simple\n", "", false},
		{"echo $x >&2; cat\n", "1\n", false},
		{"false\n", "", true},
		{"etcdctl put k v\netcdctl get k\n", "OK\nk\nv\n", false},
	} {
		if got, err := sh.run(c.text, c.fails); err != nil || got != c.want {
			t.Errorf("%q printed %q, %v; want %q", c.text, got, err, c.want)
		}
	}
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"a … b\n", "a 1 2 b\n", true}, {"a … b\n", "a 1\n2 b\n", false}, {"a.\n", "ab\n", false}, {"a\n", "a\nb\n", false}, {"a\n", "b\na\n", false},
	} {
		if ok := printed(c.want, c.got); ok != c.ok {
			t.Errorf("want %q, printed %q: %v", c.want, c.got, ok)
		}
	}
}
