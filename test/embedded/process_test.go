//go:build unix

package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

func needsProcess(*testing.T) {}

func TestPausedMemberHangsAndResumes(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{Process: true})
	ctx := bounded(t)
	etcd.Pause(t)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := etcd.Client().Get(short, "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get from a paused member: %v", err)
	}
	etcd.Resume(t)
	if _, err := etcd.Client().Get(ctx, "key"); err != nil {
		t.Error(err)
	}
	etcd.Pause(t)
	began := time.Now()
	etcd.Stop(t)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping a paused member took %v", took)
	}
}

func TestPauseNeedsAProcess(t *testing.T) {
	etcd := embedded.Start(t, nil)
	if err := etcd.Member(0).Pause(); !errors.Is(err, embedded.ErrUnsupported) {
		t.Errorf("pause inside this process: %v", err)
	}
}

func TestConfigThatCannotBeHandedOverIsRefused(t *testing.T) {
	_, err := embedded.Run(bounded(t), &embedded.Options{Process: true, Config: func(c *embed.Config) {
		c.ServiceRegister = func(*grpc.Server) {}
	}})
	if !errors.Is(err, embedded.ErrUnsupported) {
		t.Errorf("a function for a child: %v", err)
	}
}

const parentEnv = "EMBEDDED_TEST_PARENT"

// TestTheMemberEndsWithItsParent kills a process that has a member, also one
// that is paused and so cannot notice anything by itself.
func TestTheMemberEndsWithItsParent(t *testing.T) {
	if mode := os.Getenv(parentEnv); mode != "" {
		// Nobody is left to remove a directory of its own.
		etcd := embedded.Start(t, &embedded.Options{Process: true, Dir: os.Getenv(parentEnv + "_DIR")})
		if mode == "paused" {
			etcd.Pause(t)
		}
		fmt.Println("endpoint", etcd.Endpoints()[0])
		select {}
	}
	adoptOrphans(t)
	for _, mode := range []string{"running", "paused"} {
		t.Run(mode, func(t *testing.T) {
			ctx := bounded(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(ctx, self, "-test.run=^TestTheMemberEndsWithItsParent$")
			cmd.Env = append(os.Environ(), parentEnv+"="+mode, parentEnv+"_DIR="+t.TempDir())
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var endpoint string
			for lines := bufio.NewScanner(stdout); endpoint == "" && lines.Scan(); {
				endpoint, _ = strings.CutPrefix(lines.Text(), "endpoint ")
				if endpoint == lines.Text() {
					endpoint = ""
				}
			}
			if endpoint == "" || !listening(endpoint) {
				t.Fatalf("no member at %q", endpoint)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			for listening(endpoint) {
				select {
				case <-ctx.Done():
					t.Fatal("the member has outlived its parent")
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
}
