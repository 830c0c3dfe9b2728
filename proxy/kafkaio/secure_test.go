package kafkaio_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// authority makes certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.pem = certify(t, "ftproxy test authority", nil)
	return a
}

// certify makes a certificate, signed by an authority or by itself.
func certify(t *testing.T, name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: by == nil,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// files writes a certificate of the authority and its key.
func (a *authority) files(t *testing.T, name string) (cert, key []byte, certFile, keyFile string) {
	t.Helper()
	_, k, cert := certify(t, name, a)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	put(t, certFile, cert)
	put(t, keyFile, key)
	return cert, key, certFile, keyFile
}

func put(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func oneLine(pem []byte) string { return strings.ReplaceAll(string(pem), "\n", "\\n") }

// secureKafka starts a broker with a second listener that wants TLS, a client certificate, and a user who needs rights.
func secureKafka(t *testing.T, a *authority) (b *broker, secure string) {
	t.Helper()
	cert, key, _, _ := a.files(t, "broker")
	extra, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	secure = fmt.Sprintf("127.0.0.1:%d", extra)
	const scramLogin = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
	const users = `required username="admin" password="admin-pw" user_admin="admin-pw" user_reader="reader-pw";`
	properties := strings.Join([]string{
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
		"listeners=CONTROLLER://127.0.0.1:@controller@,PLAINTEXT://127.0.0.1:@port@,SECURE://" + secure,
		"advertised.listeners=PLAINTEXT://127.0.0.1:@port@,SECURE://" + secure,
		"sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule " + users,
		"listener.name.secure.scram-sha-256.sasl.jaas.config=" + scramLogin,
		"listener.name.secure.scram-sha-512.sasl.jaas.config=" + scramLogin,
		"ssl.keystore.type=PEM", "ssl.truststore.type=PEM", "ssl.client.auth=required",
		"ssl.keystore.certificate.chain=" + oneLine(cert), "ssl.keystore.key=" + oneLine(key),
		"ssl.truststore.certificates=" + oneLine(a.pem),
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:ANONYMOUS;User:admin;User:scram256;User:scram512", "",
	}, "\n")
	b, err = startBroker(filepath.Join(t.TempDir(), "kafka"), properties)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kill() })
	return b, secure
}

func (b *broker) scramUser(t *testing.T, name, password string, mechanism int8) {
	t.Helper()
	req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	u.Name, u.Mechanism, u.Iterations, u.Salt = name, mechanism, 4096, []byte("salt-salt-salt")
	u.SaltedPassword = salted(t, password, u.Salt, int(u.Iterations), mechanism)
	req.Upsertions = append(req.Upsertions, u)
	proxytest.Until(t, 20*time.Second, "user "+name, func() bool {
		resp, err := req.RequestWith(t.Context(), b.client)
		return err == nil && len(resp.Results) == 1 && resp.Results[0].ErrorCode == 0
	})
}

// allow grants the user "reader" an operation.
func (b *broker) allow(t *testing.T, resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	c := kmsg.NewCreateACLsRequestCreation()
	c.ResourceType, c.ResourceName, c.ResourcePatternType = resource, name, kmsg.ACLResourcePatternTypeLiteral
	c.Principal, c.Host, c.Operation, c.PermissionType = "User:reader", "*", op, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, c)
	resp, err := req.RequestWith(t.Context(), b.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTLSAndSASL(t *testing.T) {
	if testing.Short() {
		t.Skip("a real Kafka is left out because of -short")
	}
	a := newAuthority(t)
	b, secure := secureKafka(t, a)
	_, _, certFile, keyFile := a.files(t, "client")
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	put(t, caFile, a.pem)
	files := &kafkaio.TLS{CAFile: caFile, CertFile: certFile, KeyFile: keyFile}
	b.scramUser(t, "scram256", "pw256", 1)
	b.scramUser(t, "scram512", "pw512", 2)
	as := func(mechanism, user, password string) kafkaio.Connection {
		return kafkaio.Connection{
			Brokers: []string{secure}, TLS: files,
			SASL: &kafkaio.SASL{Mechanism: mechanism, Username: user, Password: password},
		}
	}

	t.Run("mechanisms", func(t *testing.T) {
		for _, c := range []kafkaio.Connection{
			as("PLAIN", "admin", "admin-pw"), as("SCRAM-SHA-256", "scram256", "pw256"), as("SCRAM-SHA-512", "scram512", "pw512"),
		} {
			from, to := b.topic(t, "from", 1), b.topic(t, "to", 1)
			b.put(t, from, values(0, 3, 0)...)
			log := proxytest.NewLog("lin")
			r := read(t, b, from, log, func(s *kafkaio.SourceConfig) { s.Connection, s.Group = c, "g-"+from })
			waitEnd(t, log, 3, r)
			out := log.Outlet("sink")
			for _, p := range drive(t, newSink(t, b, to, func(s *kafkaio.SinkConfig) { s.Connection = c }), out, out, 3) {
				t.Error(p)
			}
			judge(t, b.consume(t, to, 1), 3, "lin")
		}
	})

	t.Run("wrong", func(t *testing.T) {
		topic := b.topic(t, "wrong", 1)
		other := newAuthority(t)
		otherCA := filepath.Join(t.TempDir(), "other.pem")
		put(t, otherCA, other.pem)
		stranger := as("PLAIN", "admin", "admin-pw")
		stranger.TLS = &kafkaio.TLS{CAFile: otherCA, CertFile: certFile, KeyFile: keyFile}
		plaintext := as("PLAIN", "admin", "admin-pw")
		plaintext.TLS = nil
		for words, c := range map[string]kafkaio.Connection{
			`SASL PLAIN of user "admin" failed: check the user and the password`: as("PLAIN", "admin", "no"),
			`SASL SCRAM-SHA-256 of user "scram256" failed`:                       as("SCRAM-SHA-256", "scram256", "no"),
			`certificate signed by unknown authority`:                            stranger,
			`broker ` + secure: plaintext,
		} {
			if _, err := newSink(t, b, topic, func(s *kafkaio.SinkConfig) { s.Connection = c }).Check(
				proxytest.Within(t, 10*time.Second)); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%q is due, not %v", words, err)
			}
		}
	})

	t.Run("rights", func(t *testing.T) {
		may, mayNot := b.topic(t, "may", 1), b.topic(t, "maynot", 1)
		c := as("PLAIN", "reader", "reader-pw")
		log := proxytest.NewLog("lin")
		r := read(t, b, mayNot, log, func(s *kafkaio.SourceConfig) { s.Connection = c })
		proxytest.Until(t, 20*time.Second, "the missing right is named", func() bool {
			return strings.Contains(r.source.Stats().LastError, "grant it Read")
		})
		b.put(t, mayNot, values(0, 1, 0)...)
		b.allow(t, kmsg.ACLResourceTypeTopic, mayNot, kmsg.ACLOperationRead)
		waitEnd(t, log, 1, r)

		// Of two routes one is not allowed: its tuples become dead letters, the other's are written.
		b.allow(t, kmsg.ACLResourceTypeTopic, may, kmsg.ACLOperationWrite)
		b.allow(t, kmsg.ACLResourceTypeTransactionalId, "*", kmsg.ACLOperationWrite)
		b.allow(t, kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationRead)
		b.allow(t, kmsg.ACLResourceTypeTopic, "_ftproxy.op-two", kmsg.ACLOperationRead)
		b.allow(t, kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationCreate)
		two := proxytest.NewLog("lin")
		two.Feed(logbuffer.Batch{Source: "x", Tuples: numbered(0, 1, 1).Tuples})
		out := two.Outlet("sink")
		s := newSink(t, b, may, func(s *kafkaio.SinkConfig) {
			s.Connection, s.Name, s.Routes = c, "op-two", map[string]string{"a": may, "b": mayNot}
		})
		for _, p := range drive(t, s, out, out, 1) {
			t.Error(p)
		}
		judge(t, b.consume(t, may, 1), 1, "lin")
		letters := out.Letters()
		if len(letters) != 1 || letters[0].Sink != "b" || !strings.Contains(letters[0].Reason, "not authorised") {
			t.Errorf("letters %+v", letters)
		}
		lines, err := s.Check(proxytest.Within(t, 10*time.Second))
		if text := strings.Join(lines, "\n"); err != nil || !strings.Contains(text, "may not write") ||
			!strings.Contains(text, "marker: offset 1") {
			t.Errorf("%v\n%s", err, text)
		}
	})

	t.Run("rotation", func(t *testing.T) {
		topic := b.topic(t, "rotated", 1)
		s := newSink(t, b, topic, func(s *kafkaio.SinkConfig) { s.Connection = as("PLAIN", "admin", "admin-pw") })
		other := newAuthority(t)
		check := func() error {
			_, err := s.Check(proxytest.Within(t, 10*time.Second))
			return err
		}
		if err := check(); err != nil {
			t.Fatal(err)
		}
		put(t, caFile, []byte("damaged"))
		put(t, caFile, other.pem)
		if err := check(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("a new file is not used: %v", err)
		}
		put(t, caFile, a.pem)
		if err := check(); err != nil {
			t.Errorf("the file is right again: %v", err)
		}
	})
}

// salted is SCRAM's salted password (PBKDF2).
func salted(t *testing.T, password string, salt []byte, iterations int, mechanism int8) []byte {
	t.Helper()
	var key []byte
	var err error
	if mechanism == 1 {
		key, err = pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	} else {
		key, err = pbkdf2.Key(sha512.New, password, salt, iterations, sha512.Size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}
