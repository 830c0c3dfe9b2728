package httpio_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

// awkward returns tuples of all sorts: null and empty, binary, JSON and nearly JSON, headers that HTTP does not like.
func awkward(r *rand.Rand, n int) []logbuffer.Tuple {
	raw := func() []byte {
		choice := [][]byte{
			nil,
			{},
			[]byte("plain"), []byte(`{"a":"<b>"}`), []byte("null"), []byte("%"), []byte("ä\r\nb"),
			{0, 255, 1},
			[]byte(" space "), []byte(`"`), []byte("a&b=c"), []byte("1\n2"),
		}
		return choice[r.IntN(len(choice))]
	}
	names := []string{"a", "A", "content-type", "traceparent", "x y", "ce-own", "ce-Own", "ä", "", "a&b", "Content-Type"}
	tuples := make([]logbuffer.Tuple, n)
	for i := range tuples {
		tuples[i] = logbuffer.Tuple{Key: raw(), Value: raw(), Position: int64(i + 1)}
		if r.IntN(2) == 0 {
			tuples[i].Time = r.Int64N(1 << 41)
		}
		for range r.IntN(4) {
			tuples[i].Headers = append(tuples[i].Headers, logbuffer.Header{Key: names[r.IntN(len(names))], Value: raw()})
		}
		if json.Valid(tuples[i].Value) && r.IntN(2) == 0 {
			tuples[i].Headers = append(tuples[i].Headers, logbuffer.Header{
				Key:   "content-type",
				Value: []byte("application/json"),
			})
		}
	}
	return tuples
}

// canonical writes a tuple so that equal ones are equal: HTTP keeps the order of headers of one name only. Headers that
// the way itself adds are left out.
func canonical(t *logbuffer.Tuple) string {
	var headers []string
	for _, h := range t.Headers {
		switch h.Key {
		case "ce-id", "ce-source", "ce-type", "ce-specversion", "ce-time", "ftproxy-origin", "content-type":
			continue
		}
		headers = append(headers, fmt.Sprintf("%q=%q/%v", h.Key, h.Value, h.Value == nil))
	}
	slices.Sort(headers)
	return fmt.Sprintf("key %q/%v value %q/%v time %d headers %v", t.Key, t.Key == nil, t.Value, t.Value == nil, t.Time,
		headers)
}

// What a tuple carries survives HTTP: from sink to source, one a POST and in batches of CloudEvents.
func TestRoundTrip(t *testing.T) {
	for _, batch := range []int{1, 7} {
		seed := rand.Uint64()
		up, down := proxytest.NewLog("up"), proxytest.NewLog("down")
		source := newSource(t, func(c *httpio.SourceConfig) { c.Path, c.MaxTuples = "/", 1000 })
		server := httptest.NewServer(source.Handler(down))
		sink := newSink(t, func(c *httpio.SinkConfig) { c.URL, c.Batch, c.Concurrency = server.URL, batch, 1 })
		want := awkward(rand.New(rand.NewPCG(seed, 1)), 300)
		for i := range want {
			want[i].Key = fmt.Appendf(want[i].Key, "%d", i%3)[:len(want[i].Key)] // the same bytes, made anew
			if want[i].Key != nil && len(want[i].Key) == 0 {
				want[i].Key = []byte{}
			}
		}
		up.Feed(logbuffer.Batch{Source: "test", Tuples: want})
		out := up.Outlet("http")
		stop := run(t, sink, out)
		if err := out.WaitAcked(proxytest.Within(t, 20*time.Second), 300); err != nil {
			t.Fatalf("seed %d: %v: %v", seed, err, sink.Trouble())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		server.Close()
		if letters := out.Letters(); len(letters) > 0 {
			t.Fatalf("seed %d: %s: %s", seed, letters[0].Reason, canonical(&letters[0].Tuple))
		}
		got := map[string]logbuffer.Tuple{}
		for _, tuple := range down.Tuples() {
			for _, h := range tuple.Headers {
				if h.Key == "ftproxy-origin" {
					got[string(h.Value)] = tuple
				}
			}
		}
		for i := range want {
			arrived := got[fmt.Sprintf("test@%d", i+1)]
			if have, want := canonical(&arrived), canonical(&want[i]); have != want {
				t.Errorf("seed %d, batch %d, tuple %d\n%s, want\n%s", seed, batch, i, have, want)
			}
		}
	}
}

// Batches of any size and a change of leader in between: an ftproxy downstream tells repeats by tuple.
func TestBatchesAreDeduplicatedByTuple(t *testing.T) {
	for _, format := range []string{"ndjson", "cloudevents"} {
		up, down := proxytest.NewLog("up"), proxytest.NewLog("down")
		source := newSource(t, func(c *httpio.SourceConfig) { c.Path, c.MaxTuples = "/", 1000 })
		handler := source.Handler(down)
		var mu sync.Mutex
		posts := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			posts++
			lost := posts%3 == 0
			mu.Unlock()
			if lost { // written, and the answer lost
				handler.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			handler.ServeHTTP(w, r)
		}))
		up.Feed(numbered(1, 400)...)
		out := up.Outlet("http")
		for size := 2; out.Acked() < 400; size++ {
			sink := newSink(t, func(c *httpio.SinkConfig) {
				c.URL, c.Batch, c.Format, c.MinWait = server.URL, size, format, time.Millisecond
			})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := sink.Run(ctx, out); err != nil {
				t.Error(err)
			}
			cancel()
		}
		server.Close()
		seen := map[string]int{}
		for _, tuple := range down.Tuples() {
			seen[string(tuple.Value)]++
		}
		if len(down.Tuples()) != 400 || len(seen) != 400 {
			t.Errorf("%s: %d tuples, %d values", format, len(down.Tuples()), len(seen))
		}
	}
}

// What is no line of JSON goes by itself, as it is.
func TestLinesOfOtherThings(t *testing.T) {
	rig := newSinkRig(t, func(c *httpio.SinkConfig) { c.Batch, c.Format = 10, "ndjson" })
	rig.log.Feed(logbuffer.Batch{Source: "test", Tuples: []logbuffer.Tuple{
		{Value: []byte("{\n1}")},
		{Value: []byte("[1,\n 2]")},
		{Value: []byte("3")},
		{},
		{Value: []byte("5")},
		{Value: []byte("6")},
	}})
	rig.start(t)
	rig.wait(t, 6)
	var bodies []string
	for _, d := range rig.app.seen() {
		bodies = append(bodies, d.body)
	}
	if want := []string{"{\n1}", "[1,2]\n3\n", "", "5\n6\n"}; !slices.Equal(bodies, want) {
		t.Errorf("bodies %q, want %q", bodies, want)
	}
}

func TestEscape(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		raw := make([]byte, r.IntN(8))
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		back, err := httpio.Unescape(httpio.Escape(raw))
		if err != nil || !bytes.Equal(back, raw) {
			t.Fatalf("%q came back as %q, %v", raw, back, err)
		}
		name := httpio.EscapeName(string(raw))
		back, err = httpio.Unescape(strings.ToLower(name))
		if err != nil || !bytes.Equal(back, raw) {
			t.Fatalf("name %q came back as %q, %v", raw, back, err)
		}
	}
	for _, bad := range []string{"%", "%1", "%zz", "a%"} {
		if _, err := httpio.Unescape(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func TestOffsetList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var offsets []uint64
		var want []string
		at := uint64(0)
		for range r.IntN(20) + 1 {
			at += uint64(max(r.IntN(4)-1, 1))
			offsets, want = append(offsets, at), append(want, fmt.Sprintf("l/%d", at))
		}
		h := http.Header{"Ftproxy-Lineage": {"l"}, "Ftproxy-Offsets": {httpio.OffsetList(offsets)}}
		got, err := httpio.ListedKeys(h, len(offsets))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v: %v, %v", h, got, err)
		}
	}
	for _, bad := range []string{
		"2-1", "1-18446744073709551615", "x", "1,,2", "-", "1-2-3",
		"18446744073709551615-18446744073709551615,1",
	} {
		if _, err := httpio.ListedKeys(http.Header{"Ftproxy-Lineage": {"l"}, "Ftproxy-Offsets": {bad}}, 3); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}
