package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// one wants a single mistake, of that variable and with those words.
func one(t *testing.T, variable, want string, environ []string) {
	t.Helper()
	wrong := mistakesOf(t, environ)
	if len(wrong) != 1 || wrong[0].variable != variable || !strings.Contains(wrong[0].problem, want) {
		t.Errorf("%q:\n%vwant one of %s: %s", environ, wrong, variable, want)
	}
}

// TestEndlessFiles: a device in the place of a file ends in a mistake, not in all the memory.
func TestEndlessFiles(t *testing.T) {
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no endless device here")
	}
	const secret = "FTPROXY_SINK_AUTHORIZATION_FILE"
	one(t, secret, "holds more than 64KiB", relay(secret+"=/dev/zero"))
	const authority = "FTPROXY_TLS_CA_FILE"
	one(t, authority, "holds more than 4MiB", relay(authority+"=/dev/zero"))
}

// TestPasswordsAreNotShown: whatever else is wrong with a URL, no message shows its password.
func TestPasswordsAreNotShown(t *testing.T) {
	for _, url := range []string{
		"http://user:hush@h/o#frag", "a=http://user:hush@h/o#frag", "htp://user:hush@h/o", "user:hush@h/o",
		"http://user:hush@h/%zz", "http://user:hush@h/o?nope=1", "http://user:hush@h:1:2/o", "kafka://user:hush@b:9092",
		"http://user:hu/hush@h/o", "http://user:hush#hush@h/o", "http://user:hush@h/o?batch=x&batch=y",
	} {
		if wrong := mistakesOf(t, relay("FTPROXY_SINK="+url)).Error(); strings.Contains(wrong, "hush") {
			t.Errorf("%s:\n%s", url, wrong)
		}
	}
	if got := redact("http://h:80/x?query=a@b"); got != "http://h:80/x?query=a@b" {
		t.Errorf("hides what is no password: %s", got)
	}
}

func TestAddressesClash(t *testing.T) {
	peers := []string{"FTPROXY_PEERS=a=127.0.0.1:7400,b=127.0.0.1:7402,c=127.0.0.1:7403", "FTPROXY_NODE=a"}
	for _, tc := range []struct {
		variable, want string
		environ        []string
	}{
		{"SOURCE", "the source http://:8080/a (FTPROXY_SOURCE) does", []string{"FTPROXY_SOURCE=http://:8080/a tcp://:8080"}},
		{"SOURCE", "the admin address (FTPROXY_ADMIN_ADDR) does", []string{"FTPROXY_SOURCE=tcp://:7401"}},
		{"SOURCE", "the admin address", []string{"FTPROXY_SOURCE=tcp://localhost:7401"}},
		{"SOURCE", "for its peers (FTPROXY_PEERS) does", append(peers, "FTPROXY_SOURCE=http://0.0.0.0:7400")},
		{"LISTEN", "the admin address", append(peers, "FTPROXY_LISTEN=127.0.0.1:7401")},
		{"SINK", "sends to this node itself", []string{"FTPROXY_SINK=http://127.0.0.1:8080/in"}},
		{"SINK", "sends to this node itself", []string{"FTPROXY_SINK=http://HOST:8080/in"}},
		{"SINK", "sends to this node itself", []string{"FTPROXY_SOURCE=tcp://[::1]:9", "FTPROXY_SINK=tcp://[0:0::1]:9"}},
		{"SINK", "sends to this node itself", []string{"FTPROXY_SOURCE=ftproxy://:9", "FTPROXY_SINK=ftproxy://x:9,[::1]:9"}},
	} {
		one(t, "FTPROXY_"+tc.variable, tc.want, relay(tc.environ...))
	}
	for _, fine := range [][]string{
		{"FTPROXY_SOURCE=http://127.0.0.1:0/a tcp://127.0.0.1:0"},
		{"FTPROXY_SOURCE=tcp://127.0.0.2:7401"},
		{"FTPROXY_SINK=http://elsewhere:8080/in"},
		{"FTPROXY_SOURCE=http://10.0.0.1:8080", "FTPROXY_SINK=http://127.0.0.1:8080"},
	} {
		mustLoad(t, relay(fine...))
	}
}

// TestBadCertificates are found before anything starts.
func TestBadCertificates(t *testing.T) {
	good, other := newCertificate(t, "good"), newCertificate(t, "other")
	garbage := filepath.Join(t.TempDir(), "garbage")
	write(t, garbage, []byte("no certificate"))
	for _, stem := range []string{"FTPROXY_TLS_", "FTPROXY_KAFKA_TLS_"} {
		pair := func(cert, key string) []string { return relay(stem+"CERT_FILE="+cert, stem+"KEY_FILE="+key) }
		one(t, stem+"CERT_FILE", "are no certificate with its key", pair(garbage, good.key))
		one(t, stem+"CERT_FILE", "are no certificate with its key", pair(good.cert, garbage))
		one(t, stem+"CERT_FILE", "the key is the certificate's", pair(good.cert, other.key))
		one(t, stem+"CA_FILE", "holds no certificate in PEM", relay(stem+"CA_FILE="+garbage))
		one(t, stem+"CERT_FILE", "go together", relay(stem+"KEY_FILE="+good.key))
		mustLoad(t, append(pair(good.cert, good.key), stem+"CA_FILE="+good.cert))
	}
}

func TestControlCharactersInAuthorization(t *testing.T) {
	const variable = "FTPROXY_SINK_AUTHORIZATION"
	for _, value := range []string{"Bearer a\nX-Admin: 1", "a\r", "a\x00", "a\x7f"} {
		one(t, variable, "control character", relay(variable+"="+value))
	}
	mustLoad(t, relay(variable+"=Bearer a\tb"))
}

// TestNoMistakeTwice: what is wrong once is said once, and what follows from it is not said.
func TestNoMistakeTwice(t *testing.T) {
	one(t, "FTPROXY_NODE", "not among FTPROXY_PEERS", relay("FTPROXY_PEERS=a=a:1,b=b:1,c=c:1"))
	one(t, "FTPROXY_PEERS", "stands twice", relay("FTPROXY_PEERS=a=a:1,b=a:1,host=c:1", "FTPROXY_INSECURE=true"))
	one(t, "FTPROXY_PEERS", "is not name=host:port", relay("FTPROXY_PEERS=a=a:1,b=b:1,host"))
	one(t, "FTPROXY_TUPLE_MAX_BYTES", "0 is below 1", relay("FTPROXY_TUPLE_MAX_BYTES=0"))
	one(t, "FTPROXY_ELECTION_TIMEOUT", "is not a duration", relay("FTPROXY_ELECTION_TIMEOUT=soon"))
	one(t, "FTPROXY_BUFFER_MAX_BYTES", "is not a size", relay("FTPROXY_BUFFER_MAX_BYTES=much"))
	wrong := mistakesOf(t, relay("FTPROXY_RECOVERY=xyzzyplugh"))
	if want := `"xyzzyplugh" is none of precise, rollback, gap`; len(wrong) != 1 || wrong[0].problem != want {
		t.Errorf("%v", wrong)
	}
}
