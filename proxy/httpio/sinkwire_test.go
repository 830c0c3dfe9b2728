package httpio_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

func TestOutcomesDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What an application's answers mean\n\nThe first row that fits counts. " +
		"Waits grow from 0.1 s to 30 s, are shortened at random by up to half,\n" +
		"and are never shorter than Retry-After asks. " +
		"A sink that is stopped concludes nothing from a POST that it cuts off.\n\n" +
		"| answer | the tuple is | because |\n|---|---|---|\n")
	for _, o := range httpio.StatusTable() {
		name, verdict, because := o.Row()
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, verdict, because)
	}
	have, err := os.ReadFile("OUTCOMES.md")
	if err != nil || string(have) != b.String() {
		t.Errorf("OUTCOMES.md (%v) should read:\n%s", err, b.String())
	}
}

// Over a real connection: redirects are not followed, endless answers end, headers are as documented.
func TestSinkOverTCP(t *testing.T) {
	var mu sync.Mutex
	paths := map[string]int{}
	var first http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths[r.URL.Path]++
		if first == nil {
			first = r.Header.Clone()
		}
		mu.Unlock()
		if r.Header.Get("Ftproxy-Key") == "moved" {
			http.Redirect(w, r, "/else", http.StatusFound)
			return
		}
		for range 100 {
			if _, err := io.WriteString(w, strings.Repeat("x", 10_000)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	log := proxytest.NewLog("lin")
	log.Feed(logbuffer.Batch{Source: "kafka/x/3", Partition: 3, Sink: "s", Tuples: []logbuffer.Tuple{
		{
			Key: []byte("a b"), Value: []byte("{}"), Time: 1700000000123, Position: 42,
			Headers: []logbuffer.Header{
				{Key: "content-type", Value: []byte("application/json")},
				{Key: "traceparent", Value: []byte("00-ab")},
				{Key: "Own", Value: []byte("ä")},
				{Key: "null"},
			},
		},
		{Key: []byte("moved"), Value: []byte("1")},
	}})
	out := log.Outlet("app")
	s := newSink(t, func(c *httpio.SinkConfig) {
		c.URL, c.MinWait, c.Authorization, c.EventType, c.Concurrency = server.URL+"/in", time.Millisecond, "Bearer x",
			"order", 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx, out); err != nil {
			t.Error(err)
		}
	})
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 2); err != nil {
		t.Fatal(err)
	}
	cancel()
	running.Wait()
	if paths["/else"] > 0 || len(out.Letters()) != 1 {
		t.Errorf("paths %v, letters %v", paths, out.Letters())
	}
	for name, want := range map[string]string{
		"Ftproxy-Key": "a%20b", "Idempotency-Key": "lin/1", "Ftproxy-Attempt": "1", "Content-Type": "application/json",
		"Traceparent": "00-ab", "Ftproxy-Header-%4fwn": "%C3%A4", "Ftproxy-Null": "header/null", "Authorization": "Bearer x",
		"Ftproxy-Time": "1700000000123", "Ftproxy-Origin": "kafka/x/3@42", "Ftproxy-Sink": "", "Ce-Id": "lin/1",
		"Ce-Source": "/ftproxy/app", "Ce-Type": "order", "Ce-Specversion": "1.0", "Ce-Time": "2023-11-14T22:13:20.123Z",
	} {
		if got := first.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if lines, err := s.Check(t.Context()); err != nil || len(lines) != 2 {
		t.Errorf("check: %v, %v", lines, err)
	}
	server.Close()
	if _, err := s.Check(t.Context()); err == nil {
		t.Error("check of an application that is not there")
	}
}

func TestSinkConfig(t *testing.T) {
	for name, change := range map[string]func(*httpio.SinkConfig){
		"no name":     func(c *httpio.SinkConfig) { c.Name = "" },
		"scheme":      func(c *httpio.SinkConfig) { c.URL = "ftp://x" },
		"no host":     func(c *httpio.SinkConfig) { c.URL = "http://" },
		"format":      func(c *httpio.SinkConfig) { c.Format = "xml" },
		"batch":       func(c *httpio.SinkConfig) { c.Batch = 1001 },
		"negative":    func(c *httpio.SinkConfig) { c.Window = -1 },
		"missing pem": func(c *httpio.SinkConfig) { c.TLS.CAFile = "/nowhere" },
	} {
		c := httpio.SinkConfig{Name: "a", URL: "http://x/", Logger: slog.New(slog.DiscardHandler)}
		change(&c)
		if _, err := httpio.NewSink(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	var _ proxy.Sink = newSink(t, nil)
	if a, b := newSink(t, nil).Guarantee(), newSink(t,
		func(c *httpio.SinkConfig) { c.Idempotent = true }).Guarantee(); !strings.HasPrefix(a,
		"rollback") || !strings.HasPrefix(b, "precise") {
		t.Errorf("%s / %s", a, b)
	}
}
