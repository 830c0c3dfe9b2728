package main

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func wired(t *testing.T, environ []string) ([]wiredSource, []wiredSink, error) {
	t.Helper()
	return wire(mustLoad(t, environ), slog.New(slog.DiscardHandler), func(string) int64 { return 0 })
}

// TestEverySchemeIsWired: each scheme's own example makes a source or sink, which names its guarantee.
func TestEverySchemeIsWired(t *testing.T) {
	cert := newCertificate(t, "one")
	files := []string{
		"FTPROXY_TLS_CERT_FILE=" + cert.cert, "FTPROXY_TLS_KEY_FILE=" + cert.key, "FTPROXY_TLS_CA_FILE=" + cert.cert,
	}
	for _, s := range sourceSchemes() {
		sources, _, err := wired(t, relay(append(files, "FTPROXY_SOURCE="+s.form)...))
		if err != nil || len(sources) != 1 || sources[0].Guarantee() == "" {
			t.Errorf("%s: %v, %v", s.form, sources, err)
			continue
		}
		if listens := sources[0].listens() != nil; listens != s.listens {
			t.Errorf("%s: listens: %v", s.form, listens)
		}
	}
	for _, s := range sinkSchemes() {
		_, sinks, err := wired(t, relay(append(files, "FTPROXY_SINK="+s.form)...))
		if err != nil || len(sinks) != 1 || sinks[0].Guarantee() == "" || troubleOf(sinks[0].sink)() != nil {
			t.Errorf("%s: %v, %v", s.form, sinks, err)
		}
	}
}

// TestReplicationBeside: source and sink on one cluster create ftproxy's own topic alike, whoever comes first.
func TestReplicationBeside(t *testing.T) {
	for sink, want := range map[string]int{
		"kafka://b1:1,b2:1/t?replication=1": 1, "kafka://c:1/t?replication=1": 0, "http://x": 0, "kafka://b2:1/t": 3,
	} {
		c := mustLoad(t, relay("FTPROXY_SOURCE=kafka://b2:1/in", "FTPROXY_SINK="+sink))
		if got := c.replicationBeside(&c.sources[0]); got != want {
			t.Errorf("beside %s: %d, want %d", sink, got, want)
		}
	}
}

// TestKafkaClusters: the sinks on one cluster are one reader, with the cluster's name and all their labels.
func TestKafkaClusters(t *testing.T) {
	_, sinks, err := wired(t, relay("FTPROXY_SINK=a=kafka://b1:1,b2:1/t h=http://x b=kafka://b2:1,b1:1/u "+
		"w=kafka://w:1/t?cluster=west"))
	if err != nil || len(sinks) != 3 {
		t.Fatalf("%v, %v", sinks, err)
	}
	for i, want := range []struct {
		name  string
		sinks []string
	}{{"kafka", []string{"a", "b"}}, {"h", []string{"h"}}, {"west", []string{"w"}}} {
		if r := sinks[i].reader; r.Name != want.name || !slices.Equal(r.Sinks, want.sinks) {
			t.Errorf("reader %+v, want %+v", r, want)
		}
	}
	for text, want := range map[string]string{
		"a=kafka://b:1/t b=kafka://c:1/u":                  "the brokers differ",
		"a=kafka://b:1/t b=kafkas://b:1/u":                 "the brokers differ",
		"a=kafka://b:1/t b=kafka://b:1/u?compression=gzip": "their options must be the same",
		"a=kafka://b:1/t b=kafka://c:1,b:1/u?cluster=x":    "under two cluster names",
		"a=kafka://b:1/t kafka=http://x":                   "called like the other's Kafka cluster",
		"a=kafka://b:1/t b=kafka://b:1/t":                  "",
	} {
		_, _, err := wired(t, relay("FTPROXY_SINK="+text))
		if wrong, ok := errors.AsType[mistakes](err); !ok || !strings.Contains(wrong.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestReceiverKeepsItsQuery(t *testing.T) {
	c := mustLoad(t, relay("FTPROXY_SINK=http://h/in?query=a%3D1%26b%3D2&timeout=3s"))
	o, ok := c.sinks[0].options.(*httpSink)
	if !ok || c.sinks[0].receiver(o.Query) != "http://h/in?a=1&b=2" {
		t.Errorf("%+v", c.sinks[0])
	}
}
