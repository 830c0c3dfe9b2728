package tcpio

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// SinkConfig configures a Sink. Zero values of the limits mean their defaults.
type SinkConfig struct {
	// Name is the configured sink's name.
	Name string
	// Address is the receiver's "host:port". The host is resolved at every dial.
	Address string
	Framing Framing
	// Replies: RepliesNone or RepliesAck.
	Replies Replies
	// JSON: each tuple is sent as a JSON object with all it carries, instead of the bare value.
	JSON bool
	// Idempotent declares that the receiver drops tuples that it already has. It changes nothing but Guarantee.
	Idempotent bool
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config
	// Window is how many tuples are sent before their replies are awaited, and so how many may come again after a
	// failure. Default 256.
	Window int
	// MaxAttempts is how often a tuple is sent that gets "error" or no reply, before it becomes a dead letter. 0: for
	// ever. Attempts to connect do not count.
	MaxAttempts int
	// ReplyTimeout is the longest wait for the next reply, and for a write to go on. Default 30 s.
	ReplyTimeout time.Duration
	// MaxReplyBytes bounds a reply. Default 64 KiB.
	MaxReplyBytes int
	Logger        *slog.Logger
}

// Sink sends tuples to a TCP server. It implements proxy.Sink.
type Sink struct {
	c        SinkConfig
	trouble  atomic.Pointer[error]
	failures atomic.Uint64
	mutant   sinkMutant
}

// sinkMutant switches protections off, for the tests that show what each is for.
type sinkMutant struct {
	ackAfterWrite bool // without replies, move the cursor after the bytes
	blameIdle     bool // count a connection that broke while idle as a failed attempt
	keepWindow    bool // after a failure go on sending many tuples at once
	ackUnreplied  bool // do not wait for replies
}

// NewSink checks c and returns a sink that is not yet connected.
func NewSink(c SinkConfig) (*Sink, error) {
	if c.Name == "" || c.Logger == nil {
		return nil, errors.New("a TCP sink needs a name and a logger")
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w; write tcp://host:7000", c.Address, err)
	}
	if host == "" {
		return nil, fmt.Errorf("address %q has no host; write tcp://host:7000", c.Address)
	}
	if c.Replies == RepliesSession {
		return nil, errors.New("a TCP sink has no sessions; use replies=ack, or an ftproxy:// sink for precise delivery")
	}
	setDefault(&c.Window, 256)
	setDefault(&c.ReplyTimeout, 30*time.Second)
	setDefault(&c.MaxReplyBytes, 64<<10)
	if c.Window < 0 || c.MaxAttempts < 0 || c.ReplyTimeout < 0 || c.MaxReplyBytes < 0 {
		return nil, errors.New("limits of a TCP sink must be above 0")
	}
	if c.TLS != nil && c.TLS.ServerName == "" {
		c.TLS = c.TLS.Clone()
		c.TLS.ServerName = host
	}
	c.Logger = c.Logger.With(slog.String("sink", c.Name), slog.String("address", c.Address))
	return &Sink{c: c}, nil
}

// Guarantee says in words what holds at this edge, and on what condition.
func (s *Sink) Guarantee() string {
	switch {
	case s.c.Replies == RepliesNone:
		return "gap: without replies nobody knows what arrived, so a tuple is sent at most once, and what is under way is " +
			"lost with a connection; for more set replies=ack"
	case s.c.Idempotent:
		return "precise, since the receiver drops what it already has (FTPROXY_SINK_IDEMPOTENT=true says so)"
	}
	return fmt.Sprintf("rollback: after a failure up to %d tuples come again, in order; precise if the receiver drops "+
		"repeats and FTPROXY_SINK_IDEMPOTENT=true says so", s.c.Window)
}

// Trouble is what keeps tuples from being delivered right now; nil if nothing does.
func (s *Sink) Trouble() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Failures counts the connections and attempts that failed since the process started.
func (s *Sink) Failures() uint64 { return s.failures.Load() }

// Check connects, and closes the connection again.
func (s *Sink) Check(ctx context.Context) ([]string, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	what := "tcp sink " + s.c.Name + ": "
	return []string{what + "connects to " + s.c.Address, what + s.Guarantee()}, conn.Close()
}

// Run delivers until ctx ends or the tenure does.
func (s *Sink) Run(ctx context.Context, out proxy.Outlet) error {
	cursor, err := out.Cursor(ctx)
	if err != nil {
		return err
	}
	d := &delivery{Sink: s, out: out, after: cursor.Acked}
	defer d.hangUp()
	for {
		stored, err := out.Read(ctx, d.after, readBytes)
		if err != nil {
			return err
		}
		items, err := d.decode(stored)
		if err != nil {
			return err
		}
		switch {
		case len(items) == 0:
			return fmt.Errorf("%w: nothing above offset %d was read", logbuffer.ErrCorrupt, d.after)
		case s.c.Replies == RepliesNone:
			err = d.once(ctx, items)
		default:
			err = d.untilReplied(ctx, items)
		}
		if err != nil {
			return err
		}
	}
}

const (
	readBytes   = 256 << 10
	dialTimeout = 10 * time.Second
)

func retryWaits() proxy.Backoff {
	return proxy.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
}

func (s *Sink) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{}
	conn, err := d.DialContext(ctx, "tcp", s.c.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w; is the receiver running?", s.c.Address, err)
	}
	if s.c.TLS == nil {
		return conn, nil
	}
	secure := tls.Client(conn, s.c.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot connect to %s: TLS: %w", s.c.Address, err)
	}
	return secure, nil
}

// connect dials until it succeeds or ctx ends.
func (s *Sink) connect(ctx context.Context) (net.Conn, error) {
	retry := retryWaits()
	for failed := false; ; failed = true {
		conn, err := s.dial(ctx)
		if err == nil {
			if failed {
				s.trouble.Store(nil)
			}
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.trouble.Store(&err)
		s.failures.Add(1)
		s.c.Logger.WarnContext(ctx, "sink cannot connect", slog.String("error", err.Error()))
		if err := retry.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// item is one tuple, ready to be sent.
type item struct {
	offset uint64
	bytes  []byte // with framing
	batch  *logbuffer.Batch
	tuple  *logbuffer.Tuple
	err    error // it can never be sent
}

func (d *delivery) decode(stored []logbuffer.Stored) ([]item, error) {
	var items []item
	for _, st := range stored {
		b, err := st.Decode()
		if err != nil {
			return nil, err
		}
		for i := range b.Tuples {
			it := item{offset: st.First + uint64(i), batch: &b, tuple: &b.Tuples[i]}
			if it.offset <= d.after { // the middle of a batch was acked
				continue
			}
			payload := it.tuple.Value
			if d.c.JSON {
				payload, it.err = encodeJSON(fmt.Sprintf("%s/%d", d.out.Lineage(), it.offset), it.batch, it.tuple)
			}
			if it.err == nil {
				it.bytes, it.err = d.c.Framing.join(nil, payload)
			}
			items = append(items, it)
		}
	}
	return items, nil
}

func (it *item) letter(reason string, attempts int) logbuffer.Letter {
	return logbuffer.Letter{
		From: it.offset, Reason: reason, Attempts: attempts,
		Source: it.batch.Source, Partition: it.batch.Partition, Sink: it.batch.Sink, Tuple: *it.tuple,
	}
}
