package httpio_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
)

// FuzzSplit: no body crashes a splitter, nothing comes out of a malformed one, and arrays are cut as encoding/json cuts
// them.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{
		`[1,{"a":[2,"],"]},"x\\\""]`, "1\n2\n\n{}", `[]`, `[[],[[]]]`, "\ufeff[1]", `[1,]`, `[{"specversion":"1.0"}]`,
		`[{"specversion":"1.0","id":"1","source":"s","type":"t","data":"x","ftproxyheaders":"a=b&c","ftproxykey":"%20"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, form := range []string{
			"application/x-ndjson", "application/json", "application/cloudevents+json",
			"application/cloudevents-batch+json", "text/plain",
		} {
			for _, query := range []string{"", "?split=array"} {
				tuples, err := httpio.Split(form, query, body, 50)
				if err != nil && len(tuples) > 1 || len(tuples) > 50 {
					t.Fatalf("%s%s: %d tuples, error %v", form, query, len(tuples), err)
				}
			}
		}
		var want []json.RawMessage
		wantErr := json.Unmarshal(body, &want)
		got, err := httpio.Elements(body, 1<<20)
		isNull := string(bytes.TrimSpace(body)) == "null"
		if (err == nil) != (wantErr == nil && !isNull) || err == nil && len(got) != len(want) {
			t.Fatalf("%d elements, error %v; encoding/json: %d, %v", len(got), err, len(want), wantErr)
		}
		for i := range got {
			if !bytes.Equal(got[i], bytes.TrimSpace(want[i])) {
				t.Fatalf("element %d: %q, encoding/json: %q", i, got[i], want[i])
			}
		}
	})
}

// FuzzLink: no body crashes the decoder, and what it accepts is dense, above what it follows on.
func FuzzLink(f *testing.F) {
	good := httpio.AppendLink(nil, 7, logbuffer.AppendBatch(nil, &logbuffer.Batch{
		Source: "s", Tuples: []logbuffer.Tuple{{Key: []byte("k"), Value: []byte("v")}, {}},
	}))
	f.Add(good, int64(6))
	f.Add(append(bytes.Clone(good), good...), int64(0))
	f.Add(good[:len(good)-1], int64(7))
	f.Fuzz(func(t *testing.T, body []byte, after int64) {
		if after < 0 {
			return
		}
		batches, err := httpio.DecodeLink(body, after, "ftproxy/l/in/r", "")
		if err != nil && batches != nil {
			t.Fatal("batches of a damaged body")
		}
		for i := range batches {
			b := &batches[i]
			if b.After != after || b.Rule != logbuffer.RuleRange || len(b.Tuples) == 0 {
				t.Fatalf("batch %+v", b)
			}
			for j := range b.Tuples {
				if p := b.Tuples[j].Position; p < 1 || j > 0 && p != b.Tuples[j-1].Position+1 {
					t.Fatalf("position %d", p)
				}
			}
			after = b.Tuples[len(b.Tuples)-1].Position
			if after <= b.After {
				t.Fatalf("batch up to %d follows on %d", after, b.After)
			}
		}
	})
}
