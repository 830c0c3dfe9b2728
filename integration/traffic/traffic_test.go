package traffic_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ftproxy/integration/checker"
	"ftproxy/integration/traffic"
)

func open(t *testing.T, name string) *traffic.Receiver {
	t.Helper()
	r, err := traffic.OpenReceiver(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func post(r *traffic.Receiver, body string, headers ...string) int {
	request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, request)
	return w.Code
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReceiverDropsRepeatedKeysOverRestarts(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tuples")
	r := open(t, name)
	var all, repeats int
	r.Stored = func(now, again int) { all = now; repeats += again }
	ndjson := []string{"Content-Type", "application/x-ndjson", "Ftproxy-Lineage", "L"}
	events := []string{"Content-Type", "application/cloudevents-batch+json", "Ftproxy-Lineage", "L"}
	for _, code := range []int{
		post(r, "one", "Idempotency-Key", "L/1"),
		post(r, "one", "Idempotency-Key", "L/1"),
		post(r, "1\n2\n3\n", append(ndjson, "Ftproxy-Offsets", "1-2,5")...),
		post(r, `[{"data":5},{"data":{"a":6}}]`, append(events, "Ftproxy-Offsets", "5-6")...),
	} {
		if code != http.StatusNoContent {
			t.Fatal(code)
		}
	}
	want := "L/1\tone\nL/2\t2\nL/5\t3\nL/6\t{\"a\":6}\n"
	if got := content(t, name); got != want || all != 4 || r.Count() != 4 || repeats != 3 {
		t.Fatalf("%q, %d tuples, %d repeated", got, all, repeats)
	}

	// A crash in the middle of a write leaves half a line.
	if err := os.WriteFile(name, []byte(want+"L/7\thal"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, name)
	if post(again, "six", "Idempotency-Key", "L/6") != http.StatusNoContent ||
		post(again, "seven", "Idempotency-Key", "L/7") != http.StatusNoContent {
		t.Fatal("refused")
	}
	if got := content(t, name); got != want+"L/7\tseven\n" {
		t.Fatalf("%q", got)
	}
}

func TestReceiverRefusesWhatItCannotName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tuples")
	r := open(t, name)
	ndjson := []string{"Content-Type", "application/x-ndjson"}
	for _, code := range []int{
		post(r, "no key"),
		post(r, "1\n", ndjson...),
		post(r, "1\n", append(ndjson, "Ftproxy-Lineage", "L")...),
		post(r, "1\n2\n", append(ndjson, "Ftproxy-Lineage", "L", "Ftproxy-Offsets", "1")...),
		post(r, "1\n", append(ndjson, "Ftproxy-Lineage", "L", "Ftproxy-Offsets", "1-99999999999")...),
		post(r, "{", "Content-Type", "application/cloudevents-batch+json"),
	} {
		if code != http.StatusBadRequest {
			t.Fatal(code)
		}
	}
	if got := content(t, name); got != "" {
		t.Fatalf("%q", got)
	}
}

// source is an HTTP source that refuses every fifth request, and knows no deduplication.
type source struct {
	mu       sync.Mutex
	requests int
	taken    bytes.Buffer
}

func (s *source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests++; s.requests%5 == 1 {
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	if _, err := io.Copy(&s.taken, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// judge counts how often each tuple was taken.
func (s *source) judge(total int64) checker.Verdict {
	check := checker.New()
	check.Sent("t", total)
	for line := range strings.SplitSeq(strings.TrimSpace(s.taken.String()), "\n") {
		check.Seen([]byte(line))
	}
	return check.Verdict()
}

func TestSenderSendsAllAndRepeats(t *testing.T) {
	first, second := &source{}, &source{}
	a, b := httptest.NewServer(first), httptest.NewServer(second)
	defer a.Close()
	defer b.Close()
	var sends int64
	notes := filepath.Join(t.TempDir(), "notes")
	sender := &traffic.Sender{
		Targets: []string{a.URL, b.URL}, Stream: "t", Total: 5000, Size: 80, Batch: 50, Rate: 1 << 20, Notes: notes,
		NoteEach: 1000, Sending: func(first, last int64) { sends += last - first + 1 },
	}
	if err := sender.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := second.taken.WriteTo(&first.taken); err != nil {
		t.Fatal(err)
	}
	v := first.judge(5000)
	if v.Lost != 0 || v.Torn != 0 || v.Duplicated < 500 || sends <= v.Delivered+v.Duplicated {
		t.Fatalf("%v, sends %d", v, sends)
	}
	if got := content(t, notes); got != "5000" {
		t.Fatalf("notes %q", got)
	}
}

func TestSenderGoesOnFromItsNotes(t *testing.T) {
	s := &source{}
	server := httptest.NewServer(s)
	defer server.Close()
	notes := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(notes, []byte("300"), 0o600); err != nil {
		t.Fatal(err)
	}
	lowest := int64(1 << 62)
	sender := &traffic.Sender{
		Targets: []string{server.URL}, Stream: "t", Total: 450, Size: 80, Batch: 50, Rate: 1 << 20, Notes: notes,
		NoteEach: 1000, Sending: func(first, _ int64) { lowest = min(lowest, first) },
	}
	if err := sender.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := s.judge(450); lowest != 301 || v.Lost != 300 {
		t.Fatalf("began at %d, %v", lowest, v)
	}
}

func TestSenderEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	sender := &traffic.Sender{
		Targets: []string{"http://127.0.0.1:1"}, Stream: "t", Total: 10, Size: 80, Batch: 10, Rate: 1000,
		Notes: filepath.Join(t.TempDir(), "notes"), NoteEach: 10,
		Failed: func(error) { cancel(fmt.Errorf("enough")) },
	}
	if err := sender.Run(ctx); err == nil {
		t.Fatal("no error")
	}
}
