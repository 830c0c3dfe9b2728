package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ftproxy/proxy/proxytest"
)

// certificateFiles are the files of a certificate that signs itself.
type certificateFiles struct{ cert, key string }

func newCertificate(t *testing.T, name string) certificateFiles {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := certificateFiles{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	write(t, files.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, files.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	return files
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// swap points the link at other files, as a mounted secret does, and makes sure that their times differ.
func swap(t *testing.T, link string, to certificateFiles, age time.Duration) {
	t.Helper()
	for _, f := range []struct{ from, to string }{{"tls.crt", to.cert}, {"tls.key", to.key}} {
		stamp := time.Now().Add(-age)
		if err := os.Chtimes(f.to, stamp, stamp); err != nil {
			t.Fatal(err)
		}
		next := filepath.Join(link, f.from+".next")
		if err := os.Symlink(f.to, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(link, f.from)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificatesAreReadAgain: the next connection has the new one, the old one lives on, a bad file keeps what was.
func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	one, two := newCertificate(t, "one"), newCertificate(t, "two")
	swap(t, dir, one, 3*time.Minute)
	c := mustLoad(t, relay("FTPROXY_SOURCE=tcps://127.0.0.1:0?replies=ack",
		"FTPROXY_TLS_CERT_FILE="+filepath.Join(dir, "tls.crt"), "FTPROXY_TLS_KEY_FILE="+filepath.Join(dir, "tls.key")))
	source, err := c.newSource(&c.sources[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	log := proxytest.NewLog("l")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx, log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	listens := wiredSource{"tcp", source}.listens()
	proxytest.Until(t, patience, "the source listens", func() bool { return listens.Addr() != nil })

	connect := func(want string) *tls.Conn {
		t.Helper()
		conn, err := tls.Dial("tcp", listens.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("certificate %q, want %q", got, want)
		}
		return conn
	}
	serve := func(conn net.Conn, want string) {
		t.Helper()
		if _, err := io.WriteString(conn, "x\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := bufio.NewReader(conn).ReadString('\n'); got != want || err != nil {
			t.Errorf("reply %q, %v", got, err)
		}
	}
	first := connect("one")
	serve(first, "ok 1\n")
	swap(t, dir, two, 2*time.Minute)
	serve(connect("two"), "ok 1\n")
	serve(first, "ok 2\n")
	bad := certificateFiles{filepath.Join(t.TempDir(), "bad"), two.key}
	write(t, bad.cert, []byte("no certificate"))
	swap(t, dir, bad, time.Minute)
	serve(connect("two"), "ok 1\n")
	if c.badCertificates.Load() == 0 {
		t.Error("the bad file is not counted")
	}
}

// TestCertifiedClients: with clients=certified nobody else is served.
func TestCertifiedClients(t *testing.T) {
	own, stranger := newCertificate(t, "own"), newCertificate(t, "stranger")
	files := []string{
		"FTPROXY_TLS_CERT_FILE=" + own.cert, "FTPROXY_TLS_KEY_FILE=" + own.key, "FTPROXY_TLS_CA_FILE=" + own.cert,
	}
	c := mustLoad(t, relay(append(files, "FTPROXY_SOURCE=tcps://127.0.0.1:0?replies=ack&clients=certified",
		"FTPROXY_SINK=tcps://127.0.0.1:1")...))
	server, err := c.serverTLS(&c.sources[0], "certified")
	if err != nil {
		t.Fatal(err)
	}
	known, err := c.clientTLS(&c.sinks[0])
	if err != nil {
		t.Fatal(err)
	}
	unknown := known.Clone()
	unknown.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(stranger.cert, stranger.key)
		return &pair, err
	}
	for name, tc := range map[string]struct {
		client *tls.Config
		served bool
	}{"known": {known, true}, "unknown": {unknown, false}} {
		client := tc.client.Clone()
		client.ServerName = "127.0.0.1"
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- tls.Server(far, server).HandshakeContext(t.Context()) }()
		clientErr := tls.Client(near, client).HandshakeContext(t.Context())
		_ = near.Close()
		if err := <-done; (err == nil) != tc.served {
			t.Errorf("%s client: server says %v, client %v", name, err, clientErr)
		}
	}
}
