package httpio

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TLS names PEM files. On a listener CertFile and KeyFile switch TLS on, and CAFile makes client certificates
// mandatory. On a sink CAFile replaces the system's roots, and CertFile and KeyFile are its client certificate.
type TLS struct {
	CertFile, KeyFile, CAFile string
}

func (t TLS) check() error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return errors.New("tls: certificate and key belong together, one of the two files is not set")
	}
	return nil
}

// failures returns how often the files could not be read again; nil has none.
func (p *pair) failures() uint64 {
	if p == nil {
		return 0
	}
	return p.failed.Load()
}

// pair is a certificate that is read again when its files have changed. A bad file keeps the former one in use.
type pair struct {
	certFile, keyFile string
	failed            atomic.Uint64 // readings that failed

	mu     sync.Mutex
	now    *tls.Certificate
	text   [2][]byte // what now was made of; times of change are too coarse to tell
	looked time.Time
}

// loadPair reads the files for the first time; here an error is final.
func loadPair(certFile, keyFile string) (*pair, error) {
	p := &pair{certFile: certFile, keyFile: keyFile}
	return p, p.load()
}

// load reads the files, and makes a certificate of them if they have changed.
func (p *pair) load() error {
	p.looked = time.Now()
	var text [2][]byte
	for i, name := range []string{p.certFile, p.keyFile} {
		var err error
		if text[i], err = os.ReadFile(name); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
	}
	if p.now != nil && bytes.Equal(text[0], p.text[0]) && bytes.Equal(text[1], p.text[1]) {
		return nil
	}
	cert, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return fmt.Errorf("tls: certificate %s with key %s: %w", p.certFile, p.keyFile, err)
	}
	p.now, p.text = &cert, text
	return nil
}

// get returns the certificate in use, after a look at the files if the last look is a second old.
func (p *pair) get() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.looked) >= time.Second {
		if err := p.load(); err != nil {
			p.failed.Add(1)
		}
	}
	return p.now
}

// server returns the configuration of a listener, nil if it is plain.
func (t TLS) server() (*tls.Config, *pair, error) {
	if t.CertFile == "" {
		return nil, nil, nil
	}
	p, err := loadPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"}, // a connection holds one request: what is bounded stays easy to see
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.get(), nil },
	}
	if t.CAFile != "" {
		if c.ClientCAs, err = roots(t.CAFile); err != nil {
			return nil, nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, p, nil
}

// client returns the configuration of a sink.
func (t TLS) client() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pool, err := roots(t.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if t.CertFile != "" {
		p, err := loadPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.get(), nil }
	}
	return c, nil
}

func roots(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s holds no certificate in PEM form", file)
	}
	return pool, nil
}
