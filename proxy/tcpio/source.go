package tcpio

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ftproxy/proxy"
)

// Replies says what a source answers, and whether a sink waits for answers; see the package's documentation.
type Replies uint8

const (
	// RepliesNone means that nothing is answered.
	RepliesNone Replies = iota
	// RepliesAck means that each tuple is answered, in order.
	RepliesAck
	// RepliesSession is RepliesAck, with tuples numbered within a session that outlives connections. Sources only.
	RepliesSession
)

// SourceConfig configures a Source. Zero values of the limits mean their defaults.
type SourceConfig struct {
	// Name is the configured source's name. It becomes the tuples' source id, unless a session does.
	Name string
	// Listen is the address to listen on, "host:port"; the host may be empty.
	Listen  string
	Framing Framing
	Replies Replies
	// JSON: each tuple is a JSON object with key, value, headers and time, instead of the bare value.
	JSON bool
	// ID says where a tuple's id for deduplication stands.
	ID proxy.IDRule
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config
	// MaxTupleBytes bounds a tuple as sent, without framing. Default 1 MiB.
	MaxTupleBytes int
	// MaxMemory bounds the bytes that all connections together hold beyond 16 KiB each. Default 32 MiB; one tuple of
	// the largest size always fits.
	MaxMemory int64
	// MaxConnections bounds the open connections. Default 1000.
	MaxConnections int
	// IdleTimeout closes a connection that sends nothing for so long. Default 10 minutes; negative: never.
	IdleTimeout time.Duration
	// TupleTimeout is the longest a tuple may take from its first byte to its last. Default 30 s.
	TupleTimeout time.Duration
	// AckTimeout is the longest a tuple with a reply waits to become durable before "error" is replied. Default 30 s.
	AckTimeout time.Duration
	// Grace is the longest that tuples already read may take to become durable after the source is told to stop.
	// Default 5 s.
	Grace  time.Duration
	Logger *slog.Logger
}

// SourceStats counts what a source did since the process started.
type SourceStats struct {
	// Connections are open now, Refused were ended by the source, for what the client did or for lack of room.
	Connections, Refused uint64
	// Tuples were made durable, WithoutID of them have no id although a rule for ids is set.
	Tuples, WithoutID uint64
}

// Source listens for tuples. It implements proxy.Source.
type Source struct {
	c     SourceConfig
	slots slots
	bound atomic.Pointer[net.Addr]
	open  atomic.Int64 // connections

	refused, tuples, withoutID atomic.Uint64

	mutant sourceMutant
	log    refusalLog
}

// sourceMutant switches protections off, for the tests that show what each is for.
type sourceMutant struct {
	takeCutLines bool // take what stands before the end of the connection for a whole line
	noSlots      bool // give every connection all the memory that it asks for
	unnumbered   bool // do not number the tuples of a session
}

// NewSource checks c and returns a source that is not yet listening.
func NewSource(c SourceConfig) (*Source, error) {
	if c.Name == "" || c.Logger == nil {
		return nil, errors.New("a TCP source needs a name and a logger")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return nil, fmt.Errorf("address %q: %w; write tcp://:7000 or tcp://host:7000", c.Listen, err)
	}
	setDefault(&c.MaxTupleBytes, 1<<20)
	setDefault(&c.MaxMemory, 32<<20)
	setDefault(&c.MaxConnections, 1000)
	setDefault(&c.IdleTimeout, 10*time.Minute)
	setDefault(&c.TupleTimeout, 30*time.Second)
	setDefault(&c.AckTimeout, 30*time.Second)
	setDefault(&c.Grace, 5*time.Second)
	if c.MaxTupleBytes < 0 || c.MaxMemory < 0 || c.MaxConnections < 0 || c.TupleTimeout < 0 || c.AckTimeout < 0 {
		return nil, errors.New("limits of a TCP source must be above 0")
	}
	c.Logger = c.Logger.With(slog.String("source", c.Name))
	return &Source{c: c, slots: newSlots(c.MaxMemory, c.MaxTupleBytes), log: refusalLog{logger: c.Logger}}, nil
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Addr returns the address that the source listens on, nil while it does not.
func (s *Source) Addr() net.Addr {
	if a := s.bound.Load(); a != nil {
		return *a
	}
	return nil
}

// Stats returns the counters.
func (s *Source) Stats() SourceStats {
	return SourceStats{
		Connections: uint64(s.open.Load()), Refused: s.refused.Load(), Tuples: s.tuples.Load(), WithoutID: s.withoutID.Load(),
	}
}

// Guarantee says in words what holds at this edge, and on what condition.
func (s *Source) Guarantee() string {
	switch {
	case s.c.Replies == RepliesSession:
		return "precise, if the client resumes its session and sends on from the number that is due"
	case s.c.Replies == RepliesAck && s.c.ID.Wanted():
		return "precise within the id window, if every tuple has its id and the client repeats what was not answered ok"
	case s.c.Replies == RepliesAck:
		return "rollback: the client repeats what was not answered ok, and nothing tells a repeat from a new tuple; " +
			"for more set replies=session, or FTPROXY_DEDUP to an id in the tuple"
	}
	return "gap: without replies the client cannot know what to repeat, so what is under way is lost with a connection; " +
		"for more set replies=ack or replies=session"
}

// Check binds the listener for a moment.
func (s *Source) Check(ctx context.Context) ([]string, error) {
	l, err := s.listen(ctx)
	if err != nil {
		return nil, err
	}
	what := "tcp source " + s.c.Name + ": "
	return []string{what + "listens on " + l.Addr().String(), what + s.Guarantee()}, l.Close()
}

func (s *Source) listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.c.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for %s: %w; is another process using the port?", s.c.Name, err)
	}
	return l, nil
}

// Run listens until ctx ends. Then it accepts and reads no more, answers what it has read, and returns.
func (s *Source) Run(ctx context.Context, in proxy.Intake) error {
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	addr := l.Addr()
	s.bound.Store(&addr)
	defer s.bound.Store(nil)

	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	defer context.AfterFunc(reading, func() { _ = l.Close() })()

	var clients sync.WaitGroup
	err = s.accept(reading, l, func(conn net.Conn) {
		clients.Go(func() { s.serve(reading, working, conn, in) })
	})
	stopReading()
	defer time.AfterFunc(s.c.Grace, stopWorking).Stop()
	clients.Wait()
	return err
}

// accept hands out connections, at most MaxConnections at a time, until ctx ends.
func (s *Source) accept(ctx context.Context, l net.Listener, start func(net.Conn)) error {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil && s.open.Load() >= int64(s.c.MaxConnections):
			s.turnAway(conn)
		case err == nil:
			s.open.Add(1)
			start(conn)
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the listener was closed because ctx ended
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("listening for %s: %w", s.c.Name, err)
		default: // out of descriptors, or the client was gone already
			s.log.warn("cannot accept a connection", nil, err)
			if !sleep(ctx, acceptPause) {
				return nil
			}
		}
	}
}

const acceptPause = 50 * time.Millisecond

// turnAway refuses a connection without starting anything for it.
func (s *Source) turnAway(conn net.Conn) {
	s.refused.Add(1)
	s.log.warn("connection refused", conn, fmt.Errorf("more than %d connections", s.c.MaxConnections))
	if s.c.Replies != RepliesNone && s.c.TLS == nil {
		reply, err := s.c.Framing.join(nil, []byte("error too many connections"))
		if err == nil && conn.SetWriteDeadline(time.Now().Add(acceptPause)) == nil {
			_, _ = conn.Write(reply) // a courtesy; closing says the same
		}
	}
	_ = conn.Close()
}

// sleep waits for d and tells whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
