package httpio_test

import (
	"bytes"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
)

// Tiny tuples take far more memory than bytes: a request of too many is refused before they are made.
func TestLinkSourceBoundsTheTuplesInMemory(t *testing.T) {
	batch := logbuffer.Batch{Source: "s", Tuples: make([]logbuffer.Tuple, 100_000)}
	for i := range batch.Tuples {
		batch.Tuples[i].Position = int64(i + 1)
	}
	body := httpio.AppendLink(nil, 1, logbuffer.Encoded(logbuffer.AppendBatch(nil, &batch)))
	if len(body) > 1<<20 {
		t.Fatalf("%d bytes: the request would be refused by its size", len(body))
	}
	e := newLinkEnd(t, "down", 0)
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/", bytes.NewReader(body))
	for name, value := range map[string]string{
		"Content-Type": httpio.LinkType, "Ftproxy-Lineage": "l", "Ftproxy-Buffer": "in", "Ftproxy-Reader": "r",
		"Ftproxy-After": "0",
	} {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	e.serve(w, r)
	if w.Code != 413 || len(e.log.Tuples()) > 0 {
		t.Errorf("status %d, %d tuples: %s", w.Code, len(e.log.Tuples()), w.Body)
	}
}

func TestLinkSourceRefuses(t *testing.T) {
	good := httpio.AppendLink(nil, 1, logbuffer.Encoded(logbuffer.AppendBatch(nil, &numbered(1, 1)[0])))
	flipped := slices.Clone(good)
	flipped[len(flipped)-1] ^= 1
	headers := []string{
		"Content-Type", httpio.LinkType, "Ftproxy-Lineage", "l", "Ftproxy-Buffer", "in", "Ftproxy-Reader", "r",
		"Ftproxy-After", "0",
	}
	without := func(name, value string) []string {
		h := slices.Clone(headers)
		h[slices.Index(h, name)+1] = value
		return h
	}
	for _, c := range []struct {
		name, method, target, body string
		headers                    []string
		status                     int
	}{
		{"good", "POST", "/", string(good), headers, 200},
		{"nothing", "POST", "/", "", headers, 200},
		{"flipped", "POST", "/", string(flipped), headers, 400},
		{"second one cut", "POST", "/", string(good) + string(good[:len(good)-1]), headers, 400},
		{"left over", "POST", "/", string(good) + "x", headers, 400},
		{"offset 0", "POST", "/", string(httpio.AppendLink(nil, 0, good[8:])), headers, 400},
		{"gap", "POST", "/", string(httpio.AppendLink(nil, 9, good[8:])), without("Ftproxy-After", "8"), 409},
		{"no lineage", "POST", "/", string(good), without("Ftproxy-Lineage", ""), 400},
		{"slash in a name", "POST", "/", string(good), without("Ftproxy-Reader", "a/b"), 400},
		{"no after", "POST", "/", string(good), without("Ftproxy-After", "x"), 400},
		{"type", "POST", "/", string(good), without("Content-Type", "application/json"), 415},
		{"path", "POST", "/orders", string(good), headers, 404},
		{"method", "PUT", "/", string(good), headers, 405},
		{"whose position", "GET", "/?source=http/x", "", nil, 400},
		{"position", "GET", "/?source=ftproxy/l/in/r", "", nil, 200},
	} {
		e := newLinkEnd(t, "down", 0)
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.target, strings.NewReader(c.body))
		for i := 0; i+1 < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		w := httptest.NewRecorder()
		e.serve(w, r)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, w.Code, c.status, w.Body)
		}
		if n := len(e.log.Tuples()); (n > 0) != (c.name == "good") {
			t.Errorf("%s: %d tuples", c.name, n)
		}
	}
}

func TestLinkConfig(t *testing.T) {
	for name, c := range map[string]httpio.LinkSinkConfig{
		"no name":   {URLs: []string{"ftproxy://a:1"}, Logger: quiet()},
		"no url":    {Name: "a", Logger: quiet()},
		"scheme":    {Name: "a", URLs: []string{"http://a:1"}, Logger: quiet()},
		"no port":   {Name: "a", URLs: []string{"ftproxy://a"}, Logger: quiet()},
		"path":      {Name: "a", URLs: []string{"ftproxy://a:1/x"}, Logger: quiet()},
		"no logger": {Name: "a", URLs: []string{"ftproxy://a:1"}},
		"negative":  {Name: "a", URLs: []string{"ftproxy://a:1"}, Logger: quiet(), MaxBytes: -1},
	} {
		if _, err := httpio.NewLinkSink(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := httpio.NewLinkSource(httpio.LinkSourceConfig{Listen: ":0", Logger: quiet()}); err == nil {
		t.Error("a source without a name: accepted")
	}
}
