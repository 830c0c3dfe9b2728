package tcpio

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

const (
	baseBytes  = 16 << 10  // every connection has this much
	batchBytes = 256 << 10 // a busy connection reads up to this much at once
	batchCount = 4096      // tuples in one batch
)

// slots bounds the connections that have more than baseBytes. A slot stands for the memory of the largest tuple and is
// taken at once, never in steps, so that no two connections can wait for each other.
type slots chan struct{}

// scanner cuts a connection's bytes into tuples. It blocks only while there is no complete tuple, so that a batch is
// whatever has arrived meanwhile: one tuple from a client that waits for each reply, many from one that does not.
type scanner struct {
	conn     net.Conn
	framing  Framing
	maxBytes int
	idle     time.Duration // longest wait for the first byte of a tuple; 0: none
	slow     time.Duration // longest time from a tuple's first byte to its last
	slots    slots

	buf     []byte // received and not yet cut
	from    int    // buf[:from] has no line feed
	handed  bool   // tuples that were given out share buf's memory
	full    bool   // the last read filled the memory: more is waiting
	held    bool   // this connection has a slot
	mutant  sourceMutant
	partial time.Time
}

func newScanner(conn net.Conn, s *Source) *scanner {
	c := &s.c
	return &scanner{
		conn: conn, framing: c.Framing, maxBytes: c.MaxTupleBytes, idle: c.IdleTimeout, slow: c.TupleTimeout,
		slots: s.slots, buf: make([]byte, 0, baseBytes), mutant: s.mutant,
	}
}

// next returns the tuples that have arrived, at least one and at most limit; their memory is the caller's. io.EOF means
// that the connection ended between two tuples; a *refusal is for the client to read.
func (s *scanner) next(ctx context.Context, limit int) ([][]byte, error) {
	for {
		payloads, err := s.cut(limit)
		if len(payloads) > 0 { // an error behind them comes up again at the next call
			return payloads, nil
		}
		if err != nil {
			return nil, err
		}
		if err := s.fill(ctx); err != nil {
			return nil, err
		}
	}
}

func (s *scanner) cut(limit int) ([][]byte, error) {
	var payloads [][]byte
	for len(payloads) < limit {
		payload, size, err := s.framing.split(s.buf, s.from, s.maxBytes)
		if err != nil {
			return payloads, err
		}
		if size == 0 {
			s.from = len(s.buf)
			break
		}
		payloads = append(payloads, slices.Clip(payload))
		s.buf, s.from, s.handed, s.partial = s.buf[size:], 0, true, time.Time{}
	}
	return payloads, nil
}

func (s *scanner) fill(ctx context.Context) error {
	if err := s.room(ctx); err != nil {
		return err
	}
	if err := s.conn.SetReadDeadline(s.deadline()); err != nil {
		return err
	}
	if ctx.Err() != nil { // whoever ends ctx ends the wait by a deadline, which has just been overwritten
		return context.Cause(ctx)
	}
	n, err := s.conn.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf = s.buf[:len(s.buf)+n]
	s.full = len(s.buf) == cap(s.buf)
	if n > 0 || err == nil {
		return nil
	}
	if s.mutant.takeCutLines && len(s.buf) > 0 && errors.Is(err, io.EOF) {
		s.buf = append(s.buf, '\n')
		return nil
	}
	return s.explain(ctx, err)
}

func (s *scanner) deadline() time.Time {
	if len(s.buf) > 0 {
		if s.partial.IsZero() {
			s.partial = time.Now()
		}
		return s.partial.Add(s.slow)
	}
	if s.idle > 0 {
		return time.Now().Add(s.idle)
	}
	return time.Time{}
}

func (s *scanner) explain(ctx context.Context, err error) error {
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF) && len(s.buf) > 0 && s.framing == Lines:
		return &refusal{"the connection ended inside a line; end each line with a line feed"}
	case errors.Is(err, io.EOF) && len(s.buf) > 0:
		return &refusal{"the connection ended inside a frame"}
	case isNet && timeout.Timeout() && len(s.buf) > 0:
		return &refusal{"tuple not complete within " + s.slow.String()}
	case isNet && timeout.Timeout():
		return &refusal{"idle for " + s.idle.String()}
	}
	return err
}

// room makes sure that buf can take at least one byte more, in memory that no tuple uses.
func (s *scanner) room(ctx context.Context) error {
	if !s.handed && len(s.buf) < cap(s.buf) {
		return nil
	}
	size := baseBytes
	if s.handed && len(s.buf) < baseBytes {
		s.release() // whoever waits for a slot gets it now
		s.held = s.full && s.slots.try()
		if s.held {
			size = batchBytes
		}
	} else if err := s.hold(ctx); err != nil {
		return err
	}
	if s.held {
		size = min(max(2*len(s.buf), size), slotBytes(s.maxBytes))
	}
	buf := make([]byte, len(s.buf), size)
	copy(buf, s.buf)
	s.buf, s.handed = buf, false
	return nil
}

func (s *scanner) hold(ctx context.Context) error {
	if s.held {
		return nil
	}
	if s.mutant.noSlots {
		s.slots = make(slots, 1)
	}
	wait := time.NewTimer(2 * s.slow) // who has the slot may take slow
	defer wait.Stop()
	select {
	case s.slots <- struct{}{}:
		s.held = true
		return nil
	case <-wait.C:
		return &refusal{"no memory is free for a tuple of this size; send it again later"}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release gives the slot back, if this connection has one.
func (s *scanner) release() {
	if s.held {
		<-s.slots
		s.held = false
	}
}

func newSlots(maxMemory int64, maxTuple int) slots {
	return make(slots, max(1, maxMemory/int64(slotBytes(maxTuple))))
}

// slotBytes is what the largest tuple takes with its framing.
func slotBytes(maxTuple int) int { return max(maxTuple+frameHeader, batchBytes) }

func (s slots) try() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}
