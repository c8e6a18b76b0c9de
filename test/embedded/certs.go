package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CertFiles are the paths of PEM files that a client needs, for programs that
// take them as flags: etcdctl has --cacert, --cert and --key for them.
type CertFiles struct {
	CA   string // of the authority that has signed the members' certificates
	Cert string // of the client
	Key  string // of the client
}

// certs is a throwaway authority with a certificate for the members and one for
// the clients, all in one directory.
type certs struct{ dir string }

func (c certs) file(name string) string { return filepath.Join(c.dir, name+".pem") }

func (c certs) client() CertFiles {
	return CertFiles{CA: c.file("ca"), Cert: c.file("client"), Key: c.file("client-key")}
}

// make writes new ones. They live as long as any test does.
func (c certs) make() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	authority := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"embedded etcd: authority"}},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	signer, err := c.sign("ca", authority, authority, nil)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"embedded etcd: member"}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	// Without a common name: etcd would take that for the name of a user.
	client := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"embedded etcd: client"}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	_, serverErr := c.sign("server", server, authority, signer)
	_, clientErr := c.sign("client", client, authority, signer)
	return errors.Join(serverErr, clientErr)
}

// sign writes a certificate and its key. It signs itself when there is no signer.
func (c certs) sign(name string, cert, authority *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := writeKey(c.file(name + "-key"))
	if err != nil {
		return nil, err
	}
	if signer == nil {
		signer = key
	}
	if cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, cert, authority, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return key, writePEM(c.file(name), "CERTIFICATE", der)
}

func writeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// config is what a client needs to speak to the members.
func (f CertFiles) config() (*tls.Config, error) {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("no certificate in %s", f.CA)
	}
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{cert}}, nil
}
