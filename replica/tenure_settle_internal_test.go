package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

func reader(name string, sinks ...string) logbuffer.Reader {
	return logbuffer.Reader{Name: name, Sinks: sinks}
}

// TestReadersComeIntoForceAsFarAsTheyCan has the cases of a change while tuples are retained. Each plan is one that the
// state takes.
func TestReadersComeIntoForceAsFarAsTheyCan(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		have, want []logbuffer.Reader
		sinks      []string // of the tuples retained
		in         []logbuffer.Reader
		left, drop []string
		waits      string
	}{
		{
			name: "nothing changes", have: []logbuffer.Reader{reader("a", "a")}, want: []logbuffer.Reader{reader("a", "a")},
			sinks: []string{""}, in: []logbuffer.Reader{reader("a", "a")},
		},
		{
			name: "a new one beside", have: []logbuffer.Reader{reader("a", "a")},
			want:  []logbuffer.Reader{reader("n", "n"), reader("a", "a")},
			sinks: []string{""}, in: []logbuffer.Reader{reader("a", "a"), reader("n", "n")},
		},
		{
			name: "other sinks, all delivered", have: []logbuffer.Reader{reader("k", "a")},
			want: []logbuffer.Reader{reader("k", "a", "b")}, in: []logbuffer.Reader{reader("k", "a", "b")},
		},
		{
			name: "other sinks wait", have: []logbuffer.Reader{reader("k", "a")},
			want: []logbuffer.Reader{reader("k", "a", "b"), reader("n", "n")}, sinks: []string{"a"},
			in: []logbuffer.Reader{reader("k", "a"), reader("n", "n")}, waits: `"k" is to read the sinks ["a" "b"]`,
		},
		{
			name: "a sink that moves waits", have: []logbuffer.Reader{reader("k", "a", "b")},
			want: []logbuffer.Reader{reader("k", "a"), reader("n", "b")}, sinks: []string{"b"},
			in: []logbuffer.Reader{reader("k", "a", "b")}, waits: `the sink "b", which is reader "k"'s`,
		},
		{
			name: "left behind", have: []logbuffer.Reader{reader("a", "a"), reader("o", "o")},
			want: []logbuffer.Reader{reader("a", "a")}, sinks: []string{"o", "a"},
			in: []logbuffer.Reader{reader("a", "a"), reader("o", "o")}, left: []string{"o"},
		},
		{
			name: "gone, with nothing pending", have: []logbuffer.Reader{reader("a", "a"), reader("o", "o")},
			want: []logbuffer.Reader{reader("a", "a")}, sinks: []string{"a"}, in: []logbuffer.Reader{reader("a", "a")},
		},
		{
			name: "a sink of one left behind", have: []logbuffer.Reader{reader("o", "s")},
			want: []logbuffer.Reader{reader("n", "s")}, sinks: []string{"s"}, in: []logbuffer.Reader{reader("o", "s")},
			left: []string{"o"}, waits: `nobody delivers for "o"`,
		},
		{
			name: "nobody's tuples", have: []logbuffer.Reader{reader("a", "a")}, want: []logbuffer.Reader{reader("a", "x")},
			sinks: []string{"x"}, in: []logbuffer.Reader{reader("a", "a")}, waits: "a sink that nobody reads",
		},
		{
			name: "to be dropped", have: []logbuffer.Reader{reader("a", "a"), reader("o", "o")},
			want: []logbuffer.Reader{reader("a", "a")}, sinks: []string{"o"},
			in: []logbuffer.Reader{reader("a", "a"), reader("o", "o")}, drop: []string{"o"}, waits: "is being dropped",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := stateWith(t, tc.have, tc.sinks)
			p := planReaders(s.Settings().In, s.Cursors(bufferIn), tc.want, tc.drop)
			if fmt.Sprint(p.in) != fmt.Sprint(tc.in) {
				t.Errorf("in force: %v, want %v", p.in, tc.in)
			}
			if got := strings.Join(p.waits, "; "); (got == "") != (tc.waits == "") || !strings.Contains(got, tc.waits) {
				t.Errorf("waits: %s", got)
			}
			var left []string
			for _, r := range p.left {
				left = append(left, r.Name)
			}
			if !slices.Equal(left, tc.left) || len(p.drops) != len(tc.drop) {
				t.Errorf("left behind: %v, to be dropped: %v", left, p.drops)
			}
			settings := s.Settings()
			settings.In = p.in
			if err := settings.Check(); err != nil {
				t.Error(err)
			}
			if reason := s.refuseReaders(settings); reason != "" {
				t.Error("the state refuses:", reason)
			}
			for _, a := range p.drops {
				if reason := s.refuseAck(&a); reason != "" {
					t.Error("the state refuses to drop:", reason)
				}
			}
		})
	}
}

// stateWith returns a state with readers and one retained tuple for each sink.
func stateWith(t *testing.T, readers []logbuffer.Reader, sinks []string) *State {
	t.Helper()
	s := newStateRig(t, 1<<20, 1<<20).s
	settings := DefaultSettings()
	settings.In = readers
	if v := s.applySettings(settings); v.Code != VerdictDone {
		t.Fatal(v.Reason)
	}
	for i, sink := range sinks {
		b := logbuffer.Batch{Source: "s", Sink: sink, Tuples: []logbuffer.Tuple{{Position: int64(i + 1)}}}
		s.received(bufferIn, sink, 1, 0)
		s.in.Append(logbuffer.AppendBatch(nil, &b), true)
	}
	return s
}

// logged is a log that a test reads.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) count(text string) int { return strings.Count(l.text(), text) }

// openReading opens a node alone with these readers.
func openReading(t *testing.T, dir string, log *logged, drop []string, readers ...logbuffer.Reader) *Node {
	t.Helper()
	n, err := Open(t.Context(), Config{
		Name: "op", Node: "a", DataDir: dir, Readers: readers, DropReaders: drop,
		Logger: slog.New(slog.NewTextHandler(log, nil)), ElectionTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *Node) begun() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reign == nil {
		return errors.New("no tenure yet")
	}
	return nil
}

// TestIntakeIsHeldWhileReadersChange has a reader whose sinks change while a tuple is retained.
func TestIntakeIsHeldWhileReadersChange(t *testing.T) {
	t.Parallel()
	if takenWhileReadersChange(t, false) {
		t.Error("a tuple came in between")
	}
}

func TestMutantIntakeIsNotHeld(t *testing.T) {
	t.Parallel()
	if !takenWhileReadersChange(t, true) {
		t.Error("what holds tuples back is not what the test above tests")
	}
}

// takenWhileReadersChange tells whether a tuple is taken in.
func takenWhileReadersChange(t *testing.T, unheld bool) bool {
	t.Helper()
	n := openReading(t, t.TempDir()+"/data", &logged{}, nil, reader("out", "a"))
	eventually(t, "ready", n.Ready)
	if _, err := n.Append(t.Context(), tuples("s", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := n.config
	c.Readers, c.hooks = []logbuffer.Reader{reader("out", "a", "b")}, &hooks{unheld: unheld}
	n, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Shutdown(context.WithoutCancel(t.Context())) }()
	eventually(t, "the tenure", n.begun)
	ctx, cancel := context.WithTimeout(t.Context(), custodianEvery)
	defer cancel()
	_, err = n.Append(ctx, tuples("s", 2, 2))
	return err == nil
}

// TestSinksOfAReaderChangeOnceAllIsDelivered adds a sink to a reader while tuples are retained: the tenure begins, what
// is retained is delivered while nothing new is taken in, then the sink is there.
func TestSinksOfAReaderChangeOnceAllIsDelivered(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir()+"/data", &logged{}
	n := openReading(t, dir, log, nil, reader("out", "a"))
	eventually(t, "ready", n.Ready)
	if _, err := n.Append(t.Context(), tuples("s", 1, 3)); err != nil {
		t.Fatal(err)
	}
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = openReading(t, dir, log, nil, reader("out", "a", "b"))
	eventually(t, "the tenure", n.begun)
	const why = `reader "out" is to read the sinks ["a" "b"] instead of ["a"]`
	if err := n.Ready(); err == nil || !strings.Contains(err.Error(), why) ||
		!strings.Contains(err.Error(), "configure the sinks as before") {
		t.Errorf("ready: %v", err)
	}
	if s := n.Status(); len(s.Waits) == 0 || !strings.Contains(s.Waits[0], why) {
		t.Errorf("status: %q", s.Waits)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*custodianEvery)
	defer cancel()
	_, err := n.Append(ctx, tuples("s", 4, 4))
	if !errors.Is(err, logbuffer.ErrUnavailable) || !strings.Contains(err.Error(), why) {
		t.Errorf("a tuple was taken in: %v", err)
	}
	if got := log.count("a change of readers waits"); got != 2 { // what waits, and the cure
		t.Errorf("%d warnings in several rounds", got)
	}
	waiting := make(chan error, 1)
	go func() { // it comes in as soon as it may, which must not be before the sinks are there
		_, err := n.Append(t.Context(), tuples("s", 4, 4))
		waiting <- err
	}()
	deliver(t, n, 3)
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	n.fsm.view(func(s *State) {
		if in := s.Settings().In; len(in) != 1 || !slices.Equal(in[0].Sinks, []string{"a", "b"}) {
			t.Errorf("readers in force: %v", in)
		}
	})
	if err := n.Ready(); err != nil {
		t.Error(err)
	}
}

// TestReaderLeftBehindIsShownAndCanBeDropped takes a reader with tuples pending out of the configuration.
func TestReaderLeftBehindIsShownAndCanBeDropped(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir()+"/data", &logged{}
	n := openReading(t, dir, log, nil, reader("out", "out"), reader("old", "old"))
	eventually(t, "ready", n.Ready)
	if _, err := n.Append(t.Context(), tuples("s", 1, 3)); err != nil {
		t.Fatal(err)
	}
	deliver(t, n, 3)
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = openReading(t, dir, log, nil, reader("out", "out"))
	eventually(t, "ready", n.Ready)
	wait(t.Context(), 2*custodianEvery) // several rounds
	if got := log.count("reader=old tuples=3"); got != 1 {
		t.Errorf("%d warnings of the reader left behind", got)
	}
	b := n.Status().Buffers[0]
	for _, r := range b.Readers {
		if r.LeftBehind != (r.Name == "old") || r.Name == "old" && (r.Retained != 3 || r.RetainedBytes != b.Bytes) {
			t.Errorf("%+v", r)
		}
	}
	if _, err := n.Append(t.Context(), tuples("s", 4, 4)); err != nil {
		t.Fatal(err)
	}
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = openReading(t, dir, log, []string{"old", "never"}, reader("out", "out"))
	eventually(t, "the reader to go", func() error {
		if n.Ready() != nil || len(n.Status().Buffers[0].Readers) != 1 {
			return errors.New("it is still there")
		}
		return nil
	})
	if log.count("reader=old tuples=4 up_to=4") != 1 {
		t.Error("what was dropped is not told")
	}
	if got := deliver(t, n, 1); got[0] != "s 4" {
		t.Error("another reader lost something:", got)
	}
	eventually(t, "trimming", func() error {
		if b := n.Status().Buffers[0]; b.Trimmed != 4 || b.Bytes != 0 {
			return fmt.Errorf("%+v", b)
		}
		return nil
	})
}

// TestDroppedTuplesAreInTheLedger drops by the command that the leader uses.
func TestDroppedTuplesAreInTheLedger(t *testing.T) {
	t.Parallel()
	s := stateWith(t, []logbuffer.Reader{reader("a", "a"), reader("o", "o")}, []string{"o", "", "a"})
	p := planReaders(s.Settings().In, s.Cursors(bufferIn), []logbuffer.Reader{reader("a", "a")}, []string{"o"})
	s.ack(&p.drops[0])
	for _, l := range s.Ledgers() {
		if l.balance() != nil || l.Reader == "o" && (l.Dropped != 2 || l.Delivered != 0 || l.Retained != 0) {
			t.Errorf("%+v", l)
		}
	}
}

// TestTenureThatDoesNotBeginSaysWhy has a state whose settings conflict with the configuration for good.
func TestTenureThatDoesNotBeginSaysWhy(t *testing.T) {
	t.Parallel()
	log := &logged{}
	n := openReading(t, t.TempDir()+"/data", log, nil, reader("out", "a"))
	eventually(t, "ready", n.Ready)
	failed := fmt.Errorf("%w: twice", errSettings)
	n.setReign(nil)
	for range 3 {
		n.notBegun(t.Context(), failed)
	}
	if err := n.Ready(); !errors.Is(err, errSettings) || log.count("a tenure does not begin") != 1 {
		t.Errorf("%v, told %d times", err, log.count("a tenure does not begin"))
	}
}

// TestTuplesThatNobodyReadsAreShown sends tuples for a sink that there is not.
func TestTuplesThatNobodyReadsAreShown(t *testing.T) {
	t.Parallel()
	n := openReading(t, t.TempDir()+"/data", &logged{}, nil, reader("out", "a"))
	eventually(t, "ready", n.Ready)
	b := tuples("s", 1, 2)
	b.Sink = "elsewhere"
	if _, err := n.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := n.Status().Buffers[0]; got.Unread != 2 || got.Readers[0].RetainedBytes != 0 {
		t.Errorf("%+v", got)
	}
}
