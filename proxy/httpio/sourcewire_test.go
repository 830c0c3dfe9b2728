package httpio_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

// serve runs a source on a real listener until the test ends.
func serve(t *testing.T, s *httpio.Source, log *proxytest.Log) (addr string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = s.Run(ctx, log) })
	stop = sync.OnceValue(func() error { cancel(); running.Wait(); return err })
	t.Cleanup(func() { _ = stop() })
	proxytest.Until(t, 5*time.Second, "the listener", func() bool { return s.Addr() != nil })
	return s.Addr().String(), stop
}

func dial(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func statusOf(t *testing.T, conn net.Conn) int {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

func TestSourceBrokenBodies(t *testing.T) {
	log := proxytest.NewLog("lin")
	s := newSource(t, func(c *httpio.SourceConfig) { c.BodyTimeout = 200 * time.Millisecond; c.Path = "/" })
	addr, _ := serve(t, s, log)
	const head = "POST / HTTP/1.1\r\nHost: x\r\n"
	for _, c := range []struct {
		name, text string
		closeWrite bool
		status     int
	}{
		{"length not reached", head + "Content-Length: 10\r\n\r\n1234", true, 400},
		{"chunks broken off", head + "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n", true, 400},
		{"chunk malformed", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n1234\r\n", true, 400},
		{"slow", head + "Content-Length: 10\r\n\r\n1234", false, 408},
		{"slow chunks", head + "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n", false, 408},
		{"length beyond the limit", head + "Content-Length: 9999999999\r\n\r\n", false, 413},
		{"endless", head + "Transfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat("x", 128<<10) + "\r\n", false, 413},
		{"whole", head + "Content-Length: 4\r\n\r\n1234", false, 200},
		{"whole chunks", head + "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n0\r\n\r\n", false, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(log.Tuples())
			conn := dial(t, addr, c.text)
			if c.closeWrite {
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil { //nolint:errcheck // it is one
					t.Fatal(err)
				}
			}
			if got := statusOf(t, conn); got != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if admitted := len(log.Tuples()) - before; (admitted == 1) != (c.status == 200) {
				t.Errorf("%d tuples admitted", admitted)
			}
		})
	}
	proxytest.Until(t, 5*time.Second, "the budget", func() bool { return httpio.InFlight(s) == 0 })
}

func TestSourceMemoryOfAllRequests(t *testing.T) {
	if status := besideHog(t); status != http.StatusTooManyRequests {
		t.Errorf("status %d beside a hog", status)
	}
}

func TestMutantNoBudget(t *testing.T) {
	if besideHog(t, "no-budget") == http.StatusTooManyRequests {
		t.Error("memory without a bound went unnoticed")
	}
}

// besideHog returns the status of a large request while another, slow one holds nearly all memory.
func besideHog(t *testing.T, mutants ...string) (status int) {
	t.Helper()
	log := proxytest.NewLog("lin")
	s := newSource(t, func(c *httpio.SourceConfig) {
		c.MaxRequestBytes, c.MaxTuples, c.MaxInFlightBytes, c.Path = 60_000, 2, 62_500, "/"
	})
	s.Mutate(mutants...)
	addr, _ := serve(t, s, log)
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"
	hog := dial(t, addr, head+strings.Repeat("x", 50_000)) // holds what it has sent, and does not go on
	proxytest.Until(t, 5*time.Second, "the hog", func() bool { return httpio.InFlight(s) > 50_000 })
	status = statusOf(t, dial(t, addr, head+strings.Repeat("y", 60_000)))
	if got := statusOf(t, dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n1234")); got != 200 {
		t.Errorf("status %d for a small one beside a hog", got)
	}
	if _, err := io.WriteString(hog, strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	if got := statusOf(t, hog); got != http.StatusOK {
		t.Errorf("status %d for the hog itself", got)
	}
	proxytest.Until(t, 5*time.Second, "the budget", func() bool { return httpio.InFlight(s) == 0 })
	return status
}

// Headers that trickle in cost a connection for a bounded time only.
func TestSourceSlowHeaders(t *testing.T) {
	s := newSource(t, func(c *httpio.SourceConfig) { c.Path, c.MaxConnections = "/", 1 })
	s.HeaderTime(100 * time.Millisecond)
	addr, _ := serve(t, s, proxytest.NewLog("lin"))
	slow := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	quick := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n1234")
	if got := statusOf(t, quick); got != http.StatusOK {
		t.Errorf("status %d behind a slow client", got)
	}
	if _, err := io.ReadAll(slow); err != nil {
		t.Errorf("the slow client was not hung up on: %v", err)
	}
}

// A request that is refused, or answered, before its body has come must not hold its connection until it comes.
func TestSourceBodyNobodyReads(t *testing.T) {
	for name, request := range unreadBodies() {
		if !endsUnread(t, request, 200*time.Millisecond, 10*time.Second) {
			t.Errorf("%s: the connection is still open", name)
		}
	}
}

func TestMutantPatient(t *testing.T) {
	if endsUnread(t, unreadBodies()["nowhere"], 200*time.Millisecond, time.Second, "patient") {
		t.Error("a connection that is held for ever went unnoticed")
	}
}

func unreadBodies() map[string]string {
	return map[string]string{
		"nowhere":         "POST /nowhere HTTP/1.1",
		"wrong method":    "PUT / HTTP/1.1",
		"not supported":   "POST / HTTP/1.1\r\nContent-Encoding: gzip",
		"wrong query":     "POST /?split=" + strings.Repeat("x", 8<<10) + " HTTP/1.1", // the answer repeats it
		"without a need":  "POST /sessions HTTP/1.1",
		"a wrong session": "POST / HTTP/1.1\r\nFtproxy-Session: s",
	}
}

// endsUnread tells whether a connection whose body never comes ends within the time.
func endsUnread(t *testing.T, request string, body, within time.Duration, mutants ...string) bool {
	t.Helper()
	s := newSource(t, func(c *httpio.SourceConfig) { c.Path, c.BodyTimeout = "/", body })
	s.Mutate(mutants...)
	addr, _ := serve(t, s, proxytest.NewLog("lin"))
	conn := dial(t, addr, request+"\r\nHost: x\r\nContent-Length: 100\r\n\r\n1234")
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadAll(conn)
	return err == nil
}

func TestSourceStopsInOrder(t *testing.T) {
	log := proxytest.NewLog("lin")
	s := newSource(t, func(c *httpio.SourceConfig) { c.Path = "/" })
	addr, stop := serve(t, s, log)
	log.SetFull(true)
	conn := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n1234")
	proxytest.Until(t, 5*time.Second, "the request", func() bool { return httpio.InFlight(s) > 0 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	proxytest.Until(t, 5*time.Second, "the listener's end", func() bool {
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	log.SetFull(false)
	if got := statusOf(t, conn); got != http.StatusOK {
		t.Errorf("a request at work got %d", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestSourceManyConnections(t *testing.T) {
	log := proxytest.NewLog("lin")
	s := newSource(t, func(c *httpio.SourceConfig) { c.Path = "/"; c.MaxConnections = 8 })
	addr, _ := serve(t, s, log)
	const n = 400
	var clients sync.WaitGroup
	gate := make(chan struct{}, 50)
	for range n {
		gate <- struct{}{}
		clients.Go(func() {
			defer func() { <-gate }()
			conn := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\n1234")
			if got := statusOf(t, conn); got != http.StatusOK {
				t.Errorf("status %d", got)
			}
			_ = conn.Close()
		})
	}
	clients.Wait()
	for _, stats := range []any{s.Stats(), newSink(t, nil).Stats()} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(stats)) {
			if field.Type.Kind() != reflect.Uint64 {
				t.Errorf("%T.%s is no plain counter: metrics could grow with connections", stats, field.Name)
			}
		}
	}
	if got := s.Stats(); got.Requests != n || got.Admitted != n {
		t.Errorf("%+v", got)
	}
}
