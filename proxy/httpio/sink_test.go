package httpio_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
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

// A full DEAD stops the sink, and the status says why for as long as it does.
func TestSinkTellsWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newSinkRig(t, func(s *httpio.SinkConfig) { s.FinalAttempts = 1 })
		rig.app.answer = func(delivered) (int, http.Header, error) { return http.StatusNotFound, nil, nil }
		rig.out.FailAck(proxytest.FaultUnavailable, proxytest.FaultUnavailable)
		rig.feed(1, "bad")
		rig.start(t)
		synctest.Wait()
		if err := rig.sink.Trouble(); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("trouble %v while dead letters are refused", err)
		}
		rig.wait(t, 1)
		synctest.Wait()
		if err := rig.sink.Trouble(); err != nil {
			t.Errorf("trouble %v afterwards", err)
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
