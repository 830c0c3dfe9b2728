package logbuffer

import (
	"fmt"
	"slices"
)

// ReaderCursor is one reader's place.
type ReaderCursor struct {
	Name string
	// Acked is the offset that the reader confirmed last, Hash the running hash there.
	Acked, Hash uint64
	// EverAcked tells whether this reader ever confirmed anything.
	EverAcked bool
	// PendingTuples counts the tuples of its own that it has not acknowledged, ReceivedTuples all that it was ever given.
	PendingTuples, ReceivedTuples uint64
	// PendingBytes is the stored size of the batches of its own that it has not acknowledged whole.
	PendingBytes uint64
}

// Cursors describes a buffer at one moment.
type Cursors struct {
	// Trimmed is the end of the last batch that is gone, End the offset of the last tuple; with their running hashes.
	Trimmed, TrimmedHash, End, EndHash uint64
	// Needed is what SetNeeded set last.
	Needed uint64
	// Bytes is the stored size of what is retained, Held the part of it that only Needed retains.
	Bytes, Held uint64
	// Unread counts the tuples for sinks that no reader reads; they are retained until one does.
	Unread  uint64
	Readers []ReaderCursor
}

// reader is one reader's state. While nothing of its own is pending it counts as being at the end, and done and at have
// no meaning. No batch of its own lies between acked and done.
type reader struct {
	Reader
	acked, hash uint64
	ever        bool
	// done is the offset up to which it has nothing to do, at the place of the batch that holds done + 1: at ≤ done.
	done uint64
	at   place
	// pending counts its tuples above done, pendingBytes the records with at least one of them.
	pending, pendingBytes uint64
	received              uint64
	// last is the offset of the newest tuple of its own.
	last uint64
	scan scanner
	hint *hint
}

func newReader(r Reader, folder *Folder) *reader {
	return &reader{Reader: r, scan: scanner{folder: folder}, hint: new(hint)}
}

// setSinks gives the reader its sinks; the array is shared with Slices, so it is replaced as a whole.
func (r *reader) setSinks(b *Buffer, sinks []string) {
	r.Sinks = slices.Clone(sinks)
	r.last = 0
	for _, l := range b.labels {
		if r.reads(l.name) {
			r.last = max(r.last, l.last)
		}
	}
}

// reads tells whether batches for a sink are this reader's.
func (r Reader) reads(sink string) bool {
	return sink == "" || len(r.Sinks) == 0 || slices.Contains(r.Sinks, sink)
}

// give accounts for a new batch of the reader's own, which begins at from.
func (r *reader) give(from place, last, count, size uint64) {
	if r.pending == 0 {
		r.at, r.done = from, from.off
	}
	r.pending += count
	r.pendingBytes += size
	r.received += count
	r.last = last
}

// pass moves over the batch that begins at r.at, as far as n goes; whole is false if n lies inside it.
func (r *reader) pass(end place, own bool, n uint64) (whole bool) {
	whole = end.off <= n
	if own {
		r.pending -= min(end.off, n) - max(r.at.off, r.done)
		if whole {
			r.pendingBytes -= end.cum - r.at.cum
		}
	}
	if whole {
		r.at = end
	}
	return whole
}

func (r *reader) cursor() ReaderCursor {
	return ReaderCursor{
		Name: r.Name, Acked: r.acked, Hash: r.hash, EverAcked: r.ever,
		PendingTuples: r.pending, ReceivedTuples: r.received, PendingBytes: r.pendingBytes,
	}
}

// sound checks the reader's invariants against its buffer.
func (r *reader) sound(b *Buffer) bool {
	if r.acked > b.end.off || r.last > b.end.off || r.pending > r.received {
		return false
	}
	if r.pending == 0 {
		return r.pendingBytes == 0
	}
	if len(r.Sinks) == 0 && (r.pending != b.end.off-r.done || r.pendingBytes != b.end.cum-r.at.cum) {
		return false
	}
	return b.trimmed.off <= r.at.off && r.at.off <= r.done && r.acked <= r.done && r.done < r.last &&
		r.pending <= r.last-r.done && r.pendingBytes > 0 && r.pendingBytes <= b.end.cum-r.at.cum
}

func (b *Buffer) reader(name string) *reader {
	for _, r := range b.readers {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Ack moves a reader's cursor: all of its own up to n is done. Going back is a no-op, and so is going where nothing of
// its own is left. An n beyond the end and an unknown reader are errors that wrap ErrCorrupt; so is damage to a segment
// that has to be read.
func (b *Buffer) Ack(name string, n uint64) error {
	r := b.reader(name)
	if r == nil {
		return fmt.Errorf("buffer %s: ack by %q, which is no reader: %w", b.name, name, ErrCorrupt)
	}
	if n > b.end.off {
		return fmt.Errorf("buffer %s: ack of %d by %s, but it ends at %d: %w", b.name, n, name, b.end.off, ErrCorrupt)
	}
	if r.pending == 0 || n <= r.done {
		return nil
	}
	if err := b.advance(r, n); err != nil {
		return fmt.Errorf("buffer %s: ack of %d by %s: %w", b.name, n, name, err)
	}
	r.done, r.acked, r.ever = n, n, true
	r.hash = r.at.hash
	if n > r.at.off {
		r.hash = inside(r.at.hash, n-r.at.off)
	}
	return b.trim()
}

// advance moves r.at to the last batch end at or below n and takes what it passes off the pending counts.
func (b *Buffer) advance(r *reader, n uint64) error {
	for r.at.off < n && !b.inTail(r.at) {
		seg := b.segments[b.holds(r.at.off)]
		if r.at == seg.from && r.done <= r.at.off && seg.to.off <= n {
			for _, h := range seg.shares {
				if slices.Contains(h.label.readers, r) {
					r.pending -= h.tuples
					r.pendingBytes -= h.bytes
				}
			}
			r.at = seg.to
			continue
		}
		rec, err := r.scan.next(seg, r.at, seg.to)
		if err != nil {
			return err
		}
		if !r.pass(rec.end, r.reads(string(rec.front.sink)), n) {
			return nil
		}
	}
	if !b.inTail(r.at) {
		return nil
	}
	r.scan = scanner{folder: r.scan.folder}
	for i := b.tail.search(r.at.off); r.at.off < n; i++ {
		e := b.tail.at(i)
		if !r.pass(e.end, slices.Contains(e.label.readers, r), n) {
			break
		}
	}
	return nil
}

// Cursors returns where everything stands.
func (b *Buffer) Cursors() Cursors {
	c := Cursors{
		Trimmed: b.trimmed.off, TrimmedHash: b.trimmed.hash, End: b.end.off, EndHash: b.end.hash, Needed: b.needed,
		Bytes: b.end.cum - b.trimmed.cum, Held: b.floor().cum - b.trimmed.cum, Unread: b.unread,
		Readers: make([]ReaderCursor, len(b.readers)),
	}
	for i, r := range b.readers {
		c.Readers[i] = r.cursor()
	}
	return c
}

// Reader returns one reader's place; ok is false if there is none of that name.
func (b *Buffer) Reader(name string) (c ReaderCursor, ok bool) {
	if r := b.reader(name); r != nil {
		return r.cursor(), true
	}
	return ReaderCursor{}, false
}

// End returns the offset of the last tuple, Bytes the stored size of what is retained.
func (b *Buffer) End() uint64 { return b.end.off }

// Bytes returns the stored size of what is retained.
func (b *Buffer) Bytes() uint64 { return b.end.cum - b.trimmed.cum }

// SetReaders says who reads the buffer. A reader that is new starts at Trimmed, so that it gets everything retained.
// One that is left out, or reads other sinks than before, must have nothing pending, and a sink that an existing reader
// gains must have nothing retained; otherwise nothing changes and the error wraps ErrUnavailable. Without any reader,
// and for a sink that nobody reads, nothing is trimmed. An error of class ErrCorrupt means that a segment could not be
// read.
func (b *Buffer) SetReaders(rs []Reader) error {
	next := make([]*reader, len(rs))
	for i, spec := range rs {
		if spec.Name == "" || slices.ContainsFunc(rs[:i], func(o Reader) bool { return o.Name == spec.Name }) {
			return fmt.Errorf("buffer %s: reader %d needs a name of its own, not %q: %w", b.name, i, spec.Name, ErrUnavailable)
		}
		old := b.reader(spec.Name)
		if old == nil {
			r, err := b.starting(spec)
			if err != nil {
				return err
			}
			next[i] = r
			continue
		}
		if err := b.mayChange(old, spec); err != nil {
			return err
		}
		next[i] = old
	}
	for _, old := range b.readers {
		if !slices.Contains(next, old) && old.pending > 0 {
			return fmt.Errorf("buffer %s: reader %s cannot be removed with %d tuples pending: drain it first: %w",
				b.name, old.Name, old.pending, ErrUnavailable)
		}
	}
	for i, r := range next {
		r.setSinks(b, rs[i].Sinks)
	}
	b.readers = next
	b.relabel()
	return b.trim()
}

// mayChange tells whether a reader may go on with what spec says.
func (b *Buffer) mayChange(old *reader, spec Reader) error {
	same := len(old.Sinks) == len(spec.Sinks)
	for _, sink := range spec.Sinks {
		same = same && slices.Contains(old.Sinks, sink)
	}
	if same {
		return nil
	}
	if old.pending > 0 {
		return fmt.Errorf("buffer %s: reader %s cannot change its sinks with %d tuples pending: drain it first: %w",
			b.name, old.Name, old.pending, ErrUnavailable)
	}
	for _, l := range b.labels {
		if spec.reads(l.name) && !old.reads(l.name) && l.last > b.trimmed.off {
			return fmt.Errorf("buffer %s: reader %s cannot take over sink %s, which has tuples waiting: "+
				"drain it first, or give it a reader of its own: %w", b.name, old.Name, l.name, ErrUnavailable)
		}
	}
	return nil
}

// relabel finds out anew who reads which label.
func (b *Buffer) relabel() {
	for _, l := range b.labels {
		l.readers = nil
		for _, r := range b.readers {
			if r.reads(l.name) {
				l.readers = append(l.readers, r)
			}
		}
		if len(l.readers) > 0 {
			b.unread -= l.unread
			l.unread = 0
		}
	}
}

// starting returns a new reader at Trimmed, with all that is retained for it counted.
func (b *Buffer) starting(spec Reader) (*reader, error) {
	r := newReader(spec, b.out.folder)
	r.acked, r.hash, r.done, r.at = b.trimmed.off, b.trimmed.hash, b.trimmed.off, b.trimmed
	count := func(sink string, tuples, bytes uint64) {
		if r.reads(sink) {
			r.pending += tuples
			r.pendingBytes += bytes
		}
	}
	at := b.trimmed
	for _, seg := range b.segments {
		for at != seg.from && at.off < seg.to.off { // only the first segment is trimmed in part
			rec, err := r.scan.next(seg, at, seg.to)
			if err != nil {
				return nil, fmt.Errorf("buffer %s: new reader %s: %w", b.name, spec.Name, err)
			}
			count(string(rec.front.sink), uint64(rec.front.count), rec.end.cum-at.cum)
			at = rec.end
		}
		if at == seg.from {
			for _, h := range seg.shares {
				count(h.label.name, h.tuples, h.bytes)
			}
			at = seg.to
		}
	}
	for i := b.tail.search(b.spilled.off); i < b.tail.n; i++ {
		e := b.tail.at(i)
		count(e.label.name, uint64(e.count), recordBytes(e.data))
	}
	r.received = r.pending
	return r, nil
}
