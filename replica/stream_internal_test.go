package replica

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// testStream is a started stream of a node of operator "op".
func testStream(id serverID, lineage string, peers map[string]string, l net.Listener, log *slog.Logger) *stream {
	s := &stream{
		operator: "op", peers: peers, local: func() identity { return identity{id: id, lineage: lineage} }, listener: l,
		log: log, refusedBy: func(string, *refusal) {},
		dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
		handle: func(context.Context, byte, serverID, net.Conn) {},
	}
	s.start()
	return s
}

// streamPair is two nodes, a and b, that can dial each other. tune changes a stream before it starts.
type streamPair struct {
	a, b  *stream
	peers map[string]string
}

func newStreamPair(t *testing.T, tune func(name string, s *stream)) *streamPair {
	t.Helper()
	p := &streamPair{peers: map[string]string{}}
	listeners := map[string]net.Listener{}
	for _, name := range []string{"a", "b"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[name], p.peers[name] = l, l.Addr().String()
	}
	for _, name := range []string{"a", "b"} {
		id := serverID(name + "#1")
		s := &stream{
			operator: "op", peers: p.peers, local: func() identity { return identity{id: id, lineage: "life"} },
			listener: listeners[name], log: testLogger(t, name), refusedBy: func(string, *refusal) {},
			dialer: func(ctx context.Context, addr string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			},
			handle: func(_ context.Context, link byte, from serverID, conn net.Conn) {
				_, _ = fmt.Fprintf(conn, "%c from %s", link, from)
			},
		}
		if tune != nil {
			tune(name, s)
		}
		s.start()
		t.Cleanup(func() { _ = s.close() })
		if name == "a" {
			p.a = s
		} else {
			p.b = s
		}
	}
	return p
}

// call dials b from a and returns what b's handler says.
func (p *streamPair) call(ctx context.Context, link byte, to serverID) (string, error) {
	conn, err := p.a.dial(ctx, link, to)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // a test's connection
	text, err := io.ReadAll(conn)
	return string(text), err
}

func TestFirstByteTellsWhatALinkIsFor(t *testing.T) {
	t.Parallel()
	p := newStreamPair(t, nil)
	for _, link := range []byte{linkForward, linkControl} {
		got, err := p.call(t.Context(), link, "b#1")
		if want := fmt.Sprintf("%c from a#1", link); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	conn, err := p.a.dial(t.Context(), linkRaft, "b")
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := raftStream{stream: p.b, self: "b#1"}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("raft")); err != nil {
		t.Fatal(err)
	}
	var got [4]byte
	if _, err := io.ReadFull(accepted, got[:]); err != nil || string(got[:]) != "raft" {
		t.Fatal(string(got[:]), err)
	}
	if p.a.sent.Load() == 0 || p.a.sent.Load() != p.b.received.Load() {
		t.Errorf("a counts %d bytes sent, b %d received", p.a.sent.Load(), p.b.received.Load())
	}
}

func TestStrangersAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	life := func(lineage string) func(string, *stream) {
		return func(name string, s *stream) {
			if name == "a" {
				s.local = func() identity { return identity{id: "a#1", lineage: lineage} }
			}
		}
	}
	for name, test := range map[string]struct {
		tune func(string, *stream)
		link byte
		to   serverID
		code string
		text string
	}{
		"another operator": {
			tune: func(name string, s *stream) {
				if name == "a" {
					s.operator = "other"
				}
			}, link: linkControl, to: "b", code: refusedName, text: `belongs to "op", not to "other"`,
		},
		"not a peer": {
			tune: func(name string, s *stream) {
				if name == "a" {
					s.local = func() identity { return identity{id: "z#1", lineage: "life"} }
				}
			}, link: linkControl, to: "b", code: refusedName, text: "not among the peers",
		},
		"the id before": {link: linkRaft, to: "b#0", code: refusedID, text: "this is b#1, not b#0"},
		"another life": {
			tune: life("other"), link: linkRaft, to: "b#1", code: refusedLineage, text: "another life",
		},
		"no life yet":              {tune: life(""), link: linkForward, to: "b#1", code: refusedEarly, text: "yet"},
		"questions need no life":   {tune: life(""), link: linkControl, to: "b#1"},
		"questions bridge lineage": {tune: life("other"), link: linkControl, to: "b#1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newStreamPair(t, test.tune)
			var told atomic.Pointer[refusal]
			p.a.refusedBy = func(_ string, no *refusal) { told.Store(no) }
			_, err := p.call(t.Context(), test.link, test.to)
			if test.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			no, ok := errors.AsType[*refusal](err)
			if !ok || no.Code != test.code || !strings.Contains(no.Text, test.text) {
				t.Fatalf("got %v, want %s: …%s…", err, test.code, test.text)
			}
			eventually(t, "a note on both sides", func() error {
				if told.Load() == nil || p.b.refusals.Load() != 1 {
					return errors.New("none")
				}
				return nil
			})
		})
	}
}

// TestGarbageAndSilenceDoNotHurt holds more connections than are admitted without a hello, and others that say
// nonsense: a peer must get through at once.
func TestGarbageAndSilenceDoNotHurt(t *testing.T) {
	t.Parallel()
	p := newStreamPair(t, nil)
	var silent []net.Conn
	for i := range maxHandshakes + 50 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.peers["b"])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // a test's connection
		switch i % 3 {
		case 0: // silence
			silent = append(silent, c)
		case 1: // not our protocol
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		case 2: // an endless hello
			_, _ = c.Write([]byte{linkControl, 0xff, 0xff, 0xff, 0xff, '{'})
		}
	}
	began := time.Now()
	if _, err := p.call(t.Context(), linkControl, "b#1"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a peer waited %v", took)
	}
	p.b.mu.Lock()
	waiting := len(p.b.conns[""])
	p.b.mu.Unlock()
	if waiting > maxHandshakes {
		t.Errorf("%d connections wait for a hello, at most %d should", waiting, maxHandshakes)
	}
	// The silent ones are cut off when their time is over.
	if err := silent[len(silent)-1].SetReadDeadline(time.Now().Add(handshakeTimeout + 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[len(silent)-1].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) &&
		!strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("a silent connection is kept: %v", err)
	}
}

func TestConnectionsOfAPeerAreBounded(t *testing.T) {
	t.Parallel()
	p := newStreamPair(t, func(_ string, s *stream) {
		s.handle = func(ctx context.Context, _ byte, _ serverID, conn net.Conn) {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			_, _ = io.Copy(io.Discard, conn)
		}
	})
	for range maxConnsPerPeer + 20 {
		conn, err := p.a.dial(t.Context(), linkControl, "b")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // a test's connection
	}
	eventually(t, "bound", func() error {
		p.b.mu.Lock()
		defer p.b.mu.Unlock()
		if n := len(p.b.conns["a"]); n > maxConnsPerPeer {
			return fmt.Errorf("%d connections are kept", n)
		}
		return nil
	})
}

// authority signs certificates for tests.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key, a.cert, a.file, _ = a.issue(t, "ca", nil)
	return a
}

// issue makes a certificate for names, or an authority's if there is none yet, and returns its files.
func (a *authority) issue(t *testing.T, file string, names []string) (*ecdsa.PrivateKey, *x509.Certificate, string,
	string,
) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: file}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: names, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(a.dir, file+".pem"), filepath.Join(a.dir, file+".key")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", rawKey)
	return key, cert, certFile, keyFile
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files returns TLS files of a certificate for names.
func (a *authority) files(t *testing.T, file string, names ...string) TLSFiles {
	t.Helper()
	_, _, cert, key := a.issue(t, file, names)
	return TLSFiles{CertFile: cert, KeyFile: key, CAFile: a.file}
}

func withTLS(t *testing.T, files map[string]TLSFiles) func(string, *stream) {
	t.Helper()
	return func(name string, s *stream) {
		f, ok := files[name]
		if !ok {
			return
		}
		certs, err := openCertificates(f, testLogger(t, name))
		if err != nil {
			t.Fatal(err)
		}
		s.certs = certs
	}
}

func TestNodesProveTheirNames(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	good := map[string]TLSFiles{"a": ours.files(t, "a", "a"), "b": ours.files(t, "b", "b")}
	with := func(name string, f TLSFiles) map[string]TLSFiles {
		return map[string]TLSFiles{"a": good["a"], "b": good["b"], name: f}
	}
	foreign, own := theirs.files(t, "a", "a"), good["a"]
	for name, test := range map[string]struct {
		files map[string]TLSFiles
		wrong string
	}{
		"both right":             {files: good},
		"client of another name": {files: with("a", ours.files(t, "x", "x")), wrong: "neither for its name"},
		"server of another name": {files: with("b", ours.files(t, "y", "y")), wrong: "neither for its name"},
		"client of another ca":   {files: with("a", TLSFiles{foreign.CertFile, foreign.KeyFile, ours.file}), wrong: "tls"},
		"client with another ca": {files: with("a", TLSFiles{own.CertFile, own.KeyFile, theirs.file}), wrong: "x509"},
		"plain client":           {files: map[string]TLSFiles{"b": good["b"]}, wrong: ""},
		"plain server":           {files: map[string]TLSFiles{"a": good["a"]}, wrong: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newStreamPair(t, withTLS(t, test.files))
			got, err := p.call(t.Context(), linkControl, "b#1")
			if len(test.files) == 2 && test.wrong == "" {
				if err != nil || got != "C from a#1" {
					t.Fatal(got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Fatalf("got %q, %v; want an error with %q", got, err, test.wrong)
			}
		})
	}
}

// TestCertificatesAreReadAgain swaps the files behind a symbolic link, as Kubernetes does: the next handshake uses
// the new ones and old connections live on; bad files leave the former ones in force and are counted.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t), newAuthority(t)
	link := filepath.Join(t.TempDir(), "now")
	at := func(a *authority) {
		next := link + ".next"
		if err := errors.Join(os.Symlink(a.dir, next), os.Rename(next, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []*authority{first, second} {
		a.files(t, "a", "a")
		a.files(t, "b", "b")
	}
	at(first)
	through := func(name string) TLSFiles {
		return TLSFiles{
			CertFile: filepath.Join(link, name+".pem"), KeyFile: filepath.Join(link, name+".key"),
			CAFile: filepath.Join(link, "ca.pem"),
		}
	}
	p := newStreamPair(t, withTLS(t, map[string]TLSFiles{"a": through("a"), "b": through("b")}))
	old, err := p.a.dial(t.Context(), linkRaft, "b")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close() //nolint:errcheck // a test's connection
	served, err := raftStream{stream: p.b}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	at(second)
	if _, err := p.call(t.Context(), linkControl, "b"); err != nil {
		t.Fatal("after the swap:", err)
	}
	if cert, _ := p.b.certs.current(); !bytes.Equal(cert.Leaf.RawIssuer, second.cert.RawSubject) ||
		cert.Leaf.CheckSignatureFrom(second.cert) != nil {
		t.Error("the new certificate is not in use")
	}
	if _, err := old.Write([]byte("x")); err != nil {
		t.Error("an old connection died:", err)
	}
	if _, err := io.ReadFull(served, make([]byte, 1)); err != nil {
		t.Error("an old connection died:", err)
	}
	broken := &authority{dir: t.TempDir()}
	for _, f := range []string{"a.pem", "a.key", "b.pem", "b.key", "ca.pem"} {
		if err := os.WriteFile(filepath.Join(broken.dir, f), []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at(broken)
	for range 3 {
		if _, err := p.call(t.Context(), linkControl, "b"); err != nil {
			t.Fatal("after bad files:", err)
		}
	}
	if a, b := p.a.certs.bad.Load(), p.b.certs.bad.Load(); a != 1 || b != 1 {
		t.Errorf("bad files were counted %d and %d times, want once each", a, b)
	}
}
