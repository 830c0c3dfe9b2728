package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// The first byte of a connection says what it is for.
const (
	linkRaft    = 'R' // Raft's own messages
	linkForward = 'F' // commands of a follower's lane, and the leader's verdicts
	linkControl = 'C' // one question and its answer
)

const (
	// handshakeTimeout bounds the time from accept to the end of the hello.
	handshakeTimeout = 5 * time.Second
	// maxHandshakes bounds the connections that have not said hello yet; the oldest one gives way to the newest.
	maxHandshakes = 128
	// maxConnsPerPeer bounds the connections from one peer; the oldest one gives way to the newest.
	maxConnsPerPeer = 32
)

// stream is the one listener of a node and the way to dial the others:
//
//	accept ─▶ [TLS] ─▶ kind ─▶ hello ─▶ Raft's Accept | forward | control
//
// Peers are names: a server id is name#random, it is Raft's address too, and the name is looked up in the configuration
// and resolved at every dial. The hello names the server id that is meant, so that a process that took over a name and
// address never answers for the id that had them before.
type stream struct {
	operator string
	peers    map[string]string
	local    func() identity
	certs    *certificates // nil: plain TCP
	dialer   func(ctx context.Context, addr string) (net.Conn, error)
	listener net.Listener // nil: a node alone that listens nowhere
	log      *slog.Logger
	// handle serves a forward or control connection; it returns when the connection is done with.
	handle func(ctx context.Context, link byte, from serverID, conn net.Conn)
	// refusedBy is told about every refusal that a peer answered, and with nil when one takes a link of Raft's.
	refusedBy func(name string, err *refusal)

	sent, received, refusals atomic.Int64

	ctx    context.Context //nolint:containedctx // it is the life of the listener and all its connections
	cancel context.CancelFunc
	wg     sync.WaitGroup
	raftIn chan net.Conn

	mu sync.Mutex
	// conns holds, by peer's name ("" before the hello), the open inbound connections, oldest first.
	conns map[string][]net.Conn
	// dialed holds the open outbound connections.
	dialed map[net.Conn]struct{}
	closed bool
}

// identity is what a node says of itself in a hello. lineage is empty until it is known.
type identity struct {
	id      serverID
	lineage string
}

// serverID names one life of a node's data: name#random.
type serverID string

// name is the node's name.
func (s serverID) name() string {
	name, _, _ := strings.Cut(string(s), "#")
	return name
}

func (s *stream) start() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.raftIn = make(chan net.Conn)
	s.conns = map[string][]net.Conn{}
	s.dialed = map[net.Conn]struct{}{}
	if s.listener != nil {
		s.wg.Go(s.acceptAll)
	}
}

// close ends the listener and every connection, and waits for what served them.
func (s *stream) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := make([]net.Conn, 0, len(s.dialed))
	for _, conns := range s.conns {
		open = append(open, conns...)
	}
	for c := range s.dialed {
		open = append(open, c)
	}
	s.mu.Unlock()
	s.cancel()
	var err error
	if s.listener != nil {
		err = s.listener.Close()
	}
	for _, c := range open {
		_ = c.Close() // the other end learns it either way
	}
	s.wg.Wait()
	return err
}

func (s *stream) acceptAll() {
	for {
		conn, err := s.listener.Accept()
		if s.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // arrived while closing
			}
			return
		}
		if err != nil {
			s.log.Warn("cannot accept a connection", slog.Any("error", err))
			wait(s.ctx, 100*time.Millisecond)
			continue
		}
		s.wg.Go(func() { s.welcome(conn) })
	}
}

// welcome takes an inbound connection through the handshake and serves it.
func (s *stream) welcome(raw net.Conn) {
	counted := &countedConn{Conn: raw, sent: &s.sent, received: &s.received}
	if !s.keep("", counted, maxHandshakes) {
		return
	}
	conn, link, from, err := s.greet(counted)
	s.drop("", counted)
	if err != nil {
		s.refusals.Add(1)
		s.log.Debug("refused a connection", slog.String("from", raw.RemoteAddr().String()), slog.Any("error", err))
		_ = counted.Close() // refused anyway
		return
	}
	tracked := &trackedConn{Conn: conn}
	tracked.done = func() { s.drop(from.name(), tracked) }
	if !s.keep(from.name(), tracked, maxConnsPerPeer) {
		return
	}
	if link == linkRaft {
		select {
		case s.raftIn <- tracked:
		case <-s.ctx.Done():
			_ = tracked.Close() // closing
		}
		return
	}
	s.handle(s.ctx, link, from, tracked)
	_ = tracked.Close() // served
}

// greet does the accepting half of the handshake.
func (s *stream) greet(raw net.Conn) (net.Conn, byte, serverID, error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, 0, "", err
	}
	conn := raw
	if s.certs != nil {
		secured := tls.Server(raw, s.certs.server())
		if err := secured.HandshakeContext(s.ctx); err != nil {
			return nil, 0, "", err
		}
		conn = secured
	}
	link, h, err := readHello(conn)
	if err != nil {
		return nil, 0, "", err
	}
	me := s.local()
	if no := s.judge(link, h, me, conn); no != nil {
		return nil, 0, "", errors.Join(no, writeFrame(conn, welcomeFrame{ID: me.id, Lineage: me.lineage, Refusal: no}))
	}
	if err := writeFrame(conn, welcomeFrame{ID: me.id, Lineage: me.lineage}); err != nil {
		return nil, 0, "", err
	}
	return conn, link, h.From, conn.SetDeadline(time.Time{})
}

// judge returns why a hello is refused, nil if it is not.
func (s *stream) judge(link byte, h hello, me identity, conn net.Conn) *refusal {
	name := h.From.name()
	addr, known := s.peers[name]
	switch {
	case h.Version != helloVersion:
		return &refusal{Code: refusedVersion, Text: fmt.Sprintf("link version %d, here %d", h.Version, helloVersion)}
	case h.Operator != s.operator:
		return &refusal{Code: refusedName, Text: fmt.Sprintf("this node belongs to %q, not to %q", s.operator, h.Operator)}
	case !known:
		return &refusal{Code: refusedName, Text: fmt.Sprintf("node %q is not among the peers of %q", name, me.id.name())}
	case h.To != "" && h.To != me.id:
		return &refusal{Code: refusedID, Text: fmt.Sprintf("this is %s, not %s", me.id, h.To)}
	case link != linkControl && (h.Lineage == "" || me.lineage == ""):
		return &refusal{Code: refusedEarly, Text: fmt.Sprintf("node %s or node %s has not found its group yet",
			me.id.name(), name)}
	case link != linkControl && h.Lineage != me.lineage:
		return &refusal{Code: refusedLineage, Text: fmt.Sprintf("node %s has the log %q, node %s has %q: "+
			"one of them is of another life; empty the data folder of the wrong one",
			me.id.name(), me.lineage, name, h.Lineage)}
	}
	if secured, ok := conn.(*tls.Conn); ok {
		if err := verifyName(secured.ConnectionState(), name, addr); err != nil {
			return &refusal{Code: refusedName, Text: err.Error()}
		}
	}
	return nil
}

// dial connects to a peer and says hello. to is the server id that is meant, or a bare node's name for whoever has it.
func (s *stream) dial(ctx context.Context, link byte, to serverID) (net.Conn, error) {
	name := to.name()
	addr, ok := s.peers[name]
	if !ok {
		return nil, fmt.Errorf("node %q is not among the peers", name)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := s.dialer(ctx, addr)
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: &countedConn{Conn: raw, sent: &s.sent, received: &s.received}}
	tracked.done = func() { s.forget(tracked) }
	if !s.remember(tracked) {
		return nil, net.ErrClosed
	}
	stop := context.AfterFunc(ctx, func() { _ = tracked.Close() }) // the read below then fails
	conn, err := s.introduce(ctx, tracked, link, name, addr, to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = tracked.Close() // the error is the one to tell
		return nil, fmt.Errorf("node %s at %s: %w", name, addr, err)
	}
	return conn, nil
}

// introduce does the dialing half of the handshake.
func (s *stream) introduce(ctx context.Context, tracked *trackedConn, link byte, name, addr string,
	to serverID,
) (net.Conn, error) {
	var conn net.Conn = tracked
	if s.certs != nil {
		secured := tls.Client(tracked, s.certs.client(name, addr))
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secured
	}
	me := s.local()
	h := hello{Version: helloVersion, Operator: s.operator, Lineage: me.lineage, From: me.id}
	if string(to) != name {
		h.To = to
	}
	if err := writeHello(conn, link, h); err != nil {
		return nil, err
	}
	var answer welcomeFrame
	if err := readFrame(conn, &answer); err != nil {
		return nil, err
	}
	if answer.Refusal != nil {
		s.refusedBy(name, answer.Refusal)
		return nil, answer.Refusal
	}
	if link == linkRaft {
		s.refusedBy(name, nil)
	}
	return conn, nil
}

// keep adds an inbound connection to those of a peer and closes the oldest if there are too many. It reports whether
// the stream is still open.
func (s *stream) keep(peer string, conn net.Conn, most int) bool {
	var oldest net.Conn
	s.mu.Lock()
	closed := s.closed
	if !closed {
		if len(s.conns[peer]) >= most {
			oldest = s.conns[peer][0]
		}
		s.conns[peer] = append(s.conns[peer], conn)
	}
	s.mu.Unlock()
	if closed {
		_ = conn.Close() // arrived while closing
	}
	if oldest != nil {
		s.refusals.Add(1)
		s.drop(peer, oldest)
		_ = oldest.Close() // it gives way
	}
	return !closed
}

func (s *stream) drop(peer string, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := s.conns[peer]
	for i, c := range conns {
		if c == conn {
			s.conns[peer] = append(conns[:i:i], conns[i+1:]...)
			return
		}
	}
}

func (s *stream) remember(conn net.Conn) bool {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.dialed[conn] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		_ = conn.Close() // dialed while closing
	}
	return !closed
}

func (s *stream) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dialed, conn)
}

// countedConn counts the bytes of a link as they are on the wire.
type countedConn struct {
	net.Conn
	sent, received *atomic.Int64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// trackedConn tells when it is closed.
type trackedConn struct {
	net.Conn
	once sync.Once
	done func()
}

func (c *trackedConn) Close() error {
	c.once.Do(c.done)
	return c.Conn.Close()
}

// raftStream is the stream as Raft sees it.
type raftStream struct {
	*stream
	self serverID
}

// Accept implements net.Listener.
func (r raftStream) Accept() (net.Conn, error) {
	select {
	case conn := <-r.raftIn:
		return conn, nil
	case <-r.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The stream outlives Raft: its owner closes it.
func (raftStream) Close() error { return nil }

// Addr implements net.Listener: the server id is the address.
func (r raftStream) Addr() net.Addr { return serverAddr(r.self) }

// Dial implements raft.StreamLayer.
func (r raftStream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	return r.dial(ctx, linkRaft, serverID(to))
}

// serverAddr is a server id as a net.Addr.
type serverAddr serverID

func (serverAddr) Network() string  { return "ftproxy" }
func (a serverAddr) String() string { return string(a) }

// wait returns after d or when ctx ends, whichever is first, and reports whether ctx is still alive.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
