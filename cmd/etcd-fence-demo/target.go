package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// target is how to reach an etcd. The workers are told in an order, so that
// everybody uses the same.
type target struct {
	Endpoints []string `json:"endpoints"`
	// Files in PEM, as etcdctl takes them; all may be empty.
	CACert string `json:"cacert,omitempty"`
	Cert   string `json:"cert,omitempty"`
	Key    string `json:"key,omitempty"`
}

// String is the list as etcdctl takes it.
func (t target) String() string { return strings.Join(t.Endpoints, ",") }

// etcdctl is the beginning of a command that reaches the same etcd.
func (t target) etcdctl() string {
	command := "etcdctl --endpoints " + t.String()
	for _, f := range []struct{ flag, file string }{{"cacert", t.CACert}, {"cert", t.Cert}, {"key", t.Key}} {
		if f.file != "" {
			command += " --" + f.flag + " " + f.file
		}
	}
	return command
}

// dial returns a client. It does no I/O but for reading the certificates.
func (t target) dial() (*clientv3.Client, error) {
	secure, err := t.tls()
	if err != nil {
		return nil, err
	}
	// What the client logs about its retries would break the timeline.
	return clientv3.New(clientv3.Config{Endpoints: t.Endpoints, TLS: secure, Logger: zap.NewNop()})
}

// tls is nil without certificates: then the scheme of each endpoint decides.
func (t target) tls() (*tls.Config, error) {
	if t.CACert == "" && t.Cert == "" && t.Key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CACert != "" {
		pem, err := os.ReadFile(t.CACert)
		if err != nil {
			return nil, fmt.Errorf("flag --cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("flag --cacert: no certificate in %s", t.CACert)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("flags --cert and --key go together")
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("flags --cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
