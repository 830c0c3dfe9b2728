package replica

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"ftproxy/logbuffer"
)

// A forward connection carries one lane's commands to the leader and the verdicts back, in frames
//
//	frame = length of the rest (4, BE) | type (1) | payload
//
// The follower sends stand and command frames, the leader answers each, commands in order.
const (
	frameStand    = 1 // from (uvarint)
	frameStanding = 2 // known (1) | incarnation | last (uvarints) | nonce (16) | n | (length | verdict) × n
	frameCommand  = 3 // command, without proposer's name: it is the connection's
	frameVerdict  = 4 // verdict
	frameError    = 5 // text; ends the connection
)

// maxForward bounds a frame, in bytes.
const maxForward = maxTuple + entryBytes + commandOverhead

// maxAnswers bounds the frames that a connection owes an answer: all that a proposer has in flight, an Open and a
// stand.
const maxAnswers = window + 2

func writeForward(w *bufio.Writer, kind byte, payload []byte) error {
	var head [5]byte
	binary.BigEndian.PutUint32(head[:], uint32(1+len(payload)))
	head[4] = kind
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(payload)
	return err
}

func readForward(r io.Reader) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 1 || size > maxForward {
		return 0, nil, fmt.Errorf("%w: forwarded frame of %d bytes", logbuffer.ErrCorrupt, size)
	}
	payload := make([]byte, size-1)
	_, err := io.ReadFull(r, payload)
	return head[4], payload, err
}

func (s standing) appendTo(dst []byte) []byte {
	known := byte(0)
	if s.Known {
		known = 1
	}
	dst = binary.AppendUvarint(append(dst, known), s.Incarnation)
	dst = append(binary.AppendUvarint(dst, s.Last), s.Nonce[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(s.Verdicts)))
	for i := range s.Verdicts {
		dst = appendBytes(dst, s.Verdicts[i].appendTo(nil))
	}
	return dst
}

func decodeStanding(p []byte) (standing, error) {
	d := bodyReader{p: p}
	s := standing{Known: d.byte() == 1}
	s.Incarnation, s.Last = d.uvarint(), d.uvarint()
	copy(s.Nonce[:], d.fixed(len(s.Nonce)))
	for range d.count(1) {
		v, err := decodeVerdict(d.bytes())
		if err != nil {
			return standing{}, err
		}
		s.Verdicts = append(s.Verdicts, v)
	}
	return s, d.end("standing")
}

// remoteLink is a link to a leader on another node.
type remoteLink struct {
	conn net.Conn
	gone chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// waiting holds, in order, what is to be done with the answers to come.
	waiting []func(kind byte, payload []byte, err error)
	out     chan forwardFrame // what is to be sent, in the same order; filled under mu, never blocking
	err     error
}

func newRemoteLink(conn net.Conn) *remoteLink {
	l := &remoteLink{
		conn: conn, gone: make(chan struct{}), out: make(chan forwardFrame, maxAnswers),
	}
	l.wg.Go(l.read)
	l.wg.Go(l.write)
	return l
}

func (l *remoteLink) failed() <-chan struct{} { return l.gone }

func (l *remoteLink) close() {
	l.fail(net.ErrClosed)
	l.wg.Wait()
}

func (l *remoteLink) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
	}
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	if first {
		close(l.gone)
		_ = l.conn.Close() // wakes reader and writer
	}
	for _, f := range waiting {
		f(0, nil, err)
	}
}

// read hands every answer to whom it is for.
func (l *remoteLink) read() {
	r := bufio.NewReaderSize(l.conn, 64<<10)
	for {
		kind, payload, err := readForward(r)
		if err == nil && kind == frameError {
			err = errors.New(string(payload))
		}
		if err != nil {
			l.fail(err)
			return
		}
		l.mu.Lock()
		var next func(byte, []byte, error)
		if len(l.waiting) > 0 {
			next = l.waiting[0]
			l.waiting = l.waiting[1:]
		}
		l.mu.Unlock()
		if next == nil {
			l.fail(fmt.Errorf("%w: answer to nothing", logbuffer.ErrCorrupt))
			return
		}
		next(kind, payload, nil)
	}
}

// send queues a frame and notes who waits for its answer. A proposer bounds what it has in flight, so there is room.
func (l *remoteLink) send(kind byte, payload []byte, answer func(byte, []byte, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	select {
	case l.out <- forwardFrame{kind: kind, payload: payload}:
		l.waiting = append(l.waiting, answer)
		return nil
	default:
		return fmt.Errorf("%d commands wait for the link", maxAnswers)
	}
}

func (l *remoteLink) write() {
	w := bufio.NewWriterSize(l.conn, 64<<10)
	for {
		select {
		case f := <-l.out:
			err := writeForward(w, f.kind, f.payload)
			if err == nil && len(l.out) == 0 {
				err = w.Flush()
			}
			if err != nil {
				l.fail(err)
				return
			}
		case <-l.gone:
			return
		}
	}
}

func (l *remoteLink) submit(_ context.Context, c command, done func(Verdict, error)) error {
	c.Proposer = ""
	return l.send(frameCommand, c.appendTo(nil), func(kind byte, payload []byte, err error) {
		var v Verdict
		if err == nil && kind != frameVerdict {
			err = fmt.Errorf("%w: answer of type %d to a command", logbuffer.ErrCorrupt, kind)
		}
		if err == nil {
			v, err = decodeVerdict(payload)
		}
		done(v, err)
	})
}

func (l *remoteLink) stand(ctx context.Context, _ string, from uint64) (standing, error) {
	type answer struct {
		payload []byte
		err     error
	}
	answers := make(chan answer, 1)
	err := l.send(frameStand, binary.AppendUvarint(nil, from), func(kind byte, payload []byte, err error) {
		if err == nil && kind != frameStanding {
			err = fmt.Errorf("%w: answer of type %d to a question", logbuffer.ErrCorrupt, kind)
		}
		answers <- answer{payload, err}
	})
	if err != nil {
		return standing{}, err
	}
	select {
	case a := <-answers:
		if a.err != nil {
			return standing{}, a.err
		}
		return decodeStanding(a.payload)
	case <-ctx.Done():
		return standing{}, context.Cause(ctx)
	}
}

// forwarded serves the leader's end of a forward connection.
type forwarded struct {
	proposer string
	to       *committer
	// admit waits while tuples must not be taken in.
	admit   func(ctx context.Context) error
	conn    net.Conn
	answers chan forwardFrame // capacity maxAnswers
	owed    atomic.Int64      // frames without an answer
	// anyKind takes commands of unknown kinds: a mutant, for tests only.
	anyKind bool
}

func newForwarded(proposer string, to *committer, admit func(context.Context) error, conn net.Conn) *forwarded {
	return &forwarded{proposer: proposer, to: to, admit: admit, conn: conn, answers: make(chan forwardFrame, maxAnswers+1)}
}

type forwardFrame struct {
	kind    byte
	payload []byte
}

// serve takes frames until the connection or the tenure ends.
func (f *forwarded) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = f.conn.Close() }) // wakes reader and writer
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { cancel(f.write(ctx)) })
	wg.Go(func() {
		select {
		case <-f.to.failed():
			f.answer(ctx, frameError, []byte(errNotLeading.Error()))
		case <-ctx.Done():
		}
	})
	r := bufio.NewReaderSize(f.conn, 64<<10)
	for {
		kind, payload, err := readForward(r)
		if err == nil && f.owed.Add(1) > maxAnswers {
			err = fmt.Errorf("%w: more than %d commands in flight", logbuffer.ErrCorrupt, maxAnswers)
		}
		if err == nil {
			err = f.take(ctx, kind, payload)
		}
		if err != nil {
			return err
		}
	}
}

func (f *forwarded) take(ctx context.Context, kind byte, payload []byte) error {
	d := bodyReader{p: payload}
	switch kind {
	case frameStand:
		from := d.uvarint()
		if err := d.end("stand"); err != nil {
			return err
		}
		if st, err := f.to.stand(ctx, f.proposer, max(1, from)); err != nil {
			f.answer(ctx, frameError, []byte(err.Error()))
		} else {
			f.answer(ctx, frameStanding, st.appendTo(nil))
		}
		return nil
	case frameCommand:
		c := d.command()
		if err := d.end("command"); err != nil {
			return err
		}
		if (c.Kind == 0 || c.Kind >= kindEnd) && !f.anyKind {
			// As an entry it would stop every node that does not know it.
			f.answer(ctx, frameError, fmt.Appendf(nil, "the leader does not know commands of %s: upgrade it", c.Kind))
			return nil
		}
		if c.Kind == kindAppend {
			if err := f.admit(ctx); err != nil {
				return err
			}
		}
		c.Proposer = f.proposer
		return f.to.submit(ctx, c, func(v Verdict, err error) {
			if err != nil {
				f.answer(ctx, frameError, []byte(err.Error()))
			} else {
				f.answer(ctx, frameVerdict, v.appendTo(nil))
			}
		})
	default:
		return fmt.Errorf("%w: forwarded frame of type %d", logbuffer.ErrCorrupt, kind)
	}
}

// answer queues an answer. There is room for all that are owed and the error that ends the connection.
func (f *forwarded) answer(ctx context.Context, kind byte, payload []byte) {
	select {
	case f.answers <- forwardFrame{kind: kind, payload: payload}:
	case <-ctx.Done():
	}
}

func (f *forwarded) write(ctx context.Context) error {
	w := bufio.NewWriterSize(f.conn, 64<<10)
	for {
		var a forwardFrame
		select {
		case a = <-f.answers:
		case <-ctx.Done():
			return nil
		}
		f.owed.Add(-1)
		if err := writeForward(w, a.kind, a.payload); err != nil {
			return err
		}
		if len(f.answers) > 0 && a.kind != frameError {
			continue
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if a.kind == frameError {
			return errors.New(string(a.payload))
		}
	}
}
