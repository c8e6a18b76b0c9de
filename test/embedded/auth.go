package embedded

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Auth makes the members ask for a user and a password, from the start on. The
// only user is root, whom the cluster's own clients are; it makes the others:
//
//	root := etcd.Client()
//	root.UserAdd(ctx, "alice", "secret")
//	root.UserGrantRole(ctx, "alice", ...)
//	alice := etcd.ClientAs(t, "alice", "secret")
type Auth struct {
	// RootPassword is root's.
	// Defaults to "root".
	RootPassword string

	// TokenTTL is how long the token lives that a client gets for its password,
	// in whole seconds. A simple token lives on while it is used. A JWT ends
	// whatever happens, and up to a second early, since its end is rounded down.
	// A client gets a new one by itself in both cases.
	// Defaults to 5 minutes, as in etcd.
	TokenTTL time.Duration

	// JWT makes the tokens signed ones, which every member can check by itself
	// and which outlive a restart.
	// Defaults to false: etcd's simple tokens.
	JWT bool
}

const (
	rootUser       = "root"
	defaultPass    = "root"
	defaultAuthTTL = 5 * time.Minute
)

func (a *Auth) validate() error {
	if a.TokenTTL < 0 || a.TokenTTL%time.Second != 0 {
		return fmt.Errorf("embedded: Options.Auth.TokenTTL is %v, it must be whole seconds, or 0 for the default", a.TokenTTL)
	}
	return nil
}

func (a *Auth) password() string {
	if a.RootPassword != "" {
		return a.RootPassword
	}
	return defaultPass
}

func (a *Auth) ttl() time.Duration {
	if a.TokenTTL != 0 {
		return a.TokenTTL
	}
	return defaultAuthTTL
}

// prepare makes what the members need for it before they start.
func (a *Auth) prepare(dir string) (token string, err error) {
	if !a.JWT {
		return "simple", nil
	}
	private, public := filepath.Join(dir, "jwt-key.pem"), filepath.Join(dir, "jwt.pem")
	key, err := writeKey(private)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	if err := writePEM(public, "PUBLIC KEY", der); err != nil {
		return "", err
	}
	return fmt.Sprintf("jwt,sign-method=ES256,pub-key=%s,priv-key=%s,ttl=%v", public, private, a.ttl()), nil
}

// enable makes the root user and asks for passwords from then on, unless the
// data that the members have started from says so already.
func (a *Auth) enable(ctx context.Context, client *clientv3.Client) error {
	status, err := client.AuthStatus(ctx)
	if err != nil {
		return fmt.Errorf("authentication: %w", err)
	}
	if status.Enabled {
		return nil
	}
	steps := []func() error{
		func() error { _, err := client.UserAdd(ctx, rootUser, a.password()); return err },
		func() error { _, err := client.UserGrantRole(ctx, rootUser, rootUser); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("authentication: %w", err)
		}
	}
	return nil
}

// ClientAs returns a further client for the length of the test, of a user other
// than root. It needs Options.Auth to mean anything. See [Cluster.NewClient] for
// the functions.
func (c *Cluster) ClientAs(t TB, user, password string, adjust ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	as := func(config *clientv3.Config) { config.Username, config.Password = user, password }
	return c.NewClient(t, append([]func(*clientv3.Config){as}, adjust...)...)
}
