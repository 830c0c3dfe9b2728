package logbuffer_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"ftproxy/logbuffer"
)

func TestTrimBetweenLocateAndLoad(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 60)
	fromFile := b.Locate("all", 3, 1)
	fromTail := b.Locate("all", b.End()-1, 1)
	across := b.Locate("all", 3, 1<<20)
	must(t, b.Ack("all", b.End()))
	if _, err := fromFile.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("from a file: %v", err)
	}
	if _, err := across.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("across: %v", err)
	}
	if got, err := fromTail.Load(); err != nil || len(got) != 1 || got[0].Data.Check() != nil {
		t.Errorf("from the tail: %v", err)
	}
	fill(b, 60)
	open := b.Locate("all", 60, 1)
	must(t, b.Close())
	if _, err := open.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestReadsAndAcksThatCannotBe(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 3)
	must(t, b.Ack("all", 2))
	for name, err := range map[string]error{
		"ack beyond the end":  b.Ack("all", 4),
		"ack by nobody":       b.Ack("nobody", 1),
		"read beyond the end": func() error { _, err := b.Locate("all", 4, 1).Load(); return err }(),
		"read by nobody":      func() error { _, err := b.Locate("nobody", 0, 1).Load(); return err }(),
	} {
		if !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Locate("all", 1, 1).Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("read below trimmed: %v", err)
	}
	must(t, b.Ack("all", 1))
	if c, _ := b.Reader("all"); c.Acked != 2 || c.PendingTuples != 1 {
		t.Errorf("an ack went back: %+v", c)
	}
	if _, ok := b.Reader("nobody"); ok {
		t.Error("there is a reader nobody")
	}
	for name, f := range map[string]func(){
		"append of nothing":    func() { b.Append(nil, false) },
		"append without tuple": func() { b.Append(logbuffer.AppendBatch(nil, &logbuffer.Batch{}), false) },
		"a floor that is gone": func() { _ = b.SetNeeded(1) },
		"unsealed manifest":    func() { b.AppendManifest(nil) },
	} {
		if !panics(f) {
			t.Errorf("%s does not panic", name)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestReaderWithoutPending(t *testing.T) {
	t.Parallel()
	b, folder, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}, {Name: "k", Sinks: []string{"k"}}}))
	b.Append(batchOf("k", 2, 10), true)
	_, confirmed := b.Append(batchOf("k", 1, 10), true)
	must(t, b.Ack("k", confirmed))
	hash, ok, err := b.HashAt(confirmed)
	if !ok || err != nil {
		t.Fatal(err)
	}
	for range 50 {
		_, last := b.Append(batchOf("h", 1, 100), true)
		must(t, b.Ack("all", last))
	}
	c := b.Cursors()
	if c.Trimmed != c.End {
		t.Fatalf("a reader without a tuple holds trimming: %+v", c)
	}
	first, _ := b.Append(batchOf("k", 1, 10), false)
	b.Append(batchOf("h", 1, 10), true)
	must(t, b.Seal())
	b, _, err = logbuffer.RestoreBuffer("in", folder, small(), b.AppendManifest(nil))
	must(t, err)
	if r, _ := b.Reader("k"); r.Acked != confirmed || r.Hash != hash || r.PendingTuples != 1 || !r.EverAcked {
		t.Errorf("%+v", r)
	}
	if h, found, e := b.HashAt(confirmed); !found || e != nil || h != hash {
		t.Errorf("the hash at the confirmed offset is gone: %v", e)
	}
	got, err := b.Locate("k", confirmed, 1000).Load()
	if err != nil || len(got) != 1 || got[0].First != first || !got[0].Boundary {
		t.Errorf("read after the confirmed offset: %v, %v", got, err)
	}
}

func TestUnreadSinkHoldsTrimming(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a"}}}))
	b.Append(batchOf("a", 1, 10), true)
	b.Append(batchOf("typo", 3, 10), true)
	b.Append(batchOf("a", 1, 10), true)
	must(t, b.Ack("a", 5))
	if c := b.Cursors(); c.Trimmed != 1 || c.Unread != 3 {
		t.Fatalf("%+v", c)
	}
	err := b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a", "typo"}}})
	if !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Fatalf("a reader that is beyond took over what waits: %v", err)
	}
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a"}}, {Name: "b", Sinks: []string{"typo"}}}))
	if c := b.Cursors(); c.Unread != 0 || c.Readers[1].PendingTuples != 3 {
		t.Fatalf("%+v", c)
	}
	if n, err := drain(b, "b"); n != 3 || err != nil || b.Cursors().Trimmed != 5 {
		t.Errorf("%d tuples, %v, %+v", n, err, b.Cursors())
	}
}

func TestSetReadersRefuses(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 3)
	before := b.Cursors()
	for name, rs := range map[string][]logbuffer.Reader{
		"removed with tuples pending": {},
		"changed with tuples pending": {{Name: "all", Sinks: []string{"x"}}},
		"a name twice":                {{Name: "all"}, {Name: "all"}},
		"no name":                     {{Name: "all"}, {}},
	} {
		if err := b.SetReaders(rs); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if after := b.Cursors(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: something changed: %+v", name, after)
		}
	}
	must(t, b.Ack("all", 3))
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "other"}}))
	fill(b, 1)
	if c := b.Cursors(); c.Readers[0].Acked != 3 || c.Readers[0].PendingTuples != 1 || c.Readers[0].EverAcked {
		t.Errorf("%+v", c)
	}
}

func TestNeededHoldsTrimming(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 100)
	must(t, b.SetNeeded(40))
	must(t, b.Ack("all", 90))
	c := b.Cursors()
	if c.Trimmed != 40 || c.Held != 50*c.Bytes/60 {
		t.Fatalf("%+v", c)
	}
	got, err := b.Locate("all", 40, 1).Load() // a replay for an operator's state
	if err != nil || got[0].First != 41 {
		t.Fatalf("%v, %v", got, err)
	}
	must(t, b.SetNeeded(math.MaxUint64))
	if c := b.Cursors(); c.Trimmed != 90 || c.Held != 0 {
		t.Fatalf("%+v", c)
	}
}

func TestConcurrentLoads(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}, {Name: "k", Sinks: []string{"k"}}}))
	var mu sync.Mutex
	var wg sync.WaitGroup
	const total = 3000
	read := func(name string) {
		at := uint64(0)
		for at < total {
			mu.Lock()
			s := b.Locate(name, at, 1500)
			mu.Unlock()
			got, err := s.Load()
			if err != nil {
				t.Errorf("%s after %d: %v", name, at, err)
				return
			}
			if len(got) == 0 {
				runtime.Gosched()
				continue
			}
			at = got[len(got)-1].Last
			mu.Lock()
			err = b.Ack(name, at)
			mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
		}
	}
	wg.Go(func() { read("all") })
	wg.Go(func() { read("k") })
	for i := range total {
		mu.Lock()
		b.Append(batchOf([]string{"k", "h", ""}[i%3], 1, 50), i%2 == 0)
		if i%100 == 99 {
			if err := b.Seal(); err != nil {
				t.Error(err)
			}
		}
		mu.Unlock()
		if i%500 == 499 {
			runtime.Gosched()
		}
	}
	wg.Wait()
	if c := b.Cursors(); c.Trimmed != total && !t.Failed() {
		t.Errorf("%+v", c)
	}
}
