package httpio_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// linkEnd is a receiving ftproxy: a log and its link source, behind any number of listeners.
type linkEnd struct {
	log    *proxytest.Log
	source *httpio.LinkSource
	nodes  []*httptest.Server
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
	mu     sync.Mutex
}

func newLinkEnd(t *testing.T, lineage string, nodes int) *linkEnd {
	t.Helper()
	source, err := httpio.NewLinkSource(httpio.LinkSourceConfig{Name: "up", Listen: "127.0.0.1:0", Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	e := &linkEnd{log: proxytest.NewLog(lineage), source: source}
	for range nodes {
		e.nodes = append(e.nodes, httptest.NewServer(http.HandlerFunc(e.serve)))
		t.Cleanup(e.nodes[len(e.nodes)-1].Close)
	}
	return e
}

func (e *linkEnd) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	before, log := e.before, e.log
	e.mu.Unlock()
	if before == nil || !before(w, r) {
		e.source.Handler(log).ServeHTTP(w, r)
	}
}

// intercept has f look at each request first.
func (e *linkEnd) intercept(f func(w http.ResponseWriter, r *http.Request) (answered bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.before = f
}

func (e *linkEnd) urls() []string {
	var urls []string
	for _, n := range e.nodes {
		urls = append(urls, strings.Replace(n.URL, "http://", "ftproxy://", 1))
	}
	return urls
}

func newLink(t *testing.T, urls []string, change func(*httpio.LinkSinkConfig)) *httpio.LinkSink {
	t.Helper()
	c := httpio.LinkSinkConfig{
		Name: "down", URLs: urls, Logger: quiet(), MinWait: time.Millisecond, MaxWait: 5 * time.Millisecond,
		AckEvery: time.Millisecond, Timeout: time.Second,
	}
	if change != nil {
		change(&c)
	}
	s, err := httpio.NewLinkSink(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a sink until stop is called; stop returns its error.
func run(t *testing.T, sink proxy.Sink, out proxy.Outlet) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = sink.Run(ctx, out) })
	stop = sync.OnceValue(func() error { cancel(); running.Wait(); return err })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// numbered returns batches of random sizes that hold the values from … to.
func numbered(from, to int) []logbuffer.Batch {
	var batches []logbuffer.Batch
	for from <= to {
		b := logbuffer.Batch{Source: "test/1", Partition: int32(from % 3)}
		for range rand.IntN(5) + 1 {
			if from > to {
				break
			}
			b.Tuples = append(b.Tuples, logbuffer.Tuple{
				Key: fmt.Appendf(nil, "k%d", from%7), Value: fmt.Append(nil, from), Position: int64(from * 10), Time: int64(from),
				Headers: []logbuffer.Header{{Key: "H"}, {Key: "H", Value: []byte{}}},
			})
			from++
		}
		batches = append(batches, b)
	}
	return batches
}

// exactly checks that a log holds the values from … to, each once, in order, with all that belongs to them.
func exactly(t *testing.T, log *proxytest.Log, from, to int) {
	t.Helper()
	tuples := log.Tuples()
	if len(tuples) != to-from+1 {
		t.Errorf("%d tuples arrived, want %d", len(tuples), to-from+1)
		return
	}
	for i := range tuples {
		n := from + i
		tuple := &tuples[i]
		origin := fmt.Sprintf("test/1@%d", n*10)
		if string(tuple.Value) != fmt.Sprint(n) || string(tuple.Key) != fmt.Sprintf("k%d", n%7) || tuple.Time != int64(n) ||
			len(tuple.Headers) != 3 || tuple.Headers[0].Value != nil || tuple.Headers[1].Value == nil ||
			string(tuple.Headers[2].Value) != origin {
			t.Fatalf("tuple %d: %s", n, show(tuples[i:i+1]))
		}
	}
}

func TestLinkDelivers(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	out := up.Outlet("link")
	up.Feed(numbered(1, 100)...)
	stop := run(t, newLink(t, down.urls(), nil), out)
	up.Feed(numbered(101, 200)...)
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 200); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	exactly(t, down.log, 1, 200)
	if b := down.log.Batches()[0]; b.Source != "ftproxy/up/in/link" {
		t.Errorf("source %q", b.Source)
	}
	if last, known, err := down.log.Position(t.Context(), "ftproxy/up/in/link"); last != 200 || !known || err != nil {
		t.Errorf("position %d, %v, %v", last, known, err)
	}
}

// Answers are lost, connections break, nodes refuse, tenures end in the middle: everything arrives once and in order,
// through two links in a row.
func TestLinkSurvivesEverything(t *testing.T) {
	const n = 3000
	second, third, err := survive(t, n, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	exactly(t, second, 1, n)
	exactly(t, third, 1, n)
}

func TestMutantLinkWithoutRange(t *testing.T) {
	// It may stand still for good, too: what arrived twice lies beyond the sender's end.
	if _, third, err := survive(t, 500, 10*time.Second, "no-range"); err == nil && third.End() == 500 {
		t.Error("a link that does not judge ranges went unnoticed")
	}
}

// survive sends n tuples through two links in trouble. Its error says what had not arrived in time.
func survive(t *testing.T, n int, within time.Duration, mutants ...string) (*proxytest.Log, *proxytest.Log, error) {
	t.Helper()
	first, second, third := proxytest.NewLog("first"), newLinkEnd(t, "second", 3), newLinkEnd(t, "third", 1)
	trouble := func(e *linkEnd) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			switch rand.IntN(10) {
			case 0: // refused before it is read
				w.WriteHeader(http.StatusServiceUnavailable)
			case 1: // written, and the answer lost
				e.source.Handler(e.log).ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			case 2: // broken off
				panic(http.ErrAbortHandler)
			case 3:
				e.log.FailAppend(proxytest.FaultUnknownWritten)
				return false
			case 4:
				e.log.FailAppend(proxytest.FaultUnknownLost)
				return false
			default:
				return false
			}
			return true
		}
	}
	second.source.Mutate(mutants...)
	third.source.Mutate(mutants...)
	second.intercept(trouble(second))
	third.intercept(trouble(third))
	var done sync.WaitGroup
	defer done.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tenures := func(out *proxytest.Outlet, urls []string) {
		for ctx.Err() == nil {
			tenure, end := context.WithTimeout(ctx, time.Duration(5+rand.IntN(40))*time.Millisecond)
			link := newLink(t, urls, func(c *httpio.LinkSinkConfig) { c.MaxBytes = 2000 })
			if err := link.Run(tenure, out); err != nil {
				t.Error(err)
			}
			end()
			out.EndTenure() // what is on its way now fails
			out.BeginTenure()
		}
	}
	fromFirst, fromSecond := first.Outlet("a"), second.log.Outlet("b")
	done.Go(func() { tenures(fromFirst, second.urls()) })
	done.Go(func() { tenures(fromSecond, third.urls()) })
	for from := 1; from <= n; from += 100 {
		first.Feed(numbered(from, from+99)...)
	}
	err := third.log.WaitEnd(proxytest.Within(t, within), uint64(n))
	if err == nil {
		err = fromSecond.WaitAcked(proxytest.Within(t, within), uint64(n))
	}
	cancel()
	done.Wait()
	if err != nil {
		err = fmt.Errorf("%d and %d tuples arrived, %d are acknowledged: %w", second.log.End(), third.log.End(),
			fromSecond.Acked(), err)
	}
	return second.log, third.log, err
}

// Two tenures overlap: the old leader does not know yet that it is none.
func TestLinkOverlappingSenders(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	out := up.Outlet("link")
	var stops []func() error
	for range 3 {
		stops = append(stops, run(t, newLink(t, down.urls(), func(c *httpio.LinkSinkConfig) { c.MaxBytes = 500 }), out))
	}
	for from := 1; from <= 1000; from += 100 {
		up.Feed(numbered(from, from+99)...)
	}
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 1000); err != nil {
		t.Fatal(err)
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	exactly(t, down.log, 1, 1000)
}

func TestLinkTriesTheNextNode(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 3)
	out := up.Outlet("link")
	link := newLink(t, down.urls(), nil)
	run(t, link, out)
	up.Feed(numbered(1, 10)...)
	for i := range 3 {
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), uint64(10*(i+1))); err != nil {
			t.Fatalf("with %d nodes gone: %v, trouble %v", i, err, link.Trouble())
		}
		if i < 2 {
			down.nodes[i].CloseClientConnections()
			down.nodes[i].Close()
		}
		up.Feed(numbered(10*(i+1)+1, 10*(i+2))...)
	}
	if link.Trouble() != nil && out.Acked() == 40 {
		t.Errorf("trouble %v", link.Trouble())
	}
}

// haltOf runs a link until it ends by itself.
func haltOf(t *testing.T, link *httpio.LinkSink, out proxy.Outlet) error {
	t.Helper()
	err := link.Run(proxytest.Within(t, 10*time.Second), out)
	if err == nil {
		t.Fatal("the link neither delivered nor halted")
	}
	return err
}

func isHalt(err error) bool {
	_, ok := errors.AsType[*proxy.Halt](err)
	return ok
}

func TestLinkReceiverForgets(t *testing.T) {
	setUp := func(t *testing.T, change func(*httpio.LinkSinkConfig)) (
		up *proxytest.Log, out *proxytest.Outlet, down *linkEnd, link *httpio.LinkSink,
	) {
		t.Helper()
		up, down = proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
		out, link = up.Outlet("link"), newLink(t, down.urls(), change)
		up.Feed(numbered(1, 50)...)
		stop := run(t, link, out)
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 50); err != nil {
			t.Fatal(err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		down.mu.Lock()
		down.log = proxytest.NewLog("down-again")
		down.mu.Unlock()
		return up, out, down, link
	}
	t.Run("what is still here is sent again", func(t *testing.T) {
		up, out, down, link := setUp(t, nil)
		run(t, link, out)
		up.Feed(numbered(51, 60)...)
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 60); err != nil {
			t.Fatal(err)
		}
		exactly(t, down.log, 1, 60)
	})
	t.Run("in the middle of a run", func(t *testing.T) {
		up, out, down, link := setUp(t, nil)
		run(t, link, out)
		up.Feed(numbered(51, 60)...)
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 60); err != nil {
			t.Fatal(err)
		}
		down.mu.Lock()
		down.log = proxytest.NewLog("down-again-and-again")
		down.mu.Unlock()
		up.Feed(numbered(61, 70)...)
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 70); err != nil {
			t.Fatal(err)
		}
		exactly(t, down.log, 1, 70)
	})
	t.Run("what is gone halts", func(t *testing.T) {
		up, out, _, link := setUp(t, nil)
		up.Trim(20)
		up.Feed(numbered(51, 60)...)
		if err := haltOf(t, link, out); !isHalt(err) {
			t.Errorf("error %v", err)
		}
		if out.Acked() != 50 {
			t.Errorf("acked %d", out.Acked())
		}
	})
	t.Run("a loss that is allowed", func(t *testing.T) {
		up, out, down, link := setUp(t, func(c *httpio.LinkSinkConfig) { c.AllowLoss = true })
		up.Trim(50)
		up.Feed(numbered(51, 60)...)
		run(t, link, out)
		if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 60); err != nil {
			t.Fatal(err)
		}
		exactly(t, down.log, 51, 60)
	})
}

func TestLinkSenderForgets(t *testing.T) {
	if err := senderForgets(t); !isHalt(err) {
		t.Errorf("error %v", err)
	}
}

func TestMutantLinkTrustsItself(t *testing.T) {
	if isHalt(senderForgets(t, "trust-self")) {
		t.Error("a log that has lost what it had sent halted by chance")
	}
}

// senderForgets has a log start anew under its old lineage; its new tuples would be taken for repeats and lost.
func senderForgets(t *testing.T, mutants ...string) error {
	t.Helper()
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	out := up.Outlet("link")
	up.Feed(numbered(1, 50)...)
	run(t, newLink(t, down.urls(), nil), out)
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 50); err != nil {
		t.Fatal(err)
	}
	again := proxytest.NewLog("up") // the same lineage, and less in it
	again.Feed(numbered(1, 20)...)
	link := newLink(t, down.urls(), nil)
	link.Mutate(mutants...)
	return link.Run(proxytest.Within(t, 200*time.Millisecond), again.Outlet("link"))
}

// A reader that is new begins where the buffer begins: nothing before was owed.
func TestLinkNewReader(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	for _, b := range numbered(1, 40) {
		up.Feed(b)
	}
	up.Trim(30)
	out := up.Outlet("link")
	from := int(out.Acked()) + 1
	run(t, newLink(t, down.urls(), nil), out)
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 40); err != nil {
		t.Fatal(err)
	}
	exactly(t, down.log, from, 40)
}

// Tuples that a policy gave up are not sent, though they are still here, and the link goes on behind them.
func TestLinkAfterPolicy(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	out := up.Outlet("link")
	one := numbered(1, 1)[0]
	for i := 2; i <= 10; i++ {
		one.Tuples = append(one.Tuples, numbered(i, i)[0].Tuples...)
	}
	up.Feed(one)
	if err := out.Ack(t.Context(), logbuffer.Ack{UpTo: 4, Dropped: 4}); err != nil {
		t.Fatal(err)
	}
	run(t, newLink(t, down.urls(), func(c *httpio.LinkSinkConfig) { c.AllowLoss = true }), out)
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 10); err != nil {
		t.Fatal(err)
	}
	exactly(t, down.log, 5, 10)
}

func TestLinkTooLarge(t *testing.T) {
	up, down := proxytest.NewLog("up"), newLinkEnd(t, "down", 1)
	var sizes []int64
	down.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			sizes = append(sizes, r.ContentLength)
		}
		if r.ContentLength > 250 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
		return r.ContentLength > 250
	})
	out := up.Outlet("link")
	up.Feed(numbered(1, 30)...)
	stop := run(t, newLink(t, down.urls(), nil), out)
	if err := out.WaitAcked(proxytest.Within(t, 10*time.Second), 30); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	exactly(t, down.log, 1, 30)
	up.Feed(logbuffer.Batch{Source: "x", Tuples: []logbuffer.Tuple{{Value: make([]byte, 300)}}})
	if err := haltOf(t, newLink(t, down.urls(), nil), out); !isHalt(err) {
		t.Errorf("a tuple that never fits: %v", err)
	}
	if slices.Max(sizes) < 500 {
		t.Errorf("sizes %v", sizes)
	}
}

func TestLinkWrongReceiver(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>")
	}))
	defer server.Close()
	up := proxytest.NewLog("up")
	up.Feed(numbered(1, 1)...)
	out := up.Outlet("link")
	link := newLink(t, []string{strings.Replace(server.URL, "http", "ftproxy", 1)}, nil)
	if err := haltOf(t, link, out); isHalt(err) || out.Acked() != 0 {
		t.Errorf("error %v, acked %d", err, out.Acked())
	}
}
