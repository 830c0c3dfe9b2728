package kafkaio_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"ftproxy/proxy/kafkaio"
)

func TestMistakesAreNamedAtOnce(t *testing.T) {
	_, err := kafkaio.NewSink(kafkaio.SinkConfig{
		Connection: kafkaio.Connection{
			Brokers: []string{"kafka"}, TLS: &kafkaio.TLS{CertFile: "x"}, SASL: &kafkaio.SASL{Mechanism: "GSSAPI"},
		},
		Name: "a/b", Routes: map[string]string{"": "t", "x": "t", "y": "a b"}, Compression: "brotli", Resume: "yes",
	})
	for _, words := range []string{
		`"kafka" is not host:port`, "both a certificate and a key", `"GSSAPI" is not PLAIN`, "a user name", `the name "a/b"`,
		`two sinks write to the topic "t"`, `"a b" is not a name`, "need a label each", `"brotli"`, `resume is "yes"`,
		"a logger",
	} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is missing in: %v", words, err)
		}
	}
	_, err = kafkaio.NewSource(kafkaio.SourceConfig{
		Name: "ok", Start: "yesterday", OnLoss: "panic", Group: "_ftproxy.ok", Logger: slog.New(slog.DiscardHandler),
	})
	for _, words := range []string{"no Kafka broker", "needs a topic", `"yesterday"`, `"panic"`, "ftproxy's own"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is missing in: %v", words, err)
		}
	}
	for _, start := range []string{"", "earliest", "latest", "timestamp:0", "timestamp:2026-01-02T03:04:05Z"} {
		_, err := kafkaio.NewSource(kafkaio.SourceConfig{
			Connection: kafkaio.Connection{Brokers: []string{"h:1"}}, Name: "ok", Topics: []string{"t"}, Start: start,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Errorf("start %q: %v", start, err)
		}
	}
}

// While a rotated file cannot be read, the last good one stays in use, and that is said.
func TestLastGoodTLSFilesStayInUse(t *testing.T) {
	a := newAuthority(t)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	put(t, caFile, []byte("damaged"))
	current := kafkaio.TLSFiles(&kafkaio.TLS{CAFile: caFile})
	if _, _, err := current("h"); err == nil {
		t.Error("there is no good file yet")
	}
	put(t, caFile, a.pem)
	good, stale, err := current("h")
	if err != nil || stale != nil || good.ServerName != "h" {
		t.Fatal(good, stale, err)
	}
	put(t, caFile, []byte("damaged"))
	kept, stale, err := current("h")
	if err != nil || stale == nil || !kept.RootCAs.Equal(good.RootCAs) {
		t.Error(kept, stale, err)
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add("v1 lin a=AAAAAAAAAAAAAAAAAAAAAA,b=x")
	f.Fuzz(func(t *testing.T, text string) {
		for name := range kafkaio.ParseNotes(text, "lin") {
			if !strings.HasPrefix(text, "v1 lin ") {
				t.Errorf("%q of another log is taken from %q", name, text)
			}
		}
	})
}
