package httpio_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/proxy/httpio"
)

func TestSinkOutcomes(t *testing.T) {
	for _, c := range []struct {
		status   int
		attempts int // before an end, with MaxAttempts 5 and FinalAttempts 3
		letter   bool
	}{
		{200, 1, false},
		{299, 1, false},
		{408, 5, true},
		{425, 5, true},
		{429, 5, true},
		{500, 5, true},
		{503, 5, true},
		{0, 5, true},
		{301, 3, true},
		{304, 3, true},
		{400, 3, true},
		{404, 3, true},
		{409, 3, true},
		{413, 3, true},
		{499, 3, true},
		{799, 3, true},
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
	t.Helper()
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

// An application that never answers is asked again, with the same key, and keeps only its own key waiting.
func TestSinkTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.Timeout = 10 * time.Second })
		rig.sink.Through(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Ftproxy-Key") == "hangs" && r.Header.Get("Ftproxy-Attempt") == "1" {
				<-r.Context().Done()
				_, err := rig.app.RoundTrip(r)
				return nil, errors.Join(err, r.Context().Err())
			}
			return rig.app.RoundTrip(r)
		})
		rig.feed(10, "hangs", "a")
		start := time.Now()
		rig.start(t)
		time.Sleep(5 * time.Second)
		if n := len(rig.app.seen()); n != 5 {
			t.Errorf("%d deliveries while one key hangs, want 5", n)
		}
		rig.wait(t, 10)
		if took := time.Since(start); took < 50*time.Second || took > 52*time.Second {
			t.Errorf("five time-outs of 10 s took %s", took)
		}
		keys := map[string]int{}
		for _, d := range rig.app.seen() {
			keys[d.idem]++
		}
		if len(keys) != 10 || len(rig.out.Letters()) > 0 {
			t.Errorf("keys %v, letters %v", keys, rig.out.Letters())
		}
		_ = rig.stop()
	})
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
