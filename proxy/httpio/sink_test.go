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

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

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
	t.Helper()
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
	t.Helper()
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
	t.Helper()
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
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.MaxAttempts, s.FinalAttempts = 1, 1 }, mutants...)
		rig.sink.Through(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil,
				r.Context().Err()
		})
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
		rig.app.answer = func(delivered) (int, http.Header, error) {
			time.Sleep(500 * time.Millisecond)
			return 200, nil,
				nil
		}
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
