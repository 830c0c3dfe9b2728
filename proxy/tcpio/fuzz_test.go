package tcpio_test

import (
	"bytes"
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy/tcpio"
)

// FuzzSplit: what is cut off is inside the input and within the limit, and what is joined is cut off again.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("line\r\nrest"), false)
	f.Add([]byte("\x00\x00\x00\x02abc"), true)
	f.Add([]byte("\xff\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, p []byte, frames bool) {
		framing := tcpio.Lines
		if frames {
			framing = tcpio.Frames
		}
		payload, size, err := framing.Split(p, 0, 64)
		if size < 0 || size > len(p) || len(payload) > 64 || err != nil && size != 0 {
			t.Fatalf("payload %q, size %d, %v", payload, size, err)
		}
		if size == 0 {
			return
		}
		joined, err := framing.Join(nil, payload)
		again, n, splitErr := framing.Split(joined, 0, 64)
		// A carriage return before a line feed is not part of a line, so one at the end of a payload is cut again.
		same := bytes.Equal(again, payload) || bytes.HasSuffix(payload, []byte("\r"))
		if err != nil || splitErr != nil || n != len(joined) || !same {
			t.Fatalf("%q came back as %q, %v, %v", payload, again, err, splitErr)
		}
	})
}

// FuzzDecodeJSON: what is read survives being written and read again.
func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"key":"k","value64":"/w==","headers":[{"name":"h","value":""}],"time":5}`))
	f.Add([]byte(`{"value":null}{}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		first, err := tcpio.DecodeJSON(p)
		if err != nil {
			return
		}
		text, err := tcpio.EncodeJSON("", &logbuffer.Batch{}, &first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := tcpio.DecodeJSON(text)
		same := err == nil && bytes.Equal(first.Value, second.Value) && (first.Value == nil) == (second.Value == nil) &&
			bytes.Equal(first.Key, second.Key) && (first.Key == nil) == (second.Key == nil) && first.Time == second.Time &&
			len(first.Headers) == len(second.Headers)
		if !same {
			t.Fatalf("%+v became %+v, %v", first, second, err)
		}
	})
}
