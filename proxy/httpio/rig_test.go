package httpio_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

// app is a downstream application in memory: it answers as it is told to and remembers what it was sent.
type app struct {
	mu       sync.Mutex
	answer   func(d delivered) (status int, header http.Header, err error)
	got      []delivered
	busy     map[string]int // POSTs at work, by Ftproxy-Key
	overlaps int
	most     int
}

type delivered struct {
	key, idem, body string
	attempt         int
	header          http.Header
	at              time.Time
}

func (a *app) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	attempt, err := strconv.Atoi(r.Header.Get("Ftproxy-Attempt"))
	if err != nil {
		return nil, err
	}
	d := delivered{
		key: r.Header.Get("Ftproxy-Key"), idem: r.Header.Get("Idempotency-Key"), body: string(body),
		attempt: attempt, header: r.Header, at: time.Now(),
	}
	a.mu.Lock()
	a.got = append(a.got, d)
	if a.busy[d.key]++; a.busy[d.key] > 1 {
		a.overlaps++
	}
	total := 0
	for _, n := range a.busy {
		total += n
	}
	a.most = max(a.most, total)
	answer := a.answer
	a.mu.Unlock()
	defer func() { a.mu.Lock(); defer a.mu.Unlock(); a.busy[d.key]-- }()
	status, header, err := http.StatusOK, http.Header{}, error(nil)
	if answer != nil {
		status, header, err = answer(d)
	}
	if err != nil {
		return nil, err
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("said so"))}, nil
}

func (a *app) seen() []delivered {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]delivered(nil), a.got...)
}

// sinkRig is a sink between a log in memory and an app in memory.
type sinkRig struct {
	log  *proxytest.Log
	out  *proxytest.Outlet
	app  *app
	sink *httpio.Sink
	stop func() error
}

func newSink(t *testing.T, change func(*httpio.SinkConfig)) *httpio.Sink {
	t.Helper()
	c := httpio.SinkConfig{Name: "app", URL: "http://app.test/in", Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&c)
	}
	s, err := httpio.NewSink(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newSinkRig(t *testing.T, change func(*httpio.SinkConfig), mutants ...string) *sinkRig {
	t.Helper()
	log := proxytest.NewLog("lin")
	rig := &sinkRig{log: log, out: log.Outlet("app"), app: &app{busy: map[string]int{}}, sink: newSink(t, change)}
	rig.sink.Mutate(mutants...)
	rig.sink.Through(rig.app.RoundTrip)
	return rig
}

func (r *sinkRig) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.sink.Run(ctx, r.out) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = r.stop() })
}

// feed stores n tuples, keys as given in turn ("" is no key).
func (r *sinkRig) feed(n int, keys ...string) {
	batch := logbuffer.Batch{Source: "test", Partition: 3}
	for i := range n {
		t := logbuffer.Tuple{Value: fmt.Appendf(nil, `{"n":%d}`, i), Position: int64(i + 1)}
		if k := keys[i%len(keys)]; k != "" {
			t.Key = []byte(k)
		}
		batch.Tuples = append(batch.Tuples, t)
		if len(batch.Tuples) == 7 || i == n-1 {
			r.log.Feed(batch)
			batch.Tuples = nil
		}
	}
}

func (r *sinkRig) wait(t *testing.T, n uint64) {
	t.Helper()
	if err := r.out.WaitAcked(proxytest.Within(t, 10*time.Minute), n); err != nil {
		t.Fatalf("acked %d of %d: %v", r.out.Acked(), n, err)
	}
}

// inOrder checks that the first deliveries of each key come in the order of their offsets.
func inOrder(seen []delivered) error {
	last := map[string]int{}
	for _, d := range seen {
		offset, err := strconv.Atoi(strings.TrimPrefix(d.idem, "lin/"))
		if err != nil {
			return err
		}
		if d.attempt == 1 && offset < last[d.key] {
			return fmt.Errorf("key %q: offset %d came after %d", d.key, offset, last[d.key])
		}
		last[d.key] = max(last[d.key], offset)
	}
	return nil
}
