package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// relay is the least that is needed.
func relay(more ...string) []string {
	return append([]string{
		"PATH=/bin", "FTPROXY_SOURCE=http://:8080/in", "FTPROXY_SINK=http://127.0.0.1:3000/out",
	}, more...)
}

func mustLoad(t *testing.T, environ []string) *config {
	t.Helper()
	c, err := load(environ, "host")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mistakesOf(t *testing.T, environ []string) mistakes {
	t.Helper()
	c, err := load(environ, "host")
	wrong, ok := errors.AsType[mistakes](err)
	if !ok || c != nil {
		t.Fatalf("loaded %+v, %v", c, err)
	}
	return wrong
}

func TestDefaults(t *testing.T) {
	c := mustLoad(t, relay("FTPROXY_DEDUP=", "FTPROXY_BUFFER_MAX_BYTES="))
	if c.Name != "ftproxy" || c.Node != "ftproxy" || c.DataDir != filepath.Join("ftproxy-data", "ftproxy") ||
		c.BufferMaxBytes != 4<<30 || c.DedupAge != time.Hour || c.ElectionTimeout != 500*time.Millisecond {
		t.Errorf("%+v", c)
	}
	if s := c.sources; len(s) != 1 || s[0].name != "http" || s[0].path != "/in" || s[0].address() != ":8080" {
		t.Errorf("%+v", s)
	}
	if got := c.holds(); got != rollback {
		t.Errorf("holds %v: an HTTP receiver is not known to drop repeats", got)
	}
}

// TestAllMistakesAtOnce is the promise: one run names everything.
func TestAllMistakesAtOnce(t *testing.T) {
	got := mistakesOf(t, []string{
		"FTPROXY_SORCE=x", "FTPROXY_NAME=a/b", "FTPROXY_SOURCE=htp://:8080", "FTPROXY_SINK=tcp://host",
		"FTPROXY_DEDUP_AGE=soon", "FTPROXY_DEDUP_IDS=0", "FTPROXY_BUFFER_MAX_BYTES=much", "FTPROXY_INSECURE=perhaps",
		"FTPROXY_LOG_LEVEL=inform", "FTPROXY_OPERATOR=http://x", "FTPROXY_PEERS=a=h:1,b=h:2",
		"FTPROXY_DEDUP=headr:x", "FTPROXY_TLS_CERT_FILE=/nowhere", "FTPROXY_KAFKA_USER=u", "FTPROXY_DRAIN_TIMEOUT=-1s",
	}).Error()
	for _, want := range []string{
		"FTPROXY_SORCE\n    problem: there is no such variable; did you mean FTPROXY_SOURCE?",
		"FTPROXY_NAME\n    problem: \"a/b\" is not a name",
		"FTPROXY_SOURCE\n    problem: \"htp://:8080\" is not [name=]url with a known scheme; did you mean http?\n" +
			"    example: FTPROXY_SOURCE=http://:8080/orders",
		"FTPROXY_SINK\n    problem: \"tcp://host\": \"host\" is not host:port\n    example: FTPROXY_SINK=tcp://host:7000",
		"FTPROXY_DEDUP_AGE\n    problem: \"soon\" is not a duration, such as 500ms, 20s or 1h\n" +
			"    example: FTPROXY_DEDUP_AGE=1h",
		"FTPROXY_DEDUP_IDS\n    problem: 0 is below 1",
		"FTPROXY_BUFFER_MAX_BYTES\n    problem: \"much\" is not a size in bytes",
		"FTPROXY_INSECURE\n    problem: \"perhaps\" is neither true nor false",
		"FTPROXY_LOG_LEVEL\n    problem: \"inform\" is none of debug, info, warn, error; did you mean info?",
		"FTPROXY_OPERATOR\n    problem: refused: operators come with a later version",
		"FTPROXY_PEERS\n    problem: 2 nodes survive no more failures than 1",
		"FTPROXY_NODE\n    problem: this node is called \"host\", which is not among FTPROXY_PEERS",
		"FTPROXY_DEDUP\n    problem: id rule \"headr:x\"",
		"FTPROXY_TLS_CERT_FILE\n    problem: FTPROXY_TLS_CERT_FILE and FTPROXY_TLS_KEY_FILE go together",
		"FTPROXY_TLS_CERT_FILE\n    problem: open /nowhere",
		"FTPROXY_KAFKA_SASL\n    problem: a user or password for Kafka is set",
		"FTPROXY_DRAIN_TIMEOUT\n    problem: \"-1s\" is not above 0",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not listed:\n%s\n", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestNothingSet(t *testing.T) {
	got := mistakesOf(t, nil)
	if len(got) != 2 || got[0].variable != "FTPROXY_SOURCE" || got[1].variable != "FTPROXY_SINK" || got[0].example == "" {
		t.Errorf("%v", got)
	}
}

// TestEndpoints: what is wrong with one entry of a list is said of that entry.
func TestEndpoints(t *testing.T) {
	for _, tc := range []struct{ variable, text, want string }{
		{"PEERS", "host=a:1,b=a:1,c=c:1", `the address "a:1" stands twice`},
		{"PEERS", "host=a:1,b=b:1,b=c:1", `the name "b" stands twice`},
		{"PEERS", "host=a:1,b=b:1,c", `"c" is not name=host:port`},
		{"PEERS", "host=a:1,b=b:1,c=c:1", "would talk without TLS on a:1"},
		{"PEERS", "1=a:1,2=a:2,3=a:3,4=a:4,5=a:5,6=a:6,7=a:7,8=a:8,9=a:9,host=a:10,11=a:11", "11 nodes are more than 9"},
		{"ELECTION_TIMEOUT", "10ms", "is not within 100ms and 30s"},
		{"TUPLE_MAX_BYTES", "17MiB", "is not within 1 byte and 16MiB"},
		{"SEGMENT_BYTES", "0", "0 is below 1"},
		{"BUFFER_MAX_BYTES", "1MiB", "does not hold two tuples"},
		{"SOURCE", "http://:8080?tuplse=5", `has no option "tuplse"; did you mean tuples?`},
		{"SOURCE", "tcp://:1?zzz=5", `has no option "zzz"; known are clients, format, framing, idle, replies`},
		{"SOURCE", "tcp://:1?framing=line", `option "framing": "line" is none of lines, frames; did you mean lines?`},
		{"SOURCE", "tcp://:1?idle=x", `option "idle": "x" is not a duration`},
		{"SOURCE", "tcp://:1?idle=1s&idle=2s", `the option "idle" is given twice`},
		{"SOURCE", "tcp://:1 tcp://:2", `two entries are called "tcp"`},
		{"SOURCE", "a=tcp://:1,a=tcp://:2", `two entries are called "a"`},
		{"SOURCE", "kafka://b:9092", "the topic is missing"},
		{"SOURCE", "kafka://b:9092,c/t", `"c" is not host:port`},
		{"SOURCE", "tcp://a:1,b:2", "a tcp URL has one host"},
		{"SOURCE", "https://:8443/in", "needs a certificate"},
		{"SOURCE", "http://:1/?clients=certified", "wants certified clients"},
		{"SINK", "kafka://user:secret@b:9092/t", "does not belong into a URL"},
		{"SINK", "http://h/x#y", "what follows # has no meaning"},
		{"SINK", "tcp://:7000", `":7000" is not host:port`},
		{"SINK", "tcp://h:1?replies=session", `"session" is none of none, ack`},
		{"SINK", "ftproxy://h:1?over=drop", "add allow_loss=true, or set over=wait"},
		{"SINK", "ftproxy://h:1?over=dead-letter", "add allow_loss=true, or set over=wait"},
		{"SINK", "kafka://b:9092/t?over=drop", "a Kafka sink has no policy but to wait"},
		{"SINK", "kafka://b:9092/t?mode=plain&over_bytes=1", "a Kafka sink has no policy but to wait"},
		{"DROP_READERS", "old,http", `"http" is a sink of FTPROXY_SINK`},
		{"SINK", "nonsense", "is not [name=]url with a known scheme"},
	} {
		wrong := mistakesOf(t, relay("FTPROXY_"+tc.variable+"="+tc.text)).Error()
		if !strings.Contains(wrong, tc.want) {
			t.Errorf("%s=%s:\n%swant: %s", tc.variable, tc.text, wrong, tc.want)
		}
		if strings.Contains(wrong, "secret@") {
			t.Errorf("%s=%s: the message shows the password:\n%s", tc.variable, tc.text, wrong)
		}
	}
}

func TestPoliciesThatAreFine(t *testing.T) {
	for _, sink := range []string{
		"ftproxy://h:1?over=drop&allow_loss=true", "ftproxy://h:1?over=wait", "ftproxy://h:1", "http://h?over=drop",
	} {
		mustLoad(t, relay("FTPROXY_SINK="+sink))
	}
}

func TestLists(t *testing.T) {
	c := mustLoad(t, relay("FTPROXY_SINK=a=kafka://b1:9092,b2:9092/t1,b=http://h/x\n  c=tcp://h:1?window=5, "))
	var got []string
	for _, e := range c.sinks {
		got = append(got, e.name+" "+e.scheme.name+" "+strings.Join(e.hosts, "+")+" "+e.path)
	}
	want := []string{"a kafka b1:9092+b2:9092 /t1", "b http h:80 /x", "c tcp h:1 "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if o, ok := c.sinks[2].options.(*tcpSink); !ok || o.Window != 5 || o.Replies != "none" {
		t.Errorf("%+v", c.sinks[2].options)
	}
}

func TestSecretsFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kafka := []string{"FTPROXY_KAFKA_SASL=PLAIN", "FTPROXY_KAFKA_USER=u", "FTPROXY_KAFKA_PASSWORD_FILE=" + file}
	if c := mustLoad(t, relay(kafka...)); c.KafkaPassword != "s3cret" {
		t.Errorf("password %q", c.KafkaPassword)
	}
	for _, tc := range []struct{ variable, want string }{
		{"FTPROXY_KAFKA_PASSWORD=x", "FTPROXY_KAFKA_PASSWORD is set too"},
		{"FTPROXY_SINK_AUTHORIZATION_FILE=/nowhere", "open /nowhere"},
		{"FTPROXY_KAFKA_USER_FILE=" + file, "there is no such variable"}, // only secrets
	} {
		if wrong := mistakesOf(t, relay(append(kafka, tc.variable)...)).Error(); !strings.Contains(wrong, tc.want) {
			t.Errorf("%s: %s", tc.variable, wrong)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"FTPROXY_SOURCE", "FTPROXY_SINK", "FTPROXY_PEERS"}
	for written, want := range map[string]string{
		"FTPROXY_SUORCE": "FTPROXY_SOURCE", "FTPROXY_SINKS": "FTPROXY_SINK", "FTPROXY_PEER": "FTPROXY_PEERS",
		"FTPROXY_NOTHING_LIKE_IT_AT_ALL": "",
	} {
		if got, ok := nearest(written, names); got != want && ok {
			t.Errorf("%s: %s, want %s", written, got, want)
		}
	}
	if d := editDistance("ab", "ba"); d != 1 {
		t.Errorf("exchanged neighbours: distance %d", d)
	}
}

func TestRecoveryIsJudged(t *testing.T) {
	const idempotent = "FTPROXY_SINK_IDEMPOTENT=true"
	for _, tc := range []struct {
		name, source, sink string
		more               []string
		want               recovery
		refused            string // what a stronger type is refused with
	}{
		{"http to kafka", "http://:1", "kafka://b:1/t", nil, precise, ""},
		{"http to http", "http://:1", "http://h", nil, rollback, "declare FTPROXY_SINK_IDEMPOTENT=true"},
		{"declared", "http://:1", "http://h", []string{idempotent}, precise, ""},
		{"plain kafka", "kafka://b:1/t", "kafka://b:1/u?mode=plain", nil, rollback, "set mode=transactional"},
		{"lines in", "tcp://:1", "kafka://b:1/u", nil, gap, "set replies=ack or replies=session"},
		{"lines with replies", "tcp://:1?replies=ack", "kafka://b:1/u", nil, rollback, "replies=session, or FTPROXY_DEDUP"},
		{"with an id", "tcp://:1?replies=ack", "kafka://b:1/u", []string{"FTPROXY_DEDUP=json:/id"}, precise, ""},
		{"sessions", "tcp://:1?replies=session", "ftproxy://h:1", nil, precise, ""},
		{"lines out", "http://:1", "tcp://h:1", nil, gap, "set replies=ack"},
		{"drops over http", "http://:1", "http://h?over=drop", []string{idempotent}, gap, "set over=wait"},
		{"drops over tcp", "http://:1", "tcp://h:1?replies=ack&over=drop", []string{idempotent}, gap, "set over=wait"},
		{"one weak edge", "http://:1", "a=kafka://b:1/t b=tcp://h:1", nil, gap, "sink b (tcp://h:1) holds gap only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			environ := append([]string{"FTPROXY_SOURCE=" + tc.source, "FTPROXY_SINK=" + tc.sink}, tc.more...)
			c := mustLoad(t, environ)
			if c.holds() != tc.want {
				t.Errorf("holds %v, want %v", c.holds(), tc.want)
			}
			mustLoad(t, append(environ, "FTPROXY_RECOVERY="+tc.want.String()))
			if tc.want < precise {
				wrong := mistakesOf(t, append(environ, "FTPROXY_RECOVERY=precise"))
				if len(wrong) != 1 || !strings.Contains(wrong[0].problem, tc.refused) || wrong[0].example != tc.want.String() {
					t.Errorf("%v", wrong)
				}
			}
		})
	}
}

func TestByteSizes(t *testing.T) {
	for text, want := range map[string]byteSize{
		"0": 0, "17": 17, "64KiB": 64 << 10, "4 GiB": 4 << 30, "10MB": 10e6, "7B": 7, "1TiB": 1 << 40,
	} {
		var b byteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q: %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5GiB", "GiB", "9999999TiB", "4gib"} {
		var b byteSize
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read as %d", text, b)
		}
	}
}

// TestEverythingIsExplained: each variable and option has a text, and each text is of something.
func TestEverythingIsExplained(t *testing.T) {
	help := variableHelp()
	for _, f := range fieldsOf(&config{}, "env") {
		if help[f.key] == "" {
			t.Errorf("%s has no help", f.key)
		}
		delete(help, f.key)
	}
	options := optionHelp()
	for _, g := range optionGroups() {
		for _, f := range g.fields {
			if options[g.kind+"."+f.key] == "" {
				t.Errorf("%s.%s has no help", g.kind, f.key)
			}
			delete(options, g.kind+"."+f.key)
		}
	}
	for left := range help {
		t.Errorf("help for %s, which does not exist", left)
	}
	for left := range options {
		t.Errorf("help for %s, which does not exist", left)
	}
}

// TestReadmeTables: the README has what `ftproxy config --markdown` prints, between two comments.
func TestReadmeTables(t *testing.T) {
	const file, begin, end = "../../README.md", "<!-- variables -->\n", "<!-- /variables -->\n"
	var want strings.Builder
	if err := writeMarkdown(&want); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(readme), begin)
	got, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatalf("README.md lacks the comments %s and %s", begin, end)
	}
	if rewriting() {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != want.String() {
		t.Error("README.md differs from `ftproxy config --markdown`: go test ./cmd/ftproxy -run Readme -rewrite")
	}
}
