package tcpio

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

const (
	handshakeTimeout = 10 * time.Second
	replyTimeout     = 10 * time.Second // for a client that does not read its replies
	minAppendPause   = 20 * time.Millisecond
	maxAppendPause   = time.Second
)

// client is one connection of a source: read, append, reply, in turn. Nothing is read while an Append is under way,
// which is all the back-pressure there is.
type client struct {
	*Source
	conn    net.Conn
	scan    *scanner
	in      proxy.Intake
	session string
	next    int64 // with a session: the position due
	taken   int64 // tuples of this connection that are durable
}

// serve reads until reading ends or the client does; what was read is appended and answered until working ends.
func (s *Source) serve(reading, working context.Context, conn net.Conn, in proxy.Intake) {
	defer s.open.Add(-1)
	defer conn.Close() //nolint:errcheck // everything that matters was answered before
	if s.c.TLS != nil {
		secure := tls.Server(conn, s.c.TLS)
		ctx, cancel := context.WithTimeout(reading, handshakeTimeout)
		err := secure.HandshakeContext(ctx)
		cancel()
		if err != nil {
			s.refused.Add(1)
			s.log.warn("connection refused", conn, fmt.Errorf("TLS handshake: %w", err))
			return
		}
		conn = secure
	}
	defer context.AfterFunc(reading, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	defer context.AfterFunc(working, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	c := &client{Source: s, conn: conn, scan: newScanner(conn, s), in: in}
	defer c.scan.release()
	if err := c.loop(reading, working); !errors.Is(err, io.EOF) {
		c.refuse(reading, err)
	}
}

// loop returns why the connection ends: io.EOF if the client has ended it between two tuples.
func (c *client) loop(reading, working context.Context) error {
	if c.c.Replies == RepliesSession {
		if err := c.greet(reading, working); err != nil {
			return err
		}
	}
	for {
		payloads, err := c.scan.next(reading, batchCount)
		if err != nil {
			return err
		}
		if err := c.take(working, payloads); err != nil {
			return err
		}
	}
}

// greet reads "session" or "session <id>" and answers with the session's id and the position due.
func (c *client) greet(reading, working context.Context) error {
	first, err := c.scan.next(reading, 1)
	if err != nil {
		return err
	}
	words := strings.Fields(string(first[0]))
	if len(words) < 1 || len(words) > 2 || words[0] != "session" {
		return &refusal{`the first tuple must be "session" or "session <id>"`}
	}
	ctx, cancel := context.WithTimeout(working, c.c.AckTimeout)
	defer cancel()
	if len(words) == 1 {
		c.session, err = c.in.OpenSession(ctx)
	} else {
		c.session = words[1]
		c.next, _, err = c.in.Position(ctx, c.session)
	}
	if err != nil {
		return &refusal{"no session: " + err.Error()}
	}
	c.next++
	return c.reply([]string{fmt.Sprintf("session %s %d", c.session, c.next)})
}

// take makes the tuples durable and answers them. When one cannot be read, those before it are still taken.
func (c *client) take(working context.Context, payloads [][]byte) error {
	batch, invalid := c.batch(payloads)
	if len(batch.Tuples) > 0 {
		if err := c.append(working, batch); err != nil {
			return err
		}
		if err := c.confirm(len(batch.Tuples)); err != nil {
			return err
		}
	}
	return invalid
}

func (c *client) batch(payloads [][]byte) (b logbuffer.Batch, invalid error) {
	b = logbuffer.Batch{Source: "tcp/" + c.c.Name, Tuples: make([]logbuffer.Tuple, 0, len(payloads))}
	if c.session != "" && !c.mutant.unnumbered {
		b.Source, b.Rule = c.session, logbuffer.RuleSession
	}
	for _, p := range payloads {
		t := logbuffer.Tuple{Value: p}
		if c.c.JSON {
			if t, invalid = decodeJSON(p); invalid != nil {
				break
			}
		}
		if c.session != "" {
			t.Position = c.next + int64(len(b.Tuples))
		}
		if c.c.ID.Wanted() {
			id, ok := c.c.ID.ID(c.c.Name, &t)
			if !ok { // it is admitted all the same
				c.withoutID.Add(1)
			}
			b.IDs = append(b.IDs, id)
		}
		b.Tuples = append(b.Tuples, t)
	}
	return b, invalid
}

// append waits until the batch is durable. A definite no is asked again: with replies until AckTimeout, without until
// the source stops, since nobody could be told.
func (c *client) append(working context.Context, b logbuffer.Batch) error {
	ctx := working
	if c.c.Replies != RepliesNone {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(working, c.c.AckTimeout)
		defer cancel()
	}
	pause := proxy.Backoff{Min: minAppendPause, Max: maxAppendPause}
	for {
		receipts, err := c.in.Append(ctx, b)
		switch {
		case err == nil:
			return judge(receipts)
		case !errors.Is(err, logbuffer.ErrUnavailable):
			return &refusal{err.Error()}
		case pause.Wait(ctx) != nil:
			return &refusal{err.Error() + "; send it again"}
		}
	}
}

func judge(receipts []logbuffer.Receipt) error {
	if len(receipts) != 1 {
		return fmt.Errorf("%w: %d receipts for one batch", logbuffer.ErrUnknown, len(receipts))
	}
	switch r := receipts[0]; r.Code {
	case logbuffer.CodeDone:
		return nil
	case logbuffer.CodeExpired:
		return &refusal{"session unknown or expired; open a new one"}
	case logbuffer.CodeGap:
		return &refusal{fmt.Sprintf("tuple %d of the session is due; does another connection use it?", r.Expected)}
	default:
		return fmt.Errorf("%w: verdict %d", logbuffer.ErrUnknown, r.Code)
	}
}

func (c *client) confirm(n int) error {
	c.next += int64(n)
	c.tuples.Add(uint64(n))
	if c.c.Replies == RepliesNone {
		c.taken += int64(n)
		return nil
	}
	texts := make([]string, n)
	for i := range texts {
		c.taken++
		texts[i] = fmt.Sprintf("ok %d", c.taken)
	}
	return c.reply(texts)
}

func (c *client) reply(texts []string) error {
	var out []byte
	for _, t := range texts {
		var err error
		if out, err = c.c.Framing.join(out, []byte(t)); err != nil {
			return err
		}
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(out)
	return err
}

// refuse tells the client why its connection ends, if it is to be told anything, and the log.
func (c *client) refuse(reading context.Context, err error) {
	why, forClient := errors.AsType[*refusal](err)
	if reading.Err() != nil {
		why, forClient = &refusal{"shutting down; send it again to another replica, or later"}, true
	} else {
		c.refused.Add(1)
		c.log.warn("connection ended", c.conn, err)
	}
	if !forClient || c.c.Replies == RepliesNone {
		return
	}
	text := strings.ReplaceAll(why.text, "\n", " ")
	if c.reply([]string{fmt.Sprintf("error tuple %d: %s", c.taken+1, text)}) != nil {
		return
	}
	c.letRead()
}

// letRead gives the client a chance to read the last reply: closing a connection with unread bytes resets it, and a
// reset discards what is on its way.
func (c *client) letRead() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	if c.conn.SetReadDeadline(time.Now().Add(lastReply)) == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c.conn, lastBytes))
	}
}

const (
	lastReply = 500 * time.Millisecond
	lastBytes = 4 << 20
)

// refusalLog writes at most one line a second, and how many it left out: clients must not be able to fill the log.
type refusalLog struct {
	logger *slog.Logger
	mu     sync.Mutex
	last   time.Time
	quiet  int
}

func (l *refusalLog) warn(msg string, conn net.Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < time.Second {
		l.quiet++
		return
	}
	var client string
	if conn != nil {
		client = conn.RemoteAddr().String()
	}
	l.logger.Warn(msg, slog.String("client", client), //nolint:sloglint // msg is one of three constants
		slog.String("error", err.Error()), slog.Int("left_out", l.quiet))
	l.last, l.quiet = time.Now(), 0
}
