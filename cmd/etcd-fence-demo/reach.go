package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reach makes sure that there is an etcd with a quorum, that this user may write
// below the prefix, and that nobody else uses it.
func (g *ground) reach(ctx context.Context) (err error) {
	if g.client, err = g.target.dial(); err != nil {
		return g.why(ctx, err, g.target.DialTimeout)
	}
	bound, cancel := context.WithTimeout(ctx, g.target.CommandTimeout)
	defer cancel()
	// It deletes nothing, and etcd allows it only to those who may write there. Its
	// answer is also the proof of a quorum.
	everything := clientv3.WithPrefix()
	answer, err := g.client.Txn(bound).
		If(clientv3.Compare(clientv3.CreateRevision(g.prefix), "=", 0).WithPrefix()).
		Then(clientv3.OpDelete(g.prefix, everything)).
		Else(clientv3.OpGet(g.prefix, everything, clientv3.WithCountOnly())).
		Commit()
	if err != nil {
		return g.why(ctx, err, g.target.CommandTimeout)
	}
	if !answer.Succeeded {
		return fmt.Errorf("%s is in use: it has %d keys", g.prefix, answer.Responses[0].GetResponseRange().Count)
	}
	g.version = g.askVersion(bound)
	return nil
}

// why makes of the first request's error one that says what to do.
func (g *ground) why(ctx context.Context, err error, bound time.Duration) error {
	is := func(target error) bool { return errors.Is(rpctypes.Error(err), target) }
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case is(rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd at %s does not know the user %q with this password; check --user and --password, and ETCDCTL_USER and ETCDCTL_PASSWORD", g.target, g.target.User)
	case is(rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd at %s has authentication on, and nobody is logged in; give --user", g.target)
	case is(rpctypes.ErrPermissionDenied):
		need := fmt.Sprintf("a role needs: etcdctl role grant-permission ROLE readwrite --prefix %s (role add makes one, and user grant-role gives it to a user)", prefixes)
		if g.target.User == "" {
			// With a client certificate etcd takes its common name for a user.
			return fmt.Errorf("etcd at %s has authentication on, and nobody is logged in who may read and write below %s; give --user; %s", g.target, prefixes, need)
		}
		return fmt.Errorf("the user %q may not read and write below %s; %s", g.target.User, prefixes, need)
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable:
		return fmt.Errorf("no etcd answers within %v: %s", bound, strings.Join(g.whyNot(ctx), "; "))
	}
	return fmt.Errorf("etcd at %s: %w", g.target, err)
}

// lookTimeout bounds the look at one endpoint.
const lookTimeout = time.Second

// whyNot looks at each endpoint by itself, since the client only says that it has
// waited long enough. What is wrong with several is said once.
func (g *ground) whyNot(ctx context.Context) []string {
	var reasons []string
	having := make(map[string][]string)
	for _, endpoint := range g.target.Endpoints {
		bound, cancel := context.WithTimeout(ctx, lookTimeout)
		reason := g.look(bound, endpoint)
		cancel()
		if having[reason] == nil {
			reasons = append(reasons, reason)
		}
		having[reason] = append(having[reason], endpoint)
	}
	for i, reason := range reasons {
		reasons[i] = strings.Join(having[reason], ", ") + ": " + reason
	}
	return reasons
}

// look says what is wrong with an endpoint.
func (g *ground) look(ctx context.Context, endpoint string) string {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address(endpoint))
	if err != nil {
		return fmt.Sprintf("%v; check --endpoints", reason(err))
	}
	defer conn.Close()
	config, err := g.target.config()
	if err != nil {
		return err.Error()
	}
	scheme, _, _ := strings.Cut(endpoint, "://")
	if secure := config.TLS != nil && scheme != "http" || scheme == "https"; !secure {
		// Whoever completes a handshake speaks TLS.
		probe := &tls.Config{InsecureSkipVerify: true} // nothing is sent, and nothing believed
		if err := greet(ctx, conn, probe, endpoint); err == nil || isAlert(err) {
			if scheme == "http" {
				return "wants TLS, and its address says http://: write https:// or leave the scheme out"
			}
			return "wants TLS; give --cacert, or --insecure-transport=false if its certificate is one that everybody trusts"
		}
		return "accepts connections, and is no etcd or has no leader; check --endpoints"
	}
	switch err := greet(ctx, conn, config.TLS, endpoint); {
	case err == nil:
		return "accepts connections, and is no etcd or has no leader; check --endpoints"
	case isAlert(err) && g.target.Cert == "":
		return fmt.Sprintf("refuses this client: %v; give --cert and --key", reason(err))
	case isAlert(err):
		return fmt.Sprintf("refuses this client: %v; check --cert and --key", reason(err))
	case errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, io.EOF):
		return "does not speak TLS; check --endpoints, or give no certificates"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Sprintf("has a certificate that is not to be trusted: %v; check --cacert, and the host in --endpoints", reason(err))
	default:
		return fmt.Sprintf("no TLS: %v", reason(err))
	}
}

// greet shakes hands over TLS. A server that refuses the client's certificate says
// so only after that, so it listens for a moment.
func greet(ctx context.Context, conn net.Conn, config *tls.Config, endpoint string) error {
	if config == nil {
		config = new(tls.Config)
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address(endpoint))
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetReadDeadline(deadline)
	_, err := secure.Read(make([]byte, 1))
	if isAlert(err) {
		return err
	}
	return nil // it speaks HTTP/2, or waits for us to do so
}

// isAlert reports whether the other side has refused the connection over TLS.
func isAlert(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "remote error"
}

// reason is an error without the addresses, which the message has already.
func reason(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return file.Err
	}
	return err
}
