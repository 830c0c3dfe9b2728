package tcpio_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/proxytest"
	"ftproxy/proxy/tcpio"
)

// receiver is a server that a test plays by hand.
type receiver struct {
	t *testing.T
	*net.TCPListener
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	return receiverAt(t, "127.0.0.1:0")
}

func receiverAt(t *testing.T, addr string) *receiver {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &receiver{t, l}
}

func (r *receiver) accept() *peer {
	r.t.Helper()
	if err := r.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	conn, err := r.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	return newPeer(r.t, conn)
}

// delivering runs a sink from out to addr until the test ends.
func delivering(
	t *testing.T, c tcpio.SinkConfig, addr string, out *proxytest.Outlet, mutate ...func(*tcpio.Sink),
) (*tcpio.Sink, func() error) {
	t.Helper()
	c.Name, c.Address = "lines", addr
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := tcpio.NewSink(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutate {
		m(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, out) }()
	stop := func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return s, stop
}

// feed stores one batch of values.
func feed(log *proxytest.Log, values ...string) {
	b := logbuffer.Batch{Source: "s", Partition: 2}
	for i, v := range values {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{
			Value: []byte(v), Key: []byte("k"), Position: int64(i + 1), Headers: []logbuffer.Header{{Key: "h", Value: nil}},
		})
	}
	log.Feed(b)
}

func wantAcked(t *testing.T, out *proxytest.Outlet, n uint64) {
	t.Helper()
	proxytest.Until(t, patience, fmt.Sprintf("offset %d to be acknowledged (it is at %d)", n, out.Acked()),
		func() bool { return out.Acked() == n })
}

func TestRepliesAcknowledge(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "a", "b", "c")
	delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck, Window: 2}, r.Addr().String(), out)
	p := r.accept()
	p.want("a", "b")
	if out.Acked() != 0 {
		t.Error("acknowledged without a reply")
	}
	p.send("anything\nok\n")
	p.want("c")
	wantAcked(t, out, 2)
	p.send("ok\n")
	wantAcked(t, out, 3)
}

// TestBrokenConnection: what was not replied to comes again, in order, one at a time until it is; and no attempt is
// lost on a connection that the receiver closed while it was idle.
func TestBrokenConnection(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "a", "b", "c")
	delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck, MaxAttempts: 2}, r.Addr().String(), out)
	p := r.accept()
	p.want("a", "b", "c")
	p.send("ok\n")
	_ = p.Close()
	p = r.accept()
	p.want("b")
	p.send("ok\n")
	p.want("c")
	p.send("ok\n")
	wantAcked(t, out, 3)
	for i := range 4 { // each would be a failed attempt of the next tuple
		_ = p.Close()
		feed(log, fmt.Sprint(i))
		p = r.accept()
		p.want(fmt.Sprint(i))
		p.send("ok\n")
		wantAcked(t, out, uint64(4+i))
	}
	if l := out.Letters(); len(l) > 0 {
		t.Errorf("dead letters: %v", l)
	}
}

func TestRefusedTupleBecomesDeadLetter(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "good", "poison", "after")
	s, _ := delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck, MaxAttempts: 2}, r.Addr().String(), out)
	p := r.accept()
	p.want("good", "poison", "after")
	p.send("ok\nerror no such thing\n")
	p = r.accept()
	p.want("poison")
	if err := s.Trouble(); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("trouble: %v", err)
	}
	p.send("ERROR still not\n")
	p = r.accept()
	p.want("after")
	p.send("ok\n")
	wantAcked(t, out, 3)
	letters := out.Letters()
	if len(letters) != 1 || letters[0].From != 2 || letters[0].Attempts != 2 || string(letters[0].Tuple.Key) != "k" ||
		!strings.Contains(letters[0].Reason, "still not") {
		t.Errorf("letters: %+v", letters)
	}
}

func TestLineFeedInValue(t *testing.T) {
	for _, mode := range []tcpio.Replies{tcpio.RepliesNone, tcpio.RepliesAck} {
		log, r := proxytest.NewLog("l"), newReceiver(t)
		out := log.Outlet("lines")
		feed(log, "a", "two\nlines", "b")
		delivering(t, tcpio.SinkConfig{Replies: mode}, r.Addr().String(), out)
		p := r.accept()
		p.want("a")
		p.send("ok\n")
		p.want("b")
		p.send("ok\n")
		wantAcked(t, out, 3)
		if l := out.Letters(); len(l) != 1 || !strings.Contains(l[0].Reason, "line feed") {
			t.Errorf("letters: %+v", l)
		}
	}
}

func TestReceiverThatGreets(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "a")
	s, _ := delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck}, r.Addr().String(), out)
	p := r.accept()
	p.send("220 hello\nok\n")
	proxytest.Until(t, patience, "the sink says what is wrong", func() bool {
		return s.Trouble() != nil && strings.Contains(s.Trouble().Error(), "more than once")
	})
}

// TestWithoutReplies: at most once. The cursor moves before the bytes do, so that nothing is ever sent twice.
func TestWithoutReplies(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	out.HoldAcks(true)
	feed(log, "a", "b")
	_, stop := delivering(t, tcpio.SinkConfig{}, r.Addr().String(), out)
	p := r.accept()
	if err := p.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got, err := p.ReadString('\n'); err == nil {
		t.Fatalf("%q came before it was acknowledged", got)
	}
	_ = p.SetReadDeadline(time.Now().Add(patience))
	out.HoldAcks(false)
	p.want("a", "b")
	wantAcked(t, out, 2)
	_ = p.Close()
	// The next goes to a new connection: the old one is known to be gone, if it was noticed in time.
	p = nil
	for n := uint64(3); p == nil; n++ {
		feed(log, "x")
		wantAcked(t, out, n)
		_ = r.SetDeadline(time.Now().Add(50 * time.Millisecond))
		if conn, err := r.Accept(); err == nil {
			p = newPeer(t, conn)
		}
	}
	p.want("x")
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped with %v", err)
	}
}

func TestReceiverThatIsAway(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	addr := r.Addr().String()
	_ = r.Close()
	out := log.Outlet("lines")
	feed(log, "a")
	s, _ := delivering(t, tcpio.SinkConfig{}, addr, out) // even without replies nothing is lost while nobody is there
	proxytest.Until(t, patience, "the sink names its trouble", func() bool {
		return s.Trouble() != nil && strings.Contains(s.Trouble().Error(), "cannot connect to "+addr)
	})
	if out.Acked() != 0 {
		t.Error("acknowledged without a connection")
	}
	receiverAt(t, addr).accept().want("a")
	wantAcked(t, out, 1)
	if s.Trouble() != nil {
		t.Errorf("trouble stays: %v", s.Trouble())
	}
}

func TestJSONCarriesEverything(t *testing.T) {
	log, r := proxytest.NewLog("life"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "a\nb", "\xff")
	delivering(t, tcpio.SinkConfig{JSON: true}, r.Addr().String(), out)
	r.accept().want(
		`{"id":"life/1","key":"k","value":"a\nb","headers":[{"name":"h"}],"source":"s","partition":2,"position":1}`,
		`{"id":"life/2","key":"k","value64":"/w==","headers":[{"name":"h"}],"source":"s","partition":2,"position":2}`)
}

func TestFramesOut(t *testing.T) {
	log, r := proxytest.NewLog("l"), newReceiver(t)
	out := log.Outlet("lines")
	feed(log, "a\nb")
	delivering(t, tcpio.SinkConfig{Framing: tcpio.Frames, Replies: tcpio.RepliesAck}, r.Addr().String(), out)
	p := r.accept()
	got := make([]byte, 7)
	if _, err := io.ReadFull(p, got); err != nil || string(got) != "\x00\x00\x00\x03a\nb" {
		t.Fatalf("%q, %v", got, err)
	}
	p.send(string(binary.BigEndian.AppendUint32(nil, 0))) // an empty reply acknowledges
	wantAcked(t, out, 1)
}

// TestSinkFeedsSource: a sink with replies into a source with replies, and the source restarts under it.
func TestSinkFeedsSource(t *testing.T) {
	from, to := proxytest.NewLog("from"), proxytest.NewLog("to")
	to.FailAppend(proxytest.FaultUnavailable, proxytest.FaultUnknownLost)
	_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck, JSON: true}, to)
	out := from.Outlet("lines")
	feed(from, "a", "b", "c")
	delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck, JSON: true}, addr, out)
	wantAcked(t, out, 3)
	wantValues(t, to, "a|b|c")
	if got := to.Tuples()[1]; string(got.Key) != "k" || len(got.Headers) != 1 || got.Headers[0].Value != nil {
		t.Errorf("arrived as %+v", got)
	}
}

func TestSinkConfigIsChecked(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	for name, c := range map[string]tcpio.SinkConfig{
		"no port":  {Name: "n", Address: "host", Logger: logger},
		"no host":  {Name: "n", Address: ":7000", Logger: logger},
		"sessions": {Name: "n", Address: "h:1", Logger: logger, Replies: tcpio.RepliesSession},
		"negative": {Name: "n", Address: "h:1", Logger: logger, Window: -1},
		"nameless": {Address: "h:1", Logger: logger},
	} {
		if _, err := tcpio.NewSink(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
