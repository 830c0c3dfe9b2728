package kafkaio

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Connection says how a Kafka cluster is reached. It is the same for sources and sinks.
type Connection struct {
	// Brokers are bootstrap addresses, host:port; at least one. Names are resolved at each dial.
	Brokers []string
	// ClientID is shown in the brokers' logs and quotas; "ftproxy" if empty.
	ClientID string
	// TLS encrypts connections; nil: plaintext.
	TLS *TLS
	// SASL authenticates connections; nil: not at all.
	SASL *SASL
	// DialTimeout bounds connecting and authenticating (default 5 s), RequestTimeout one answer (default 30 s).
	DialTimeout, RequestTimeout time.Duration

	// connect replaces the dialler in tests, which hold requests back on their way.
	connect func(ctx context.Context, network, addr string) (net.Conn, error)
}

// TLS names the files of a TLS configuration. They are read at each dial, so that a rotated certificate is used from
// the next connection on; while a file cannot be read, the last good one stays in use.
type TLS struct {
	// CAFile holds the PEM certificates that brokers are checked against; the system's if empty.
	CAFile string
	// CertFile and KeyFile are the client's own certificate and key in PEM; both or neither.
	CertFile, KeyFile string
	// ServerName overrides the name that the broker's certificate has to carry; the dialled host if empty.
	ServerName string
}

// SASL is a user with a password.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism string
	// Username and Password are sent (PLAIN) or proven (SCRAM).
	Username, Password string
}

func (c *Connection) setDefaults() {
	if c.ClientID == "" {
		c.ClientID = "ftproxy"
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = 30 * time.Second
	}
}

func (c *Connection) validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no Kafka broker given: name at least one as host:port"))
	}
	for _, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("the Kafka broker %q is not host:port", b))
		}
	}
	if c.TLS != nil {
		if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
			errs = append(errs, errors.New("a TLS client certificate needs both a certificate and a key file"))
		} else if _, err := c.TLS.load(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.SASL != nil {
		if _, err := c.SASL.mechanism(); err != nil {
			errs = append(errs, err)
		}
		if c.SASL.Username == "" {
			errs = append(errs, errors.New("SASL needs a user name"))
		}
	}
	return errors.Join(errs...)
}

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	switch strings.ToUpper(s.Mechanism) {
	case "PLAIN":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("the SASL mechanism %q is not PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
}

// load reads the files into a configuration.
func (t *TLS) load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("TLS CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS CA file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("TLS client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// tlsFiles hands out the TLS configuration as its files are now.
type tlsFiles struct {
	files *TLS

	mu   sync.Mutex
	last *tls.Config
}

// current returns a configuration of its own for a connection to host; stale is the reason if it is not the files'.
func (t *tlsFiles) current(host string) (c *tls.Config, stale, err error) {
	loaded, err := t.files.load()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.last = loaded
	} else if t.last == nil {
		return nil, nil, err
	}
	c = t.last.Clone()
	if c.ServerName == "" {
		c.ServerName = host
	}
	return c, err, nil
}

// validTopic reports whether Kafka takes the name for a topic.
func validTopic(name string) bool {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}

func errName(name string) error {
	return fmt.Errorf("the name %q cannot be part of a Kafka topic's name: use letters, digits, . _ -", name)
}

// sorted returns a sorted copy without repeats.
func sorted(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
