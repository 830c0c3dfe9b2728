package tcpio_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/proxytest"
	"ftproxy/proxy/tcpio"
)

const patience = 10 * time.Second

// listening runs a source until the test ends and returns its address.
func listening(
	t *testing.T, c tcpio.SourceConfig, in proxy.Intake, mutate ...func(*tcpio.Source),
) (s *tcpio.Source, addr string, stop func()) {
	t.Helper()
	c.Name, c.Listen = "lines", "127.0.0.1:0"
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := tcpio.NewSource(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutate {
		m(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, in) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	proxytest.Until(t, patience, "the source listens", func() bool { return s.Addr() != nil })
	return s, s.Addr().String(), stop
}

// peer is the other end of a connection in a test.
type peer struct {
	t *testing.T
	net.Conn
	*bufio.Reader
}

func dial(t *testing.T, addr string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, conn)
}

func newPeer(t *testing.T, conn net.Conn) *peer {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &peer{t, conn, bufio.NewReader(conn)}
}

// Read resolves the ambiguity of the two embedded ones.
func (p *peer) Read(b []byte) (int, error) { return p.Reader.Read(b) }

func (p *peer) send(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.Conn, text); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) want(lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		got, err := p.ReadString('\n')
		if err != nil || strings.TrimSuffix(got, "\n") != line {
			p.t.Fatalf("reply %q (%v), want %q", got, err, line)
		}
	}
}

// wantError reads a reply that begins with "error" and contains part, then the end of the connection.
func (p *peer) wantError(part string) {
	p.t.Helper()
	got, err := p.ReadString('\n')
	if err != nil || !strings.HasPrefix(got, "error ") || !strings.Contains(got, part) {
		p.t.Fatalf("reply %q (%v), want an error with %q", got, err, part)
	}
	p.wantEnd()
}

func (p *peer) wantEnd() {
	p.t.Helper()
	if rest, err := io.ReadAll(p.Reader); len(rest) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		p.t.Fatalf("after the last reply: %q, %v", rest, err)
	}
}

func (p *peer) closeWrite() {
	p.t.Helper()
	if half, ok := p.Conn.(*net.TCPConn); !ok || half.CloseWrite() != nil {
		p.t.Fatal("cannot close one way")
	}
}

func values(log *proxytest.Log) string {
	var all []string
	for _, t := range log.Tuples() {
		all = append(all, string(t.Value))
	}
	return strings.Join(all, "|")
}

func wantValues(t *testing.T, log *proxytest.Log, want string) {
	t.Helper()
	proxytest.Until(t, patience, "the log to hold "+want, func() bool { return values(log) == want })
}

func TestLinesAreAnsweredInOrder(t *testing.T) {
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck}, log)
	p := dial(t, addr)
	p.send("one\r\ntwo\n\nfo")
	p.want("ok 1", "ok 2", "ok 3")
	p.send("ur\n")
	p.want("ok 4")
	p.closeWrite()
	p.wantEnd()
	wantValues(t, log, "one|two||four")
}

func TestFramesAreAnsweredInOrder(t *testing.T) {
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Framing: tcpio.Frames, Replies: tcpio.RepliesAck}, log)
	p := dial(t, addr)
	for i, payload := range []string{"a\nb", "", strings.Repeat("x", 300_000)} {
		p.send(string(binary.BigEndian.AppendUint32(nil, uint32(len(payload)))) + payload)
		reply := make([]byte, 8)
		if _, err := io.ReadFull(p, reply); err != nil || string(reply) != fmt.Sprintf("\x00\x00\x00\x04ok %d", i+1) {
			t.Fatalf("reply %q, %v", reply, err)
		}
	}
	wantValues(t, log, "a\nb||"+strings.Repeat("x", 300_000))
}

func TestRefusals(t *testing.T) {
	limit := tcpio.SourceConfig{Replies: tcpio.RepliesAck, MaxTupleBytes: 100, TupleTimeout: 200 * time.Millisecond}
	idle := limit
	idle.IdleTimeout = 100 * time.Millisecond
	asJSON := limit
	asJSON.JSON = true
	for _, tc := range []struct {
		name, send string
		half       bool
		c          tcpio.SourceConfig
		want       string
	}{
		{
			"long line", "good\n" + strings.Repeat("x", 101) + "\nafter\n", false, limit,
			"tuple 2: line larger than FTPROXY_TUPLE_MAX_BYTES (100 bytes)",
		},
		{"endless line", "good\n" + strings.Repeat("x", 50_000), false, limit, "tuple 2: line larger"},
		{"cut line", "good\nhal", true, limit, "tuple 2: the connection ended inside a line"},
		{"slow line", "good\nhal", false, limit, "tuple 2: tuple not complete within 200ms"},
		{"idle", "good\n", false, idle, "tuple 2: idle for 100ms"},
		{
			"not JSON", `{"value":"good"}` + "\nnot JSON\n" + `{"value":"after"}` + "\n", false, asJSON,
			"tuple 2: not a JSON tuple",
		},
		{"unknown member", `{"value":"good"}` + "\n" + `{"valeu":"x"}` + "\n", false, asJSON, "valeu"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := proxytest.NewLog("l")
			s, addr, _ := listening(t, tc.c, log)
			p := dial(t, addr)
			p.send(tc.send)
			p.want("ok 1")
			if tc.half {
				p.closeWrite()
			}
			p.wantError(tc.want)
			wantValues(t, log, "good")
			proxytest.Until(t, patience, "the memory is given back", func() bool { return s.SlotsTaken() == 0 })
		})
	}
}

func TestFrameLengthThatIsText(t *testing.T) {
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Framing: tcpio.Frames, Replies: tcpio.RepliesAck}, log)
	p := dial(t, addr)
	p.send("hello\n")
	header := make([]byte, 4)
	if _, err := io.ReadFull(p, header); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, binary.BigEndian.Uint32(header))
	if _, err := io.ReadFull(p, text); err != nil || !strings.Contains(string(text), "does this client send lines?") {
		t.Fatalf("%q, %v", text, err)
	}
	if log.End() != 0 {
		t.Error("something was admitted")
	}
}

func TestSessionSurvivesConnections(t *testing.T) {
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesSession}, log)
	p := dial(t, addr)
	p.send("session\n")
	hello, err := p.ReadString('\n')
	var id string
	var next int
	if n, _ := fmt.Sscanf(hello, "session %s %d", &id, &next); n != 2 || next != 1 || err != nil {
		t.Fatalf("%q, %v", hello, err)
	}
	p.send("a\nb\n")
	p.want("ok 1", "ok 2")
	// The answer to c is lost: written, but the outcome is unknown.
	log.FailAppend(proxytest.FaultUnknownWritten)
	p.send("c\n")
	p.wantError("outcome unknown")

	p = dial(t, addr)
	p.send("session " + id + "\n")
	p.want("session " + id + " 4")
	p.send("d\n")
	p.want("ok 1")
	wantValues(t, log, "a|b|c|d")

	log.Expire(id)
	p.send("e\n")
	p.wantError("session unknown or expired")
	p = dial(t, addr)
	p.send("something else\n")
	p.wantError(`must be "session"`)
}

func TestDefiniteNoIsAskedAgain(t *testing.T) {
	for _, r := range []tcpio.Replies{tcpio.RepliesNone, tcpio.RepliesAck} {
		log := proxytest.NewLog("l")
		log.FailAppend(proxytest.FaultUnavailable, proxytest.FaultUnavailable)
		_, addr, _ := listening(t, tcpio.SourceConfig{Replies: r}, log)
		dial(t, addr).send("a\n")
		wantValues(t, log, "a")
	}
}

func TestNoAnswerInTime(t *testing.T) {
	log := proxytest.NewLog("l")
	log.SetFull(true)
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck, AckTimeout: 50 * time.Millisecond}, log)
	p := dial(t, addr)
	p.send("a\n")
	p.wantError("tuple 1: ")
}

// announced tells when an append begins.
type announced struct {
	*proxytest.Log
	began chan struct{}
}

func (a *announced) Append(ctx context.Context, b ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	a.began <- struct{}{}
	return a.Log.Append(ctx, b...)
}

func TestStopAnswersWhatWasRead(t *testing.T) {
	log := &announced{proxytest.NewLog("l"), make(chan struct{}, 1)}
	log.SetFull(true)
	_, addr, stop := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck}, log)
	p, quiet := dial(t, addr), dial(t, addr)
	p.send("a\n")
	<-log.began
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	quiet.wantError("shutting down") // who has sent nothing is told at once
	log.SetFull(false)
	p.want("ok 1")
	p.wantError("shutting down")
	<-stopped
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("it still listens")
	}
}

func TestConnectionLimit(t *testing.T) {
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck, MaxConnections: 1}, log)
	first := dial(t, addr)
	first.send("a\n")
	first.want("ok 1")
	second := dial(t, addr)
	if got, _ := second.ReadString('\n'); got != "error too many connections\n" {
		t.Errorf("reply %q", got)
	}
	first.send("b\n") // who is in is served
	first.want("ok 2")
	_ = first.Close()
	proxytest.Until(t, patience, "the place is free again", func() bool {
		p := dial(t, addr)
		p.send("c\n")
		got, _ := p.ReadString('\n')
		return got == "ok 1\n"
	})
}

// TestMemoryIsShared: many clients with large tuples, memory for one at a time, and a client that never finishes.
func TestMemoryIsShared(t *testing.T) {
	log := proxytest.NewLog("l")
	s, addr, _ := listening(t, tcpio.SourceConfig{
		Framing: tcpio.Frames, Replies: tcpio.RepliesAck, MaxTupleBytes: 1 << 20, MaxMemory: 1 << 20,
		TupleTimeout: 2 * time.Second,
	}, log)
	hog := dial(t, addr)
	hog.send(string(binary.BigEndian.AppendUint32(nil, 1<<20)) + strings.Repeat("h", 100_000))
	proxytest.Until(t, patience, "the hog has the memory", func() bool { return s.SlotsTaken() == 1 })
	small := dial(t, addr)
	small.send("\x00\x00\x00\x01s")
	if _, err := io.ReadFull(small, make([]byte, 8)); err != nil {
		t.Fatalf("a small tuple was not served beside the hog: %v", err)
	}
	answers := make(chan error, 8)
	for range cap(answers) {
		p := dial(t, addr)
		go func() {
			_, err := io.WriteString(p.Conn, string(binary.BigEndian.AppendUint32(nil, 200_000))+strings.Repeat("x", 200_000))
			if err == nil {
				_, err = io.ReadFull(p, make([]byte, 8))
			}
			answers <- err
		}()
	}
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if got := len(log.Tuples()); got != cap(answers)+1 {
		t.Errorf("%d tuples, want %d", got, cap(answers)+1)
	}
}

func TestIDsAreJudged(t *testing.T) {
	rule, err := proxy.ParseIDRule("json:/id")
	if err != nil {
		t.Fatal(err)
	}
	log := proxytest.NewLog("l")
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck, ID: rule}, log)
	p := dial(t, addr)
	p.send(`{"id":1}` + "\n" + `{"id":2}` + "\n" + `{"id":1}` + "\n" + `{}` + "\n" + `{}` + "\n")
	p.want("ok 1", "ok 2", "ok 3", "ok 4", "ok 5")
	wantValues(t, log, `{"id":1}|{"id":2}|{}|{}`)
}
