package httpio_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

func rule(t *testing.T, text string) proxy.IDRule {
	t.Helper()
	r, err := proxy.ParseIDRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newSource(t *testing.T, change func(*httpio.SourceConfig)) *httpio.Source {
	t.Helper()
	c := httpio.SourceConfig{
		Name: "orders", Listen: "127.0.0.1:0", Path: "/orders", Dedup: rule(t, "header:Idempotency-Key"),
		Sinks: []string{"audit"}, Logger: slog.New(slog.DiscardHandler), MaxRequestBytes: 64 << 10, MaxTuples: 100,
	}
	if change != nil {
		change(&c)
	}
	s, err := httpio.NewSource(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type answered struct {
	status int
	header http.Header
	body   struct {
		Admitted, Duplicates int
		Position             int64
		Session, Error, Cure string
		Expected             *int64
	}
}

func post(t *testing.T, h http.Handler, target, body string, headers ...string) answered {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	got := answered{status: w.Code, header: w.Header()}
	if err := json.Unmarshal(w.Body.Bytes(), &got.body); err != nil {
		t.Fatalf("answer %q: %v", w.Body, err)
	}
	if got.status >= 300 && (got.body.Error == "" || got.body.Cure == "") {
		t.Errorf("refusal %d without cause or cure: %+v", got.status, got.body)
	}
	return got
}

func show(tuples []logbuffer.Tuple) string {
	var b strings.Builder
	for i := range tuples {
		t := &tuples[i]
		if t.Key != nil {
			fmt.Fprintf(&b, "%s:", t.Key)
		}
		if t.Value == nil {
			b.WriteString("null")
		}
		b.Write(t.Value)
		for _, h := range t.Headers {
			fmt.Fprintf(&b, " %s=%s", h.Key, h.Value)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestSourceForms(t *testing.T) {
	var crowded strings.Builder
	crowded.WriteString(`{"specversion":"1.0","id":"7","source":"/s","type":"t"`)
	for i := range 61 {
		fmt.Fprintf(&crowded, `,"a%d":1`, i)
	}
	crowded.WriteString("}")
	const jsonType, lines = "application/json", "application/x-ndjson"
	event := `{"specversion":"1.0","id":"7","source":"/s","type":"t","partitionkey":"k",` +
		`"time":"2024-01-02T03:04:05.678Z",` +
		`"n":5,"data":{"a":1}}`
	for _, c := range []struct {
		name, query, body string
		headers           []string
		status            int
		want              string
	}{
		{"json", "", `{"a": 1}`, []string{"Content-Type", jsonType}, 200, "{\"a\": 1} content-type=application/json\n"},
		{"no type", "", "raw\x00", nil, 200, "raw\x00\n"},
		{"empty", "", "", []string{"Content-Type", "text/plain"}, 200, " content-type=text/plain\n"},
		{"null", "", "", []string{"Ftproxy-Null", "value, header/x"}, 200, "null x=\n"},
		{"null with body", "", "x", []string{"Ftproxy-Null", "value"}, 400, ""},
		{"null of what", "", "", []string{"Ftproxy-Null", "nothing"}, 400, ""},
		{
			"key and headers", "", "v",
			[]string{"Ftproxy-Key", "a%20b", "Ftproxy-Header-X-Y", "1%25", "traceparent", "00-ab", "Accept", "*"},
			200, "a b:v x-y=1% traceparent=00-ab\n",
		},
		{"bad escape", "", "v", []string{"Ftproxy-Key", "100%"}, 400, ""},
		{"array is one tuple", "", `[1,2]`, []string{"Content-Type", jsonType}, 200, "[1,2] content-type=application/json\n"},
		{
			"split array", "?split=array", ` [1, {"a":[2,"],"]} ,"x\\\""] `,
			[]string{"Content-Type", jsonType},
			200,
			"1 content-type=application/json\n{\"a\":[2,\"],\"]} content-type=application/json\n" +
				"\"x\\\\\\\"\" content-type=application/json\n",
		},
		{"split object", "?split=array", `{"a":1}`, []string{"Content-Type", jsonType}, 400, ""},
		{"split text", "?split=array", `a`, []string{"Content-Type", "text/plain"}, 415, ""},
		{"split lines", "?split=lines", `[1]`, []string{"Content-Type", jsonType}, 400, ""},
		{"empty array", "?split=array", `[]`, []string{"Content-Type", jsonType}, 200, ""},
		{
			"lines", "", "{\"a\":1}\r\n\n2",
			[]string{"Content-Type", lines},
			200,
			"{\"a\":1} content-type=application/json\n2 content-type=application/json\n",
		},
		{"bad line", "", "1\n{\n3\n", []string{"Content-Type", lines}, 400, ""},
		{"not json", "", `{"a":`, []string{"Content-Type", jsonType}, 400, ""},
		{"not json array", "?split=array", `[1,`, []string{"Content-Type", jsonType}, 400, ""},
		{"too many lines", "", strings.Repeat("1\n", 101), []string{"Content-Type", lines}, 413, ""},
		{
			"too many elements", "?split=array", "[1" + strings.Repeat(",1", 100) + "]",
			[]string{"Content-Type", jsonType},
			413, "",
		},
		{"too large", "", strings.Repeat("x", 64<<10+1), nil, 413, ""},
		{"as large as may be", "", strings.Repeat("x", 64<<10), nil, 200, strings.Repeat("x", 64<<10) + "\n"},
		{"multipart", "", "x", []string{"Content-Type", "multipart/form-data; boundary=x"}, 415, ""},
		{"bad type", "", "x", []string{"Content-Type", "a/b/c"}, 415, ""},
		{"gzip", "", "x", []string{"Content-Encoding", "gzip"}, 415, ""},
		{
			"event", "", event,
			[]string{"Content-Type", "application/cloudevents+json; charset=utf-8"},
			200,
			"k:{\"a\":1} ce-id=7 ce-n=5 ce-source=/s ce-specversion=1.0 ce-time=2024-01-02T03:04:05.678Z " +
				"ce-type=t content-type=application/json\n",
		},
		{
			"events", "",
			"[" + `{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AAE=","datacontenttype":"a/b"}` + "]",
			[]string{"Content-Type", "application/cloudevents-batch+json"},
			200,
			"\x00\x01 ce-id=1 ce-source=/s ce-specversion=1.0 ce-type=t content-type=a/b\n",
		},
		{"event without id", "", `{"specversion":"1.0","source":"/s","type":"t"}`, []string{
			"Content-Type",
			"application/cloudevents+json",
		}, 400, ""},
		{
			"event with both", "", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data_base64":"AA=="}`,
			[]string{"Content-Type", "application/cloudevents+json"},
			400, "",
		},
		{"event avro", "", "x", []string{"Content-Type", "application/cloudevents+avro"}, 415, ""},
		{"second event bad", "", "[" + event + `,{"specversion":"1.0"}]`, []string{
			"Content-Type",
			"application/cloudevents-batch+json",
		}, 400, ""},
		{
			"binary event", "", "v",
			[]string{
				"Content-Type", "text/plain", "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s",
				"ce-type", "t%20u", "ce-partitionkey", "pk",
			},
			200,
			"pk:v ce-id=1 ce-source=/s ce-specversion=1.0 ce-type=t u content-type=text/plain\n",
		},
		{"binary event incomplete", "", "v", []string{"ce-specversion", "1.0", "ce-id", "1"}, 400, ""},
		{"unknown sink", "", "v", []string{"Ftproxy-Sink", "nobody"}, 400, ""},
		{"known sink", "", "v", []string{"Ftproxy-Sink", "audit"}, 200, "v\n"},
		{"position alone", "", "v", []string{"Ftproxy-Position", "1"}, 400, ""},
		{"session alone", "", "v", []string{"Ftproxy-Session", "s"}, 400, ""},
		{"position 0", "", "v", []string{"Ftproxy-Session", "s", "Ftproxy-Position", "0"}, 400, ""},
		{"unknown session", "", "v", []string{"Ftproxy-Session", "s", "Ftproxy-Position", "1"}, 410, ""},
		{
			"bad offsets", "", "1\n2\n",
			[]string{"Content-Type", lines, "Ftproxy-Lineage", "l", "Ftproxy-Offsets", "1-3"},
			400, "",
		},
		{"many headers times many tuples", "", strings.Repeat("1\n", 100), []string{
			"Content-Type", lines, "Ftproxy-Header-A", strings.Repeat("x", 1000),
		}, 413, ""},
		{"event of too many attributes", "", crowded.String(), []string{
			"Content-Type",
			"application/cloudevents+json",
		}, 400, ""},
		{"other path", "/../else", "v", nil, 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := proxytest.NewLog("lin")
			s := newSource(t, nil)
			got := post(t, s.Handler(log), "/orders"+c.query, c.body, c.headers...)
			if got.status != c.status {
				t.Errorf("status %d, want %d: %+v", got.status, c.status, got.body)
			}
			if have := show(log.Tuples()); have != c.want {
				t.Errorf("tuples\n%q, want\n%q", have, c.want)
			}
			if c.status != http.StatusOK && c.status != http.StatusGone && log.Calls() > 0 {
				t.Error("a refused request reached the log")
			}
			if left := httpio.InFlight(s); left != 0 {
				t.Errorf("%d bytes of the budget are still taken", left)
			}
		})
	}
}

func TestSourceDeduplicates(t *testing.T) {
	t.Run("key", func(t *testing.T) {
		log, s := proxytest.NewLog("lin"), newSource(t, nil)
		h := s.Handler(log)
		for i := range 3 {
			got := post(t, h, "/orders", "v", "Idempotency-Key", "a")
			if got.body.Admitted != min(1, 1-min(i, 1)) || got.body.Duplicates != min(i, 1) {
				t.Errorf("request %d: %+v", i, got.body)
			}
		}
		post(t, h, "/orders", "v", "Idempotency-Key", "b")
		if got := post(t, h, "/orders", "v"); got.body.Admitted != 1 || s.Stats().WithoutID != 1 {
			t.Errorf("without an id: %+v, %+v", got.body, s.Stats())
		}
	})
	t.Run("batch key and index", func(t *testing.T) {
		log := proxytest.NewLog("lin")
		h := newSource(t, nil).Handler(log)
		headers := []string{"Content-Type", "application/x-ndjson", "Idempotency-Key", "a"}
		post(t, h, "/orders", "1\n2\n", headers...)
		if got := post(t, h, "/orders", "1\n2\n3\n", headers...); got.body.Admitted != 1 || got.body.Duplicates != 2 {
			t.Errorf("%+v", got.body)
		}
	})
	t.Run("cloudevents id goes with its source", func(t *testing.T) {
		log := proxytest.NewLog("lin")
		h := newSource(t, func(c *httpio.SourceConfig) { c.Dedup = rule(t, "header:ce-id") }).Handler(log)
		event := `{"specversion":"1.0","id":"%s","source":"%s","type":"t"}`
		body := fmt.Sprintf("["+event+","+event+","+event+"]", "1", "/a", "1", "/b", "1", "/a")
		got := post(t, h, "/orders", body, "Content-Type", "application/cloudevents-batch+json")
		if got.body.Admitted != 2 || got.body.Duplicates != 1 {
			t.Errorf("%+v", got.body)
		}
	})
	t.Run("offsets of another ftproxy", func(t *testing.T) {
		log := proxytest.NewLog("lin")
		h := newSource(t, nil).Handler(log)
		post(t, h, "/orders", "5", "Idempotency-Key", "up/5")
		got := post(t, h, "/orders", "5\n6\n9\n", "Content-Type", "application/x-ndjson", "Ftproxy-Lineage", "up",
			"Ftproxy-Offsets", "5-6,9")
		if got.body.Admitted != 2 || got.body.Duplicates != 1 {
			t.Errorf("%+v", got.body)
		}
	})
}

func TestSourceSessions(t *testing.T) {
	log := proxytest.NewLog("lin")
	h := newSource(t, nil).Handler(log)
	opened := post(t, h, "/orders/sessions", "")
	session := opened.body.Session
	if opened.status != http.StatusCreated || session == "" || opened.header.Get("Ftproxy-Session") != session {
		t.Fatalf("%+v", opened)
	}
	send := func(position, body string) answered {
		return post(t, h, "/orders", body, "Content-Type", "application/x-ndjson",
			"Ftproxy-Session", session, "Ftproxy-Position", position)
	}
	if got := send("1", "1\n2\n"); got.body.Admitted != 2 || got.body.Position != 2 {
		t.Errorf("%+v", got)
	}
	if got := send("2", "2\n3\n"); got.body.Admitted != 1 || got.body.Duplicates != 1 || got.body.Position != 3 {
		t.Errorf("%+v", got)
	}
	got := send("5", "5\n")
	if got.status != http.StatusConflict || got.header.Get("Ftproxy-Expected") != "4" || *got.body.Expected != 4 {
		t.Errorf("gap: %+v", got)
	}
	log.Expire(session)
	if got := send("4", "4\n"); got.status != http.StatusGone {
		t.Errorf("expired: %+v", got)
	}
	if have := show(log.Tuples()); strings.Count(have, "\n") != 3 {
		t.Errorf("tuples %q", have)
	}
}

func TestSourceFaults(t *testing.T) {
	for _, c := range []struct {
		fault   proxytest.Fault
		status  int
		written int
	}{
		{proxytest.FaultUnavailable, http.StatusServiceUnavailable, 0},
		{proxytest.FaultTooLarge, http.StatusRequestEntityTooLarge, 0},
		{proxytest.FaultUnknownLost, http.StatusGatewayTimeout, 0},
		{proxytest.FaultUnknownWritten, http.StatusGatewayTimeout, 1},
	} {
		log := proxytest.NewLog("lin")
		h := newSource(t, nil).Handler(log)
		log.FailAppend(c.fault)
		got := post(t, h, "/orders", "v", "Idempotency-Key", "a")
		if got.status != c.status || len(log.Tuples()) != c.written {
			t.Errorf("fault %d: status %d, %d tuples written", c.fault, got.status, len(log.Tuples()))
		}
		if retry := got.header.Get("Retry-After"); (retry != "") != (c.status == http.StatusServiceUnavailable) {
			t.Errorf("fault %d: Retry-After %q", c.fault, retry)
		}
		if post(t, h, "/orders", "v", "Idempotency-Key", "a"); len(log.Tuples()) != 1 {
			t.Errorf("fault %d: %d tuples after the repetition", c.fault, len(log.Tuples()))
		}
	}
}

func TestSourceFull(t *testing.T) {
	log := proxytest.NewLog("lin")
	h := newSource(t, func(c *httpio.SourceConfig) { c.Deadline = 20 * time.Millisecond }).Handler(log)
	log.SetFull(true)
	if got := post(t, h, "/orders",
		"v"); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("%+v", got)
	}
	log.SetFull(false)
	if got := post(t, h, "/orders", "v"); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
}

func TestSourceConfig(t *testing.T) {
	for name, change := range map[string]func(*httpio.SourceConfig){
		"no name":    func(c *httpio.SourceConfig) { c.Name = "" },
		"no address": func(c *httpio.SourceConfig) { c.Listen = "8080" },
		"path":       func(c *httpio.SourceConfig) { c.Path = "orders" },
		"limits":     func(c *httpio.SourceConfig) { c.MaxInFlightBytes = 5 },
		"negative":   func(c *httpio.SourceConfig) { c.MaxTuples = -1 },
		"half tls":   func(c *httpio.SourceConfig) { c.TLS.CertFile = "x" },
	} {
		c := httpio.SourceConfig{Name: "a", Listen: ":0", Logger: slog.New(slog.DiscardHandler)}
		change(&c)
		if _, err := httpio.NewSource(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
