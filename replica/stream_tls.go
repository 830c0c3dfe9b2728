package replica

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// certificates holds what TLS between nodes needs, and reads the files again when they change.
type certificates struct {
	files TLSFiles
	log   *slog.Logger
	// bad counts changed files that did not parse; the former ones stay in force.
	bad atomic.Int64

	mu      sync.Mutex
	stamp   string // of the files that were read last, good or bad
	cert    tls.Certificate
	ca      *x509.CertPool
	expires time.Time
}

// openCertificates reads the files; here, unlike later, a bad one is an error.
func openCertificates(files TLSFiles, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, log: log}
	stamp, err := c.look()
	if err != nil {
		return nil, err
	}
	c.stamp = stamp
	return c, c.load()
}

// look returns a stamp that changes when one of the files does, also behind a symbolic link.
func (c *certificates) look() (string, error) {
	var stamp strings.Builder
	for _, name := range []string{c.files.CertFile, c.files.KeyFile, c.files.CAFile} {
		target, err := filepath.EvalSymlinks(name)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(target)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&stamp, "%s %d %d|", target, info.ModTime().UnixNano(), info.Size())
	}
	return stamp.String(), nil
}

func (c *certificates) load() error {
	cert, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.files.CertFile, err)
	}
	pem, err := os.ReadFile(c.files.CAFile)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(pem) {
		return fmt.Errorf("certificate authority %s: no certificate in it", c.files.CAFile)
	}
	c.cert, c.ca, c.expires = cert, ca, cert.Leaf.NotAfter
	return nil
}

// current returns the certificates in force, after a look at the files.
func (c *certificates) current() (tls.Certificate, *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp, err := c.look()
	if err == nil && stamp == c.stamp {
		return c.cert, c.ca
	}
	if err != nil {
		stamp = "unreadable: " + err.Error()
	}
	if stamp == c.stamp {
		return c.cert, c.ca
	}
	c.stamp = stamp
	if err == nil {
		err = c.load()
	}
	if err != nil {
		c.bad.Add(1)
		c.log.Error("changed TLS files are not usable, the former ones stay in force", slog.Any("error", err))
	}
	return c.cert, c.ca
}

func (c *certificates) expiry() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expires
}

// server is the configuration for one accepted connection. Whether the certificate is that of the node that the hello
// names is checked after the hello.
func (c *certificates) server() *tls.Config {
	cert, ca := c.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca, SessionTicketsDisabled: true,
	}
}

// client is the configuration for one connection to a peer. The chain and the name are checked by verifyChain, because
// either the node's name or its host is enough.
func (c *certificates) client(name, addr string) *tls.Config {
	cert, ca := c.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		InsecureSkipVerify: true, // replaced by VerifyConnection, which checks chain and name
		VerifyConnection: func(s tls.ConnectionState) error {
			return errors.Join(verifyChain(s, ca), verifyName(s, name, addr))
		},
	}
}

func verifyChain(s tls.ConnectionState, ca *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the peer has no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range s.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: ca, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// verifyName checks that a peer's certificate is valid for the node's name or for its host.
func verifyName(s tls.ConnectionState, name, addr string) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the peer has no certificate")
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	leaf := s.PeerCertificates[0]
	if leaf.VerifyHostname(name) == nil || leaf.VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("the certificate of node %q is valid neither for its name nor for its host %q", name, host)
}
