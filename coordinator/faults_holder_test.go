package coordinator_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-fence/etcd-fence/coordinator"
	"github.com/etcd-fence/etcd-fence/revisionfence"
	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// mortalVariable in the environment makes a holder of the test binary: it holds
// each lock that it is told the name of, until it is killed.
const mortalVariable = "COORDINATOR_TEST_MORTAL"

const mortalTTL = 2 * time.Second

func init() {
	if where := os.Getenv(mortalVariable); where != "" {
		fmt.Println("error", live(where))
		os.Exit(1)
	}
}

func live(where string) error {
	mode, endpoints, _ := strings.Cut(where, " ")
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(endpoints, ","), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	opts := coordinator.Options{TTL: mortalTTL}
	if mode == "directory" {
		opts.Directory = elsewhere
	}
	c, err := coordinator.New(client, &opts)
	if err != nil {
		return err
	}
	var grants []*coordinator.Grant
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		g, err := c.Acquire(context.Background(), in.Text())
		if err != nil {
			return err
		}
		grants = append(grants, g)
		fmt.Println(g.Token(), g.Key())
	}
	return fmt.Errorf("left with %d locks", len(grants))
}

// mortal is a process that holds locks and is killed.
type mortal struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner

	session string // key of its session
}

func newMortal(t *testing.T, etcd *embedded.Cluster, mode string) *mortal {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{cmd: exec.CommandContext(t.Context(), self)}
	m.cmd.Env = append(os.Environ(), mortalVariable+"="+mode+" "+strings.Join(etcd.Endpoints(), ","))
	m.cmd.Stderr = os.Stderr
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	m.out = bufio.NewScanner(out)
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	return m
}

// kill gives the process no time for anything.
func (m *mortal) kill() {
	_ = m.cmd.Process.Kill() // it may be dead
	_ = m.cmd.Wait()
}

// deadGrant is a grant of which only its writes may still be under way.
type deadGrant struct {
	token revisionfence.Token
	key   string
}

func (d *deadGrant) Fence() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(d.key), "=", d.token.Revision())}
}

func (m *mortal) hold(t *testing.T, lock string) *deadGrant {
	t.Helper()
	if _, err := fmt.Fprintln(m.in, lock); err != nil {
		t.Fatal(err)
	}
	if !m.out.Scan() {
		t.Fatalf("the holder has ended: %v", m.out.Err())
	}
	text, key, _ := strings.Cut(m.out.Text(), " ")
	token, err := revisionfence.Parse(text)
	if err != nil {
		t.Fatalf("the holder says %q: %v", m.out.Text(), err)
	}
	m.session = sessionsPrefix + strings.Split(key[strings.LastIndex(key, "/")+1:], "-")[0]
	return &deadGrant{token, key}
}

func killHolders(t *testing.T, s *scene) {
	for _, m := range s.mortals {
		m.kill()
	}
	// The calls go on until etcd has ended the leases, in its own time.
	eventually(t, "the leases of the dead have ended", func() bool {
		for _, m := range s.mortals {
			resp, err := s.truth.Get(t.Context(), m.session, clientv3.WithCountOnly())
			if err != nil || resp.Count != 0 {
				return false
			}
		}
		return true
	})
}
