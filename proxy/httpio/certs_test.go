package httpio_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

// writePair makes a self-signed certificate for 127.0.0.1, as files in a new folder.
func writePair(t *testing.T) (folder string, der []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: rawKey},
	} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder, der
}

// Files are swapped as orchestrators do it: by a symbolic link to another folder.
func TestCertificateIsReadAgain(t *testing.T) {
	first, firstDER := writePair(t)
	second, secondDER := writePair(t)
	bad := t.TempDir()
	link := filepath.Join(t.TempDir(), "now")
	point := func(to string) {
		t.Helper()
		_ = os.Remove(link)
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	point(first)
	pair, err := httpio.LoadPair(filepath.Join(link, "cert.pem"), filepath.Join(link, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when string, want []byte, failures bool) {
		t.Helper()
		pair.Age()
		if got, failed := pair.Get(); !bytes.Equal(got, want) || (failed > 0) != failures {
			t.Errorf("%s: the right certificate: %v, failures %d", when, bytes.Equal(got, want), failed)
		}
	}
	expect("at first", firstDER, false)
	point(second)
	expect("after the swap", secondDER, false)
	point(bad)
	expect("files missing", secondDER, true)
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.WriteFile(filepath.Join(bad, name), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect("files bad", secondDER, true)
	point(first)
	expect("back again", firstDER, true)
}

func TestMutualTLS(t *testing.T) {
	folder, _ := writePair(t)
	files := httpio.TLS{
		CertFile: filepath.Join(folder, "cert.pem"), KeyFile: filepath.Join(folder, "key.pem"),
		CAFile: filepath.Join(folder, "cert.pem"),
	}
	down, up := proxytest.NewLog("down"), proxytest.NewLog("up")
	source := newSource(t, func(c *httpio.SourceConfig) { c.TLS, c.Path = files, "/" })
	addr, _ := serve(t, source, down)
	up.Feed(numbered(1, 20)...)
	out := up.Outlet("http")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	anonymous := newSink(t, func(c *httpio.SinkConfig) {
		c.URL, c.TLS = "https://"+addr,
			httpio.TLS{CAFile: files.CAFile}
	})
	run(t, anonymous, out)
	proxytest.Until(t, 10*time.Second, "a refusal", func() bool { return anonymous.Trouble() != nil })
	if !strings.Contains(anonymous.Trouble().Error(), "certificate") || len(down.Tuples()) > 0 {
		t.Errorf("trouble %v, %d tuples", anonymous.Trouble(), len(down.Tuples()))
	}
	run(t, newSink(t, func(c *httpio.SinkConfig) { c.URL, c.TLS = "https://"+addr, files }), out)
	if err := out.WaitAcked(ctx, 20); err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("plain HTTP on a TLS port was accepted")
		}
	}
}
