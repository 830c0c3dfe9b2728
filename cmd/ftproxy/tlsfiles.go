package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// serverTLS is the TLS configuration of a listening endpoint, nil if its scheme has none.
func (c *config) serverTLS(e *endpoint, clients string) (*tls.Config, error) {
	if !e.scheme.secure() {
		return nil, nil //nolint:nilnil // no TLS, and nothing wrong
	}
	pair := &certificate{cert: c.TLSCertFile, key: c.TLSKeyFile, bad: c.badCertificates}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	t := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if clients == "certified" {
		pool, err := authorities(c.TLSCAFile)
		if err != nil {
			return nil, err
		}
		t.ClientCAs, t.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return t, nil
}

// clientTLS is the TLS configuration towards a receiver, nil if its scheme has none.
func (c *config) clientTLS(e *endpoint) (*tls.Config, error) {
	if !e.scheme.secure() {
		return nil, nil //nolint:nilnil // no TLS, and nothing wrong
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCAFile != "" {
		pool, err := authorities(c.TLSCAFile)
		if err != nil {
			return nil, err
		}
		t.RootCAs = pool
	}
	if c.TLSCertFile != "" {
		pair := &certificate{cert: c.TLSCertFile, key: c.TLSKeyFile, bad: c.badCertificates}
		if _, err := pair.get(); err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	}
	return t, nil
}

// authorities reads who is trusted to sign certificates.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := readFile(file, maxPEMBytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// certificate is read from its files, and again when they have changed: the next handshake has the new one. Files that
// cannot be read keep the old one in use.
type certificate struct {
	cert, key string
	bad       *atomic.Uint64

	mu     sync.Mutex
	loaded *tls.Certificate
	stamp  [2]time.Time
}

func (c *certificate) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var stamp [2]time.Time
	for i, name := range []string{c.cert, c.key} {
		if info, err := os.Stat(name); err == nil {
			stamp[i] = info.ModTime()
		}
	}
	if c.loaded != nil && stamp == c.stamp {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		c.bad.Add(1)
		if c.loaded != nil {
			return c.loaded, nil
		}
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c.loaded, c.stamp = &pair, stamp
	return c.loaded, nil
}
