package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// target is how to reach an etcd, with the meaning that etcdctl gives to its flags
// of these names. The workers are told in an order, through a pipe that nobody
// else can read, so that everybody uses the same.
type target struct {
	Endpoints []string `json:"endpoints"`
	// Files in PEM; all may be empty.
	CACert string `json:"cacert,omitempty"`
	Cert   string `json:"cert,omitempty"`
	Key    string `json:"key,omitempty"`

	SkipVerify        bool `json:"insecure_skip_tls_verify,omitempty"`
	InsecureTransport bool `json:"insecure_transport,omitempty"`

	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`

	DialTimeout      time.Duration `json:"dial_timeout_ns"`
	CommandTimeout   time.Duration `json:"command_timeout_ns"`
	KeepAliveTime    time.Duration `json:"keepalive_time_ns"`
	KeepAliveTimeout time.Duration `json:"keepalive_timeout_ns"`
}

// defaultTarget has etcdctl's defaults, but for the endpoints.
func defaultTarget() target {
	return target{
		InsecureTransport: true,
		DialTimeout:       2 * time.Second,
		CommandTimeout:    5 * time.Second,
		KeepAliveTime:     2 * time.Second,
		KeepAliveTimeout:  6 * time.Second,
	}
}

// check looks at what can be wrong before anything is reached, and divides a
// user's name from the password.
func (t *target) check() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("flags --cert and --key go together")
	}
	if t.CACert != "" {
		pem, err := os.ReadFile(t.CACert)
		if err != nil {
			return fmt.Errorf("flag --cacert: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return fmt.Errorf("flag --cacert: no certificate in %s", t.CACert)
		}
	}
	if t.Cert != "" {
		if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
			return fmt.Errorf("flags --cert and --key: %w", err)
		}
	}
	// With a password of its own, all of --user is the name, as for etcdctl.
	if name, password, both := strings.Cut(t.User, ":"); both && t.Password == "" {
		t.User, t.Password = name, password
	}
	if t.User == "" && t.Password != "" {
		return errors.New("a password needs --user, or ETCDCTL_USER")
	}
	return nil
}

// String is the list as etcdctl takes it.
func (t target) String() string { return strings.Join(t.Endpoints, ",") }

// etcdctl is the beginning of a command that reaches the same etcd. It has no
// password: etcdctl asks for that.
func (t target) etcdctl() string {
	command := "etcdctl --endpoints " + t.String()
	for _, f := range []struct{ flag, value string }{{"cacert", t.CACert}, {"cert", t.Cert}, {"key", t.Key}, {"user", t.User}} {
		if f.value != "" {
			command += " --" + f.flag + " " + f.value
		}
	}
	if t.SkipVerify {
		command += " --insecure-skip-tls-verify"
	}
	if !t.InsecureTransport {
		command += " --insecure-transport=false"
	}
	return command
}

// patience is how long one that uses the target may take for an answer. It is more
// than logging in and one request take, so that its own error is heard.
func (t target) patience() time.Duration { return t.DialTimeout + t.CommandTimeout + 3*time.Second }

// config is what etcd's client makes of all that, as it does for etcdctl. It reads
// the certificates.
func (t target) config() (clientv3.Config, error) {
	spec := &clientv3.ConfigSpec{
		Endpoints:   t.Endpoints,
		DialTimeout: t.DialTimeout, KeepAliveTime: t.KeepAliveTime, KeepAliveTimeout: t.KeepAliveTimeout,
		Secure: &clientv3.SecureConfig{
			Cacert: t.CACert, Cert: t.Cert, Key: t.Key,
			InsecureTransport: t.InsecureTransport, InsecureSkipVerify: t.SkipVerify,
		},
	}
	if t.User != "" {
		spec.Auth = &clientv3.AuthConfig{Username: t.User, Password: t.Password}
	}
	// What the client logs about its retries would break the timeline.
	config, err := clientv3.NewClientConfig(spec, zap.NewNop())
	if err != nil {
		return clientv3.Config{}, err
	}
	config.Logger = zap.NewNop()
	return *config, nil
}

// dial returns a client. It does no I/O but for reading the certificates and, with
// a user, for logging in.
func (t target) dial() (*clientv3.Client, error) {
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	return clientv3.New(config)
}
