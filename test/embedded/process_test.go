//go:build unix

package embedded_test

import (
	"context"
	"errors"
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
	etcd.Pause(t) // cleaning up a paused member must not hang
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
