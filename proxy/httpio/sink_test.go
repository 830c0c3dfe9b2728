package httpio_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
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

func newSink(t testing.TB, change func(*httpio.SinkConfig)) *httpio.Sink {
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

func TestSinkDeliversInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil)
		rig.app.answer = func(delivered) (int, http.Header, error) { time.Sleep(time.Millisecond); return 204, nil, nil }
		rig.feed(500, "a", "b", "", "c", "", "d")
		rig.start(t)
		rig.wait(t, 500)
		seen := rig.app.seen()
		if len(seen) != 500 {
			t.Errorf("%d deliveries", len(seen))
		}
		if err := inOrder(seen); err != nil {
			t.Error(err)
		}
		if rig.app.overlaps > 0 {
			t.Errorf("%d overlaps within a key", rig.app.overlaps)
		}
		if rig.app.most < 4 {
			t.Errorf("at most %d POSTs at once", rig.app.most)
		}
		if acks := len(rig.out.Acks()); acks > 30 {
			t.Errorf("%d acknowledgements for 500 tuples", acks)
		}
		if err := rig.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSinkKeyIsStable(t *testing.T) {
	if err := keyIsStable(t); err != nil {
		t.Error(err)
	}
}

func TestMutantKeyPerAttempt(t *testing.T) {
	if keyIsStable(t, "key-per-attempt") == nil {
		t.Error("a key that changes with the attempt went unnoticed")
	}
}

// keyIsStable fails each tuple twice, changes the tenure in between, and looks at the keys.
func keyIsStable(t *testing.T, mutants ...string) (err error) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil, mutants...)
		rig.app.answer = func(d delivered) (int, http.Header, error) {
			if d.attempt < 3 {
				return 0, nil, errors.New("reset")
			}
			return 200, nil, nil
		}
		rig.feed(5, "a")
		rig.start(t)
		rig.wait(t, 2)
		_ = rig.stop()
		rig.start(t)
		rig.wait(t, 5)
		byBody := map[string]string{}
		for _, d := range rig.app.seen() {
			if k, ok := byBody[d.body]; ok && k != d.idem {
				err = fmt.Errorf("body %s has keys %s and %s", d.body, k, d.idem)
			}
			byBody[d.body] = d.idem
		}
		_ = rig.stop()
	})
	return err
}

func TestSinkAcknowledgesAfterTheAnswer(t *testing.T) {
	if err := acksAfterAnswer(t); err != nil {
		t.Error(err)
	}
}

func TestMutantAckBeforeAnswer(t *testing.T) {
	if acksAfterAnswer(t, "ack-before-answer") == nil {
		t.Error("an acknowledgement before the answer went unnoticed")
	}
}

func TestMutantAckOutOfOrder(t *testing.T) {
	if acksAfterAnswer(t, "ack-out-of-order") == nil {
		t.Error("an acknowledgement over an unanswered tuple went unnoticed")
	}
}

// acksAfterAnswer leaves key a unanswered while all others are delivered.
func acksAfterAnswer(t *testing.T, mutants ...string) (err error) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil, mutants...)
		answered := make(chan struct{})
		rig.app.answer = func(d delivered) (int, http.Header, error) {
			if d.key == "a" {
				<-answered
			}
			return 200, nil, nil
		}
		rig.feed(40, "b", "c", "d", "a")
		rig.start(t)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		if acked := rig.out.Acked(); acked != 3 {
			err = fmt.Errorf("acked %d while offset 4 is unanswered", acked)
		}
		if n := len(rig.app.seen()); n != 31 {
			err = errors.Join(err, fmt.Errorf("%d deliveries, want 30 and one of key a", n))
		}
		close(answered)
		if err == nil {
			rig.wait(t, 40)
		}
		_ = rig.stop()
	})
	return err
}

func TestSinkOnePerKey(t *testing.T) {
	if overlaps := overlapsOf(t); overlaps != 0 {
		t.Errorf("%d overlaps", overlaps)
	}
}

func TestMutantManyPerKey(t *testing.T) {
	if overlapsOf(t, "many-per-key") == 0 {
		t.Error("several POSTs of one key at once went unnoticed")
	}
}

func overlapsOf(t *testing.T, mutants ...string) (overlaps int) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil, mutants...)
		rig.app.answer = func(delivered) (int, http.Header, error) { time.Sleep(time.Millisecond); return 200, nil, nil }
		rig.feed(50, "a", "b")
		rig.start(t)
		rig.wait(t, 50)
		overlaps = rig.app.overlaps
		_ = rig.stop()
	})
	return overlaps
}

func TestSinkOutcomes(t *testing.T) {
	for _, c := range []struct {
		status   int
		attempts int // before an end, with MaxAttempts 5 and FinalAttempts 3
		letter   bool
	}{
		{200, 1, false}, {299, 1, false}, {408, 5, true}, {425, 5, true}, {429, 5, true}, {500, 5, true}, {503, 5, true},
		{0, 5, true}, {301, 3, true}, {304, 3, true}, {400, 3, true}, {404, 3, true}, {409, 3, true}, {413, 3, true},
		{499, 3, true}, {799, 3, true},
	} {
		t.Run(strconv.Itoa(c.status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.MaxAttempts = 5 })
				rig.app.answer = func(d delivered) (int, http.Header, error) {
					if d.key != "poison" {
						return 200, nil, nil
					}
					if c.status == 0 {
						return 0, nil, errors.New("connection reset")
					}
					return c.status, http.Header{"Location": {"/else"}}, nil
				}
				rig.feed(2, "poison", "good")
				rig.start(t)
				rig.wait(t, 2)
				letters := rig.out.Letters()
				if (len(letters) == 1) != c.letter {
					t.Fatalf("letters %+v", letters)
				}
				if n := len(rig.app.seen()); n != c.attempts+1 {
					t.Errorf("%d attempts", n-1)
				}
				if c.letter {
					l := letters[0]
					if l.From != 1 || l.Attempts != c.attempts || string(l.Tuple.Key) != "poison" || l.Source != "test" ||
						l.Partition != 3 || l.Reader != "app" || l.Reason == "" {
						t.Errorf("letter %+v", l)
					}
				}
				_ = rig.stop()
			})
		})
	}
}

// A poison tuple is tried a bounded number of times and keeps no other key waiting.
func TestSinkPoisonStopsItsKeyOnly(t *testing.T) {
	for _, batch := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.Batch, s.Concurrency = batch, 2 })
			rig.app.answer = func(d delivered) (int, http.Header, error) {
				if strings.Contains(d.body, `"n":0}`) {
					return 500, nil, nil
				}
				return 200, nil, nil
			}
			rig.feed(200, "a", "b", "c", "d")
			rig.start(t)
			time.Sleep(time.Minute)
			others, ofA := 0, 0
			for _, d := range rig.app.seen() {
				for n := range 200 {
					if !strings.Contains(d.body, fmt.Sprintf(`"n":%d}`, n)) {
						continue
					}
					if n%4 == 0 && n > 0 {
						ofA++
					} else if n > 0 {
						others++
					}
				}
			}
			if ofA > 0 && batch == 1 || others < 150 {
				t.Errorf("batch %d: %d others delivered, %d of the poisoned key", batch, others, ofA)
			}
			if rig.out.Acked() != 0 || rig.sink.Trouble() == nil {
				t.Errorf("acked %d, trouble %v", rig.out.Acked(), rig.sink.Trouble())
			}
			rig.app.mu.Lock()
			rig.app.answer = nil
			rig.app.mu.Unlock()
			rig.wait(t, 200)
			if rig.sink.Trouble() != nil {
				t.Errorf("trouble %v after all were delivered", rig.sink.Trouble())
			}
			_ = rig.stop()
		})
	}
}

func TestSinkRetryAfter(t *testing.T) {
	if wait := waitAfter429(t); wait < 90*time.Second || wait > 95*time.Second {
		t.Errorf("waited %s", wait)
	}
}

func TestMutantIgnoreRetryAfter(t *testing.T) {
	if waitAfter429(t, "ignore-retry-after") >= 90*time.Second {
		t.Error("ignoring Retry-After went unnoticed")
	}
}

func waitAfter429(t *testing.T, mutants ...string) (wait time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil, mutants...)
		rig.app.answer = func(d delivered) (int, http.Header, error) {
			if d.attempt == 1 {
				return 429, http.Header{"Retry-After": {"90"}}, nil
			}
			return 200, nil, nil
		}
		rig.feed(1, "a")
		rig.start(t)
		rig.wait(t, 1)
		seen := rig.app.seen()
		wait = seen[1].at.Sub(seen[0].at)
		_ = rig.stop()
	})
	return wait
}

func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "999999999": time.Hour,
		"Tue, 02 Jan 2024 03:05:05 GMT": time.Minute, "Tue, 02 Jan 2024 03:00:00 GMT": 0,
	} {
		if got := httpio.RetryAfter(text, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Waits grow, are capped, and are not the same for all.
func TestSinkBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.MaxWait = 10 * time.Second })
		rig.app.answer = func(delivered) (int, http.Header, error) { return 503, nil, nil }
		rig.feed(2, "a", "b")
		rig.start(t)
		time.Sleep(10 * time.Minute)
		_ = rig.stop()
		times := map[string][]time.Time{}
		for _, d := range rig.app.seen() {
			times[d.key] = append(times[d.key], d.at)
		}
		if n := len(times["a"]); n < 60 || n > 140 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		same := 0
		for i := 1; i < min(len(times["a"]), len(times["b"])); i++ {
			gap := times["a"][i].Sub(times["a"][i-1])
			if gap > 11*time.Second || gap < 50*time.Millisecond {
				t.Errorf("wait %d: %s", i, gap)
			}
			if gap == times["b"][i].Sub(times["b"][i-1]) {
				same++
			}
		}
		if same > 5 {
			t.Errorf("%d waits are the same for both", same)
		}
		if len(rig.out.Letters()) > 0 {
			t.Error("dead letters without a limit of attempts")
		}
	})
}

func TestSinkStopsWithoutLetters(t *testing.T) {
	if letters := lettersAtStop(t); letters != 0 {
		t.Errorf("%d dead letters", letters)
	}
}

func TestMutantLettersOnStop(t *testing.T) {
	if lettersAtStop(t, "letters-on-stop") == 0 {
		t.Error("dead letters by our own end went unnoticed")
	}
}

// lettersAtStop ends the sink while POSTs hang, with as few attempts as can be.
func lettersAtStop(t *testing.T, mutants ...string) (letters int) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.MaxAttempts, s.FinalAttempts = 1, 1 }, mutants...)
		rig.sink.Through(func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() })
		rig.feed(6, "a", "b", "")
		rig.start(t)
		synctest.Wait()
		if err := rig.stop(); err != nil {
			t.Error(err)
		}
		letters = len(rig.out.Letters())
	})
	return letters
}

// What is answered within the grace after the end is acknowledged; nothing new is sent.
func TestSinkFinishesWhatIsAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil)
		rig.app.answer = func(delivered) (int, http.Header, error) { time.Sleep(500 * time.Millisecond); return 200, nil, nil }
		rig.feed(10, "a", "b")
		rig.start(t)
		time.Sleep(100 * time.Millisecond)
		if err := rig.stop(); err != nil {
			t.Error(err)
		}
		if rig.out.Acked() != 2 || len(rig.app.seen()) != 2 {
			t.Errorf("acked %d, sent %d", rig.out.Acked(), len(rig.app.seen()))
		}
	})
}

func TestSinkWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.Window, s.Concurrency, s.Span = 50, 500, 100 })
		rig.app.answer = func(d delivered) (int, http.Header, error) {
			if d.key == "k0" {
				return 500, nil, nil
			}
			return 200, nil, nil
		}
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = "k" + strconv.Itoa(i)
		}
		rig.feed(1000, keys...)
		rig.start(t)
		time.Sleep(time.Second)
		firsts := 0
		for _, d := range rig.app.seen() {
			if d.attempt == 1 {
				firsts++
			}
		}
		if firsts < 90 || firsts > 120 {
			t.Errorf("%d tuples were sent while the first was not delivered; the span is 100", firsts)
		}
		rig.app.mu.Lock()
		rig.app.answer = nil
		rig.app.mu.Unlock()
		rig.wait(t, 1000)
		_ = rig.stop()
	})
}

func TestSinkAckFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.FinalAttempts = 1 })
		rig.app.answer = func(d delivered) (int, http.Header, error) {
			if d.key == "bad" {
				return 400, nil, nil
			}
			return 200, nil, nil
		}
		rig.out.FailAck(proxytest.FaultUnavailable, proxytest.FaultUnknownWritten, proxytest.FaultUnknownLost)
		rig.feed(20, "bad", "a", "b")
		rig.start(t)
		rig.wait(t, 20)
		if n := len(rig.out.Letters()); n != 7 {
			t.Errorf("%d letters, want 7", n)
		}
		if n := len(rig.app.seen()); n != 20 {
			t.Errorf("%d deliveries: a failing acknowledgement must not deliver again", n)
		}
		_ = rig.stop()
	})
}

func TestSinkReportsDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil)
		rig.feed(1, "a")
		batches, err := rig.out.Read(t.Context(), 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		batches[0].Data[len(batches[0].Data)-1] ^= 1
		if err := rig.sink.Run(t.Context(), rig.out); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("error %v", err)
		}
		if len(rig.app.seen()) > 0 {
			t.Error("damaged data was delivered")
		}
	})
}

func TestSinkTenureEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, nil)
		rig.start(t)
		synctest.Wait()
		rig.out.EndTenure()
		if err := rig.sink.Run(t.Context(), rig.out); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	})
}

func TestOutcomesDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What an application's answers mean\n\nThe first row that fits counts. " +
		"Waits grow from 0.1 s to 30 s, are shortened at random by up to half,\nand are never shorter than Retry-After asks. " +
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
				{Key: "content-type", Value: []byte("application/json")}, {Key: "traceparent", Value: []byte("00-ab")},
				{Key: "Own", Value: []byte("ä")}, {Key: "null"},
			},
		},
		{Key: []byte("moved"), Value: []byte("1")},
	}})
	out := log.Outlet("app")
	s := newSink(t, func(c *httpio.SinkConfig) {
		c.URL, c.MinWait, c.Authorization, c.EventType, c.Concurrency = server.URL+"/in", time.Millisecond, "Bearer x", "order", 1
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
		"Ftproxy-Time": "1700000000123", "Ftproxy-Origin": "kafka/x/3@42", "Ftproxy-Sink": "s", "Ce-Id": "lin/1",
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
	if a, b := newSink(t, nil).Guarantee(), newSink(t, func(c *httpio.SinkConfig) { c.Idempotent = true }).Guarantee(); !strings.HasPrefix(a, "rollback") || !strings.HasPrefix(b, "precise") {
		t.Errorf("%s / %s", a, b)
	}
}
