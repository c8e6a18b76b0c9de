package embedded_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-fence/etcd-fence/test/embedded"
)

// refused says whether a client with this configuration gets nothing. With TLS
// it is not told why: the connection fails, and it goes on trying.
func refused(t *testing.T, etcd *embedded.Cluster, adjust func(*clientv3.Config)) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := etcd.NewClient(t, adjust).Get(ctx, "key")
	return err != nil
}

func TestTLSNeedsTheCertificatesOfTheCluster(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		opts.TLS = true
		etcd := embedded.Start(t, opts)
		if _, err := etcd.Client().Put(bounded(t), "key", "value"); err != nil {
			t.Fatal(err)
		}
		if !refused(t, etcd, func(c *clientv3.Config) { c.TLS = nil }) {
			t.Error("a client in the clear is served")
		}
		if !refused(t, etcd, func(c *clientv3.Config) { c.TLS.Certificates = nil }) {
			t.Error("a client without a certificate is served")
		}
		if !refused(t, etcd, func(c *clientv3.Config) { c.TLS.RootCAs = x509.NewCertPool() }) {
			t.Error("a client trusts a member whose authority it does not know")
		}
		// None of these may change what the next one gets.
		if _, err := etcd.NewClient(t).Get(bounded(t), "key"); err != nil {
			t.Errorf("a client with all it needs: %v", err)
		}
		etcd.Restart(t)
		if _, err := etcd.NewClient(t).Get(bounded(t), "key"); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	})
}

func TestTLSOfOneClusterIsNotThatOfAnother(t *testing.T) {
	a, b := embedded.Start(t, &embedded.Options{TLS: true}), embedded.Start(t, &embedded.Options{TLS: true})
	if !refused(t, a, func(c *clientv3.Config) { c.TLS.Certificates = b.ClientConfig().TLS.Certificates }) {
		t.Error("a client with the certificate of another authority is served")
	}
}

func TestCertFilesAreWhatAClientNeeds(t *testing.T) {
	etcd := embedded.Start(t, &embedded.Options{TLS: true})
	files := etcd.CertFiles()
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(etcd.Endpoints()[0], ":")
	for _, host := range []string{"https://127.0.0.1", "https://localhost"} {
		client := etcd.NewClient(t, func(c *clientv3.Config) {
			c.Endpoints = []string{host + ":" + port}
			c.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{cert}}
		})
		if _, err := client.Get(bounded(t), "key"); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if files := embedded.Start(t, nil).CertFiles(); files != (embedded.CertFiles{}) {
		t.Errorf("without TLS: %+v", files)
	}
}

func TestFaultsWorkWithTLSAndAuth(t *testing.T) {
	etcd := startThree(t, &embedded.Options{TLS: true, Auth: &embedded.Auth{}})
	ctx := bounded(t)
	proxies := etcd.Proxies(t)
	client := etcd.NewClient(t, func(c *clientv3.Config) { c.Endpoints = proxies.Endpoints() })
	put(ctx, t, client, "key")
	proxies.Cut()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := client.Get(short, "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("through a cut proxy: %v", err)
	}
	proxies.Heal()
	put(ctx, t, client, "key")
	lease, err := client.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	old := etcd.Leader(t)
	etcd.Kill(t, old)
	if leader := etcd.Leader(t); leader == old {
		t.Error("a dead leader leads")
	}
	if err := etcd.ExpireLease(ctx, lease.ID); err != nil {
		t.Error(err)
	}
	etcd.Restart(t, old)
	etcd.MoveLeader(t, old)
	put(ctx, t, client, "key")
}

func TestAuthAsksForAPassword(t *testing.T) {
	modes(t, func(t *testing.T, opts *embedded.Options) {
		opts.Auth = &embedded.Auth{RootPassword: "secret"}
		began := time.Now()
		etcd := embedded.Start(t, opts)
		t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
		root, ctx := etcd.Client(), bounded(t)
		if _, err := etcd.ClientAs(t, "", "").Get(ctx, "key"); !errors.Is(err, rpctypes.ErrUserEmpty) {
			t.Errorf("without a user: %v", err)
		}
		if _, err := clientv3.New(as(etcd, "root", "wrong")); !errors.Is(err, rpctypes.ErrAuthFailed) {
			t.Errorf("with a wrong password: %v", err)
		}
		if _, err := root.UserAdd(ctx, "alice", "pass"); err != nil {
			t.Fatal(err)
		}
		alice := etcd.ClientAs(t, "alice", "pass")
		if _, err := alice.Get(ctx, "key"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("a user without a role: %v", err)
		}
		etcd.Restart(t)
		if _, err := root.Get(ctx, "key"); err != nil {
			t.Errorf("root after a restart: %v", err)
		}
		lease, err := root.Grant(ctx, 60)
		if err != nil {
			t.Fatal(err)
		}
		if err := etcd.ExpireLease(ctx, lease.ID); err != nil {
			t.Error(err)
		}
	})
}

func as(etcd *embedded.Cluster, user, password string) clientv3.Config {
	config := etcd.ClientConfig()
	config.Username, config.Password = user, password
	return config
}

func TestAuthStaysInAGivenDirectory(t *testing.T) {
	opts := &embedded.Options{Dir: t.TempDir(), Auth: &embedded.Auth{}}
	for range 2 {
		etcd, err := embedded.Run(bounded(t), opts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.ClientAs(t, "", "").Get(bounded(t), "key"); !errors.Is(err, rpctypes.ErrUserEmpty) {
			t.Errorf("without a user: %v", err)
		}
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTokensEnd uses tokens alone, since a client with a password gets a new one
// whenever its own has ended.
func TestTokensEnd(t *testing.T) {
	for name, auth := range map[string]*embedded.Auth{
		"simple": {TokenTTL: time.Second},
		"jwt":    {TokenTTL: time.Second, JWT: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := embedded.Start(t, &embedded.Options{Auth: auth})
			ctx := bounded(t)
			// A JWT ends with a whole second, the first perhaps at once.
			var client *clientv3.Client
			for {
				resp, err := etcd.Client().Authenticate(ctx, "root", "root")
				if err != nil {
					t.Fatal(err)
				}
				if isJWT := strings.Count(resp.Token, ".") == 2; isJWT != auth.JWT {
					t.Fatalf("token %q", resp.Token)
				}
				client = etcd.NewClient(t, func(c *clientv3.Config) { c.Username, c.Password, c.Token = "", "", resp.Token })
				if _, err = client.Get(ctx, "key"); err == nil {
					break
				}
				if !errors.Is(err, rpctypes.ErrInvalidAuthToken) {
					t.Fatalf("with a new token: %v", err)
				}
			}
			// A simple token lives on while it is used, so it is left alone for
			// more than the second, and than the second of etcd's own clock.
			for wait := 1500 * time.Millisecond; ; wait += 500 * time.Millisecond {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					t.Fatal("the token does not end")
				}
				_, err := client.Get(ctx, "key")
				if errors.Is(err, rpctypes.ErrInvalidAuthToken) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := etcd.Client().Get(ctx, "key"); err != nil {
				t.Errorf("with a password: %v", err)
			}
		})
	}
}

func TestTokenTTLsThatAreRefused(t *testing.T) {
	for _, ttl := range []time.Duration{-time.Second, time.Millisecond, 1500 * time.Millisecond} {
		_, err := embedded.Run(t.Context(), &embedded.Options{Auth: &embedded.Auth{TokenTTL: ttl}})
		if err == nil || !strings.Contains(err.Error(), "Options.Auth.TokenTTL") {
			t.Errorf("TTL %v: %v", ttl, err)
		}
	}
}
