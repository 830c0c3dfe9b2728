package tcpio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// delivery is one run of a sink.
//
//	after ──▶ │ sent, replies awaited (≤ window) │ ──▶ not yet sent
//	         acked                              next
type delivery struct {
	*Sink
	out   proxy.Outlet
	after uint64 // everything up to it is acked

	conn    net.Conn
	fresh   bool // nothing was answered on this connection yet
	replies replyReader
	gone    chan struct{} // without replies: closed when the receiver closes

	attempts int // of the first tuple above after, so far
	watchers sync.WaitGroup
}

func (d *delivery) hangUp() {
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
	d.watchers.Wait()
}

// once sends items without ever repeating one: the cursor moves first. It waits for a connection before that, so that
// only what is under way when one breaks is lost.
func (d *delivery) once(ctx context.Context, items []item) error {
	if err := d.ensureWatched(ctx); err != nil {
		return err
	}
	var out []byte
	ack := logbuffer.Ack{UpTo: items[len(items)-1].offset}
	for i := range items {
		if items[i].err != nil {
			ack.Dead = append(ack.Dead, items[i].letter(items[i].err.Error(), 0))
			continue
		}
		out = append(out, items[i].bytes...)
	}
	if d.mutant.ackAfterWrite {
		defer d.ack(ctx, ack) //nolint:errcheck // a mutant
	} else if err := d.ack(ctx, ack); err != nil {
		return err
	}
	// From here the tuples are gone from the buffer: they are written even if ctx ends now.
	if err := d.write(out); err != nil {
		d.c.Logger.WarnContext(ctx, "connection broke; its last tuples may be lost, since the receiver does not reply",
			slog.Int("tuples", len(items)), slog.String("error", err.Error()))
		d.hangUp()
	}
	return nil
}

// ensureWatched connects if there is no connection or the receiver has closed it.
func (d *delivery) ensureWatched(ctx context.Context) error {
	if d.conn != nil {
		select {
		case <-d.gone:
			d.hangUp()
		default:
			return nil
		}
	}
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	d.conn, d.gone = conn, gone
	d.watchers.Go(func() { // ends with the connection, which hangUp closes
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn)
	})
	return nil
}

func (d *delivery) write(p []byte) error {
	for len(p) > 0 {
		if err := d.conn.SetWriteDeadline(time.Now().Add(d.c.ReplyTimeout)); err != nil {
			return err
		}
		n, err := d.conn.Write(p[:min(len(p), readBytes)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// untilReplied sends items in order, window by window, and again what was not answered. After a failure one tuple is
// sent at a time until it is answered, so that only a tuple on its own gets a final verdict.
func (d *delivery) untilReplied(ctx context.Context, items []item) error {
	retry := retryWaits()
	for len(items) > 0 {
		if items[0].err != nil {
			if err := d.bury(ctx, &items[0], items[0].err.Error()); err != nil {
				return err
			}
			items = items[1:]
			continue
		}
		answered, failure, err := d.window(ctx, d.next(items))
		if err != nil {
			return err
		}
		d.trouble.Store(nil)
		if answered > 0 {
			if err := d.ack(ctx, logbuffer.Ack{UpTo: items[answered-1].offset}); err != nil {
				return err
			}
			items, d.attempts = items[answered:], 0
			retry.Reset()
		}
		if failure == nil {
			continue
		}
		if len(items) > 0 && d.exhausted(failure) {
			if err := d.bury(ctx, &items[0], failure.Error()); err != nil {
				return err
			}
			items = items[1:]
			continue
		}
		d.trouble.Store(&failure)
		d.failures.Add(1)
		d.c.Logger.WarnContext(ctx, "delivery failed", slog.Uint64("acked", d.after), slog.Int("attempts", d.attempts),
			slog.String("error", failure.Error()))
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// next returns the items to send together.
func (d *delivery) next(items []item) []item {
	if d.attempts > 0 && !d.mutant.keepWindow {
		return items[:1]
	}
	n := 0
	for n < min(len(items), d.c.Window) && items[n].err == nil {
		n++
	}
	return items[:n]
}

// exhausted counts a failed attempt of a tuple and tells whether it was the last one. A connection that broke before it
// answered anything new is no attempt, unless it was made for this one: the receiver may have closed it while idle.
func (d *delivery) exhausted(failure error) bool {
	_, refused := errors.AsType[*refusal](failure)
	if !refused && !d.fresh && !d.mutant.blameIdle {
		return false
	}
	d.attempts++
	return d.c.MaxAttempts > 0 && d.attempts >= d.c.MaxAttempts
}

func (d *delivery) bury(ctx context.Context, it *item, reason string) error {
	letter := it.letter(reason, d.attempts)
	d.attempts = 0
	d.c.Logger.WarnContext(ctx, "tuple becomes a dead letter", slog.Uint64("offset", it.offset),
		slog.String("reason", reason))
	return d.ack(ctx, logbuffer.Ack{UpTo: it.offset, Dead: []logbuffer.Letter{letter}})
}

func (d *delivery) ack(ctx context.Context, ack logbuffer.Ack) error {
	if err := d.out.Ack(ctx, ack); err != nil {
		return err
	}
	d.after = ack.UpTo
	return nil
}

// window sends items and reads their replies. failure says why the first one that is not answered is not; err ends the
// run.
func (d *delivery) window(ctx context.Context, items []item) (answered int, failure, err error) {
	if d.conn == nil {
		if d.conn, err = d.connect(ctx); err != nil {
			return 0, nil, err
		}
		d.fresh = true
		d.replies = replyReader{conn: d.conn, framing: d.c.Framing, maxBytes: d.c.MaxReplyBytes, wait: d.c.ReplyTimeout}
	}
	conn := d.conn
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	var out []byte
	for i := range items {
		out = append(out, items[i].bytes...)
	}
	var writing sync.WaitGroup
	var writeErr error
	writing.Go(func() { // beside the reading, else two full pipes would wait for each other
		if writeErr = d.write(out); writeErr != nil {
			_ = conn.Close()
		}
	})
	for failure == nil && answered < len(items) {
		if d.mutant.ackUnreplied {
			answered++
		} else if failure = d.replies.next(); failure == nil {
			answered++
		}
	}
	if failure == nil && len(d.replies.buf) > 0 {
		failure = errors.New("the receiver replies more than once a tuple; does it greet? use replies=none")
	}
	if failure != nil {
		_ = conn.Close()
	}
	writing.Wait()
	switch {
	case ctx.Err() != nil: // it was closed under us: no verdict on anything
		d.conn = nil
		return answered, nil, context.Cause(ctx)
	case failure == nil:
		d.fresh = false
	default:
		d.conn = nil
		d.fresh = d.fresh || answered > 0
		if _, refused := errors.AsType[*refusal](failure); !refused && writeErr != nil {
			failure = fmt.Errorf("%w (%w)", failure, writeErr)
		}
	}
	return answered, failure, nil
}

// replyReader reads replies, one a tuple.
type replyReader struct {
	conn     net.Conn
	framing  Framing
	maxBytes int
	wait     time.Duration
	buf      []byte
}

// next waits for one reply. A *refusal is the receiver's own "error …".
func (r *replyReader) next() error {
	for {
		payload, size, err := r.framing.split(r.buf, 0, r.maxBytes)
		if err != nil {
			return fmt.Errorf("reply longer than %d bytes", r.maxBytes)
		}
		if size > 0 {
			r.buf = r.buf[size:]
			if bytes.HasPrefix(bytes.ToLower(payload[:min(len(payload), 5)]), []byte("error")) {
				return &refusal{"the receiver replied: " + string(payload[:min(len(payload), 500)])}
			}
			return nil
		}
		if err = r.conn.SetReadDeadline(time.Now().Add(r.wait)); err != nil {
			return err
		}
		chunk := make([]byte, 4<<10)
		n, err := r.conn.Read(chunk)
		r.buf = append(r.buf, chunk[:n]...)
		if err != nil && n == 0 {
			return fmt.Errorf("no reply: %w", err)
		}
	}
}
