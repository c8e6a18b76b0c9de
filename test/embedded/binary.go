//go:build unix

package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// flags are the fields of etcd's configuration that Options.Config may change
// for a program: those whose flags every version has had since 3.5 and will keep.
var flags = map[string]string{
	"AuthToken":                  "auth-token",
	"AuthTokenTTL":               "auth-token-ttl",
	"AutoCompactionMode":         "auto-compaction-mode",
	"AutoCompactionRetention":    "auto-compaction-retention",
	"BackendBatchInterval":       "backend-batch-interval",
	"BackendBatchLimit":          "backend-batch-limit",
	"BcryptCost":                 "bcrypt-cost",
	"ElectionMs":                 "election-timeout",
	"EnableGRPCGateway":          "enable-grpc-gateway",
	"GRPCKeepAliveInterval":      "grpc-keepalive-interval",
	"GRPCKeepAliveMinTime":       "grpc-keepalive-min-time",
	"GRPCKeepAliveTimeout":       "grpc-keepalive-timeout",
	"InitialElectionTickAdvance": "initial-election-tick-advance",
	"LogLevel":                   "log-level",
	"MaxConcurrentStreams":       "max-concurrent-streams",
	"MaxRequestBytes":            "max-request-bytes",
	"MaxSnapFiles":               "max-snapshots",
	"MaxTxnOps":                  "max-txn-ops",
	"MaxWalFiles":                "max-wals",
	"PreVote":                    "pre-vote",
	"QuotaBackendBytes":          "quota-backend-bytes",
	"SnapshotCount":              "snapshot-count",
	"StrictReconfigCheck":        "strict-reconfig-check",
	"TickMs":                     "heartbeat-interval",
	"UnsafeNoFsync":              "unsafe-no-fsync",
}

// arguments are the flags of a member that runs as a program.
func arguments(m *Member) ([]string, error) {
	changes, err := changedFields(m)
	if err != nil {
		return nil, err
	}
	s := m.spec()
	c := s.config()
	args := []string{
		"--name=" + c.Name, "--data-dir=" + c.Dir,
		"--listen-client-urls=" + c.ListenClientUrls[0].String(), "--advertise-client-urls=" + c.AdvertiseClientUrls[0].String(),
		"--listen-peer-urls=" + c.ListenPeerUrls[0].String(), "--initial-advertise-peer-urls=" + c.AdvertisePeerUrls[0].String(),
		"--initial-cluster=" + c.InitialCluster, "--initial-cluster-token=" + c.InitialClusterToken,
	}
	if s.Certs != "" {
		tls := c.ClientTLSInfo
		args = append(args, "--cert-file="+tls.CertFile, "--key-file="+tls.KeyFile, "--trusted-ca-file="+tls.TrustedCAFile, "--client-cert-auth=true")
	}
	ours := map[string]any{
		"TickMs": c.TickMs, "ElectionMs": c.ElectionMs, "UnsafeNoFsync": c.UnsafeNoFsync, "BcryptCost": c.BcryptCost,
		"EnableGRPCGateway": c.EnableGRPCGateway, "LogLevel": c.LogLevel, "AuthToken": c.AuthToken, "AuthTokenTTL": c.AuthTokenTTL,
	}
	for field, value := range changes {
		if flags[field] == "" {
			return nil, fmt.Errorf("%w: Options.Config changes %s, for which this package knows no flag of %s", ErrUnsupported, field, m.opts.Binary)
		}
		ours[field] = value
	}
	for field, value := range ours {
		args = append(args, fmt.Sprintf("--%s=%v", flags[field], value))
	}
	return args, nil
}

// program is a member that is an etcd server program.
type program struct {
	*process
	member *Member
	peer   string // where its peers reach it; empty for an only member
	tail   *tail
}

func startBinary(ctx context.Context, m *Member, logs *logBuffer) (runner, error) {
	args, err := arguments(m)
	if err != nil {
		return nil, err
	}
	p := &program{member: m, tail: &tail{to: logs}}
	if peers := m.cluster.layout.Peers; len(peers) > 0 {
		p.peer = peers[m.index]
	}
	cmd := exec.Command(m.opts.Binary, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCD_") { // each flag can be set by such a one
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stdout, cmd.Stderr = p.tail, p.tail
	if p.process, err = spawn(cmd); err != nil {
		return nil, err
	}
	if err := p.serving(ctx); err != nil {
		return nil, errors.Join(err, p.kill(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// serving waits until peers can reach it. An only member is waited for: it may
// yet find its port taken.
func (p *program) serving(ctx context.Context) error {
	if p.peer == "" {
		return p.ready(ctx)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	return p.unlessExited(ctx, func(ctx context.Context) error {
		for {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.peer+"/version", nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err == nil {
				_ = resp.Body.Close()
				return nil // whatever it says
			}
			if ctx.Err() != nil {
				return err
			}
			sleep(ctx, 5*time.Millisecond)
		}
	})
}

func (p *program) ready(ctx context.Context) error { return p.unlessExited(ctx, p.member.probe) }

// unlessExited ends f when the program ends, and then says why it did.
func (p *program) unlessExited(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	select {
	case <-p.exited:
	default:
		return err
	}
	err = fmt.Errorf("%s has ended while it started: %v", p.member.opts.Binary, p.cmd.ProcessState)
	if strings.Contains(p.tail.String(), "address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

func (p *program) id() uint64 { return 0 }

func (p *program) cut(context.Context, uint64, bool) error {
	return fmt.Errorf("%w: Isolate with Options.Binary", ErrUnsupported)
}

func (p *program) stop(ctx context.Context) error {
	if p.paused {
		return p.kill(ctx)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.wait(ctx)
}

// tail passes on what is written to it and keeps the end.
type tail struct {
	to io.Writer

	mu   sync.Mutex
	last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const kept = 8 << 10
	t.mu.Lock()
	t.last = append(t.last, p...)
	if over := len(t.last) - kept; over > 0 {
		t.last = bytes.Clone(t.last[over:])
	}
	t.mu.Unlock()
	return t.to.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}
