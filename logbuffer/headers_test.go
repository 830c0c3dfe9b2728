package logbuffer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

// requestOf is the batch of a request of 500 lines of 100 bytes, whose tuples get the same few headers each.
func requestOf(headers int) logbuffer.Batch {
	shared := []logbuffer.Header{
		{Key: "content-type", Value: []byte("application/json")},
		{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
	}[:headers:headers]
	b := logbuffer.Batch{Source: "http/in"}
	value := bytes.Repeat([]byte("v"), 99)
	for range 500 {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: value, Headers: shared})
	}
	return b
}

// sharingBatch has tuples that begin with the same two headers, in slices of their own.
func sharingBatch() logbuffer.Batch {
	b := logbuffer.Batch{Source: "http/in"}
	for i := range 4 {
		headers := []logbuffer.Header{{Key: "content-type", Value: []byte("text/plain")}, {Key: "null"}}
		if i%2 == 1 {
			headers = append(headers, logbuffer.Header{Key: "ce-id", Value: fmt.Append(nil, i)})
		}
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: fmt.Append(nil, "v", i), Headers: headers})
	}
	return b
}

// TestSharedHeadersTakeNoRoom: what a small tuple costs beside its value.
func TestSharedHeadersTakeNoRoom(t *testing.T) {
	t.Parallel()
	bare := requestOf(0)
	want := len(logbuffer.AppendBatch(nil, &bare))
	if over := float64(want)/500 - 99; over > 5.5 {
		t.Errorf("%.1f bytes a tuple beside its value", over)
	}
	for n := 1; n <= 2; n++ {
		b := requestOf(n)
		for i := range b.Tuples {
			b.Tuples[i].Headers = slices.Clone(b.Tuples[i].Headers)
		}
		if got := len(logbuffer.AppendBatch(nil, &b)); got > want+100 {
			t.Errorf("%d headers that all tuples have take %d bytes", n, got-want)
		}
	}
}

// TestSharedHeadersRoundTrip decodes what was put in, wherever the common part ends.
func TestSharedHeadersRoundTrip(t *testing.T) {
	t.Parallel()
	name := func(n int) logbuffer.Header { return logbuffer.Header{Key: fmt.Sprint("h", n), Value: []byte("v")} }
	var many []logbuffer.Header
	for i := range 20 {
		many = append(many, name(i))
	}
	long := logbuffer.Header{Key: "long", Value: bytes.Repeat([]byte("x"), 300)}
	for what, headers := range map[string][][]logbuffer.Header{
		"one tuple":        {{name(1), name(2)}},
		"a prefix":         {{name(1), name(2)}, {name(1)}, {name(1), name(3)}},
		"none at last":     {{name(1)}, {name(1)}, nil},
		"none at first":    {nil, {name(1)}, {name(1)}},
		"null and empty":   {{name(0), {Key: "a"}}, {name(0), {Key: "a", Value: []byte{}}}},
		"other names":      {{{Key: "a"}}, {{Key: "b"}}},
		"one array":        {many[:2:2], many[:3:3], many[:2:2]},
		"one array, short": {many[:3:3], many[:1:1]},
		"many":             {many, many, many[:19]},
		"a long one":       {{name(1), long}, {name(1), long, name(2)}},
		"only a long one":  {{long}, {long}},
	} {
		want := logbuffer.Batch{Source: "s"}
		for _, h := range headers {
			want.Tuples = append(want.Tuples, logbuffer.Tuple{Headers: h})
		}
		e := logbuffer.Encoded(logbuffer.AppendBatch(nil, &want))
		must(t, e.Check())
		got, err := e.Decode()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", what, err, got, want)
		}
	}
}

// TestSharedHeadersAreOneSlice which nobody can append to in place.
func TestSharedHeadersAreOneSlice(t *testing.T) {
	t.Parallel()
	b := sharingBatch()
	got, err := logbuffer.Encoded(logbuffer.AppendBatch(nil, &b)).Decode()
	must(t, err)
	first, third := got.Tuples[0].Headers, got.Tuples[2].Headers
	if &first[0] != &third[0] || cap(first) != len(first) {
		t.Errorf("not one slice, or room for %d behind %d", cap(first), len(first))
	}
}

// TestSharedHeadersAreBounded: what is stored once for all tuples must not become large when it is decoded.
func TestSharedHeadersAreBounded(t *testing.T) {
	t.Parallel()
	b := logbuffer.Batch{Source: "s", Tuples: []logbuffer.Tuple{{}}}
	whole := logbuffer.AppendBatch(nil, &b)
	with := func(headers ...string) logbuffer.Encoded {
		e := slices.Clone(whole[:16])
		e = binary.AppendUvarint(e, uint64(len(headers)))
		for _, key := range headers {
			e = append(binary.AppendUvarint(e, uint64(len(key))), key...)
			e = append(e, 0)
		}
		return resum(append(e, whole[17:]...))
	}
	for what, test := range map[string]struct {
		e  logbuffer.Encoded
		ok bool
	}{
		"none":          {with(), true},
		"eight":         {with(slices.Repeat([]string{""}, 8)...), true},
		"nine":          {with(slices.Repeat([]string{""}, 9)...), false},
		"256 bytes":     {with(strings.Repeat("x", 256)), true},
		"257 bytes":     {with(strings.Repeat("x", 200), strings.Repeat("x", 57)), false},
		"a huge number": {resum(slices.Concat(whole[:16], []byte{0xff, 0x7f}, whole[17:])), false},
	} {
		err := test.e.Check()
		_, decodeErr := test.e.Decode()
		if (err == nil) != test.ok || (decodeErr == nil) != test.ok || !test.ok && !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("%s: Check gives %v, Decode %v", what, err, decodeErr)
		}
	}
}

// BenchmarkBatch encodes, checks and decodes the batch of one request.
func BenchmarkBatch(b *testing.B) {
	for headers := range 3 {
		batch := requestOf(headers)
		e := logbuffer.Encoded(logbuffer.AppendBatch(nil, &batch))
		b.Run(fmt.Sprintf("encode/headers=%d", headers), func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]byte, 0, len(e))
			for b.Loop() {
				dst = logbuffer.AppendBatch(dst[:0], &batch)
			}
			b.ReportMetric(float64(len(dst))/float64(len(batch.Tuples)), "bytes/tuple")
		})
		b.Run(fmt.Sprintf("check/headers=%d", headers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := e.Check(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("decode/headers=%d", headers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
