package logbuffer

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Options sizes a Buffer; zero values mean the defaults.
type Options struct {
	// SegmentBytes is the size at which a segment file is sealed and the next one begun; default 64 MiB.
	SegmentBytes int64
	// TailBytes bounds the memory that the newest batches take, bookkeeping included; default 32 MiB.
	TailBytes int64
}

const (
	defaultSegmentBytes = 64 << 20
	defaultTailBytes    = 32 << 20
)

func (o Options) withDefaults() Options {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.TailBytes <= 0 {
		o.TailBytes = defaultTailBytes
	}
	return o
}

// Stored is one batch in its place in a buffer.
type Stored struct {
	// First and Last are the offsets of its tuples, Hash the running hash after it.
	First, Last, Hash uint64
	// Boundary tells that a Commit ended here: for a reader of some sinks, that none of its batches follows in the Commit.
	Boundary bool
	Data     Encoded
}

// Decode returns the batch; see Encoded.Decode.
func (s Stored) Decode() (Batch, error) { return s.Data.Decode() }

// Buffer is a FIFO of tuples with dense offsets from 1, kept as batches. Reading never deletes; only acknowledgements
// trim, and not beyond what state needs:
//
//	      trimmed    ≤    needed    ≤    places of the readers    ≤    end
//	─ gone ──┤├────────────── segment files ───────────┤
//	                                  ├───────────── tail (memory) ──────┤
//
// The newest batches are in memory. What leaves the tail, or is in it when Seal is called, is written to segment files,
// unsynced: until a manifest names them, the caller's log still has the batches. A buffer that is drained in time
// writes no file at all.
//
// A Buffer is not safe for concurrent use: its owner serialises the calls, Slice.Load excepted. It depends on nothing
// but the calls made: equal calls give equal cursors and hashes on every replica, whatever the files look like. A write
// that fails panics; once a method returned an error of class ErrCorrupt the buffer must not be used any more.
type Buffer struct {
	name string
	o    Options

	trimmed place
	end     place
	needed  uint64
	readers []*reader
	labels  map[string]*label
	// unread counts the tuples that no reader reads, over all labels.
	unread uint64

	// segments hold (trimmed, spilled], the last one perhaps open (out.seg); tail holds (tail.from, end], and where the
	// two overlap the tail is read. The array behind segments is shared with Slices: it is only appended to and cut at
	// the front.
	segments []*segment
	spilled  place
	tail     tail
	out      writer
	// scan finds the batch ends below needed.
	scan scanner
	// broken is the write error after which nothing is written any more.
	broken error
}

// label is a sink that batches are for, and who reads them.
type label struct {
	name string
	// last is the offset of the newest tuple with this label.
	last    uint64
	readers []*reader
	// unread counts the tuples that came while nobody read this label, from the place unreadFrom on. They are retained.
	unread     uint64
	unreadFrom place
}

// NewBuffer returns an empty buffer whose files are named after it in folder.
func NewBuffer(name string, folder *Folder, o Options) *Buffer {
	return &Buffer{
		name: name, o: o.withDefaults(), needed: math.MaxUint64, labels: map[string]*label{},
		out: writer{folder: folder, buffer: name}, scan: scanner{folder: folder},
	}
}

// Append adds a batch of at least one tuple, whose structure was checked, and returns the offsets it got. It keeps e,
// which must not change any more. The boundary mark says that a Commit ends here. It panics if memory is short and the
// disk cannot be written.
func (b *Buffer) Append(e Encoded, boundary bool) (first, last uint64) {
	h, ok := e.header()
	if !ok || h.count == 0 {
		panic("logbuffer: append of what is no batch")
	}
	l := b.label(h.sink)
	from, count, size := b.end, uint64(h.count), recordBytes(e)
	b.end = from.after(e, h.count)
	l.last = b.end.off
	for _, r := range l.readers {
		r.give(from, b.end.off, count, size)
	}
	if len(l.readers) == 0 {
		if l.unread == 0 {
			l.unreadFrom = from
		}
		l.unread += count
		b.unread += count
	}
	b.tail.push(entry{end: b.end, data: e, label: l, count: uint32(h.count), boundary: boundary})
	if b.tail.bytes > b.o.TailBytes {
		b.evict()
	}
	b.assert()
	return from.off + 1, b.end.off
}

// label returns the label of a name, new or known.
func (b *Buffer) label(name []byte) *label {
	if l, ok := b.labels[string(name)]; ok {
		return l
	}
	l := &label{name: string(name)}
	for _, r := range b.readers {
		if r.reads(l.name) {
			l.readers = append(l.readers, r)
		}
	}
	b.labels[l.name] = l
	return l
}

// SetNeeded sets the floor that trimming respects beside the readers: everything above n is still needed. MaxUint64, as
// at first, means that nothing is. A floor below what is trimmed already is a fault of the caller and panics. An error
// means that a segment could not be read.
func (b *Buffer) SetNeeded(n uint64) error {
	if n < b.trimmed.off {
		panic(fmt.Sprintf("logbuffer: %s: offset %d is needed, but trimmed up to %d", b.name, n, b.trimmed.off))
	}
	b.needed = n
	return b.trim()
}

// floor returns the place up to which the readers are done with everything.
func (b *Buffer) floor() place {
	floor := b.end
	for _, r := range b.readers {
		if r.pending > 0 && r.at.off < floor.off {
			floor = r.at
		}
	}
	if b.unread > 0 {
		for _, l := range b.labels {
			if l.unread > 0 && l.unreadFrom.off < floor.off {
				floor = l.unreadFrom
			}
		}
	}
	return floor
}

// trim moves trimmed as far as readers and needed allow, to the end of a batch, and lets go of what is below.
func (b *Buffer) trim() error {
	floor := b.floor()
	if b.needed >= floor.off {
		b.trimmed = floor
	} else if err := b.trimTo(b.needed); err != nil {
		return err
	}
	for b.tail.n > 0 && b.tail.at(0).end.off <= b.trimmed.off {
		b.tail.pop()
	}
	for len(b.segments) > 0 && b.segments[0].to.off <= b.trimmed.off {
		b.dropSegment()
	}
	if b.spilled.off < b.trimmed.off {
		b.spilled = b.trimmed
	}
	b.assert()
	return nil
}

// trimTo moves trimmed to the last batch end at or below n.
func (b *Buffer) trimTo(n uint64) error {
	for b.trimmed.off < n {
		if b.inTail(b.trimmed) {
			b.scan = scanner{folder: b.scan.folder}
			if i := b.tail.search(n); b.tail.start(i).off > b.trimmed.off {
				b.trimmed = b.tail.start(i)
			}
			return nil
		}
		seg := b.segments[b.holds(b.trimmed.off)]
		if seg.to.off <= n {
			b.trimmed = seg.to
			continue
		}
		rec, err := b.scan.next(seg, b.trimmed, seg.to)
		if err != nil {
			return err
		}
		if rec.end.off > n {
			return nil
		}
		b.trimmed = rec.end
	}
	return nil
}

// dropSegment lets go of the oldest segment.
func (b *Buffer) dropSegment() {
	seg := b.segments[0]
	b.segments = b.segments[1:]
	if seg == b.out.seg {
		b.out.forget()
	}
	seg.dropped.Store(true)
	if err := b.out.folder.Unpin(seg.name); err != nil {
		b.fail(err)
	}
}

// inTail tells whether the batch at p is in memory (or p is the end).
func (b *Buffer) inTail(p place) bool { return p.off >= b.tail.from.off }

// holds returns the index of the segment that has offset off + 1.
func (b *Buffer) holds(off uint64) int {
	i, found := slices.BinarySearchFunc(b.segments, off, func(s *segment, off uint64) int {
		switch {
		case s.to.off < off:
			return -1
		case s.to.off > off:
			return 1
		}
		return 0
	})
	if found {
		i++
	}
	return i
}

// evict makes room in the tail: its oldest batches go, to a segment if they are not in one.
func (b *Buffer) evict() {
	bytes, n := b.tail.bytes, 0
	for goal := b.o.TailBytes - b.o.TailBytes/8; bytes > goal && n < b.tail.n; n++ {
		bytes -= b.tail.at(n).bytes()
	}
	if err := b.spill(max(n, b.ahead())); err != nil {
		panic(err)
	}
	for range n {
		b.tail.pop()
	}
}

// ahead returns how many batches of the tail to write early. Once the readers are so far behind that they read files,
// what is in the tail will most likely leave it too; so it is written twice as fast as it comes, until Seal finds
// little left to write at once.
func (b *Buffer) ahead() (n int) {
	if len(b.segments) == 0 {
		return 0
	}
	n = b.tail.search(b.spilled.off)
	for bytes := b.o.TailBytes / 4; bytes > 0 && n < b.tail.n; n++ {
		bytes -= b.tail.at(n).bytes()
	}
	return n
}

// spill writes those of the first n batches of the tail that are not in a segment yet.
func (b *Buffer) spill(n int) error {
	if b.broken != nil {
		return b.broken
	}
	if err := b.write(n); err != nil {
		b.broken = fmt.Errorf("logbuffer: %s: %w", b.name, err)
		return b.broken
	}
	return nil
}

func (b *Buffer) write(n int) error {
	for i := b.tail.search(b.spilled.off); i < n; i++ {
		if seg := b.out.seg; seg != nil && int64(seg.to.cum-seg.from.cum) >= b.o.SegmentBytes {
			if err := b.out.seal(); err != nil {
				return err
			}
		}
		if b.out.seg == nil {
			if err := b.out.begin(b.spilled); err != nil {
				return err
			}
			b.segments = append(b.segments, b.out.seg)
		}
		e := b.tail.at(i)
		if err := b.out.add(b.spilled, e); err != nil {
			return err
		}
		b.spilled = e.end
	}
	return b.out.flush()
}

// fail stops the buffer for good.
func (b *Buffer) fail(err error) {
	b.broken = fmt.Errorf("logbuffer: %s: %w", b.name, err)
	panic(b.broken)
}

// Seal writes what is only in memory to a segment and seals it: afterwards sealed segments hold everything retained,
// and AppendManifest describes them. Nothing is synced; see Folder.Sync. After an error the buffer writes nothing any
// more.
func (b *Buffer) Seal() error {
	if err := b.spill(b.tail.n); err != nil {
		return err
	}
	if b.out.seg != nil {
		if err := b.out.seal(); err != nil {
			b.broken = fmt.Errorf("logbuffer: %s: %w", b.name, err)
			return b.broken
		}
	}
	b.forgetLabels()
	b.assert()
	return nil
}

// forgetLabels drops the labels that nothing retained bears, so that their number stays bounded.
func (b *Buffer) forgetLabels() {
	used := map[*label]bool{}
	for _, seg := range b.segments {
		for _, h := range seg.shares {
			used[h.label] = true
		}
	}
	for name, l := range b.labels {
		if l.last <= b.trimmed.off && !used[l] {
			delete(b.labels, name)
		}
	}
}

// Close gives up the buffer's references to its files: those that no manifest names are unlinked. The buffer must not
// be used afterwards; a Load under way may return ErrTrimmed.
func (b *Buffer) Close() error {
	b.out.forget()
	b.broken = errors.New("logbuffer: use of a closed buffer")
	names := b.SegmentNames()
	for _, seg := range b.segments {
		seg.dropped.Store(true)
	}
	b.segments = nil
	return b.out.folder.Unpin(names...)
}

// SegmentNames returns the names of the segments in order; after Seal these are what the manifest names.
func (b *Buffer) SegmentNames() []string {
	names := make([]string, len(b.segments))
	for i, seg := range b.segments {
		names[i] = seg.name
	}
	return names
}

// assert checks the invariants of the whole buffer; it runs after every mutation, in time independent of the backlog.
func (b *Buffer) assert() {
	ok := b.trimmed.off <= b.end.off && b.trimmed.cum <= b.end.cum && b.trimmed.off <= b.needed &&
		b.tail.start(b.tail.n) == b.end && b.tail.bytes <= b.o.TailBytes &&
		b.tail.bytes >= int64(b.tail.n)*entryBytes
	if n := len(b.segments); n > 0 {
		ok = ok && b.segments[0].from.off <= b.trimmed.off && b.trimmed.off < b.segments[0].to.off &&
			b.segments[n-1].to == b.spilled && b.tail.from.off <= b.spilled.off && b.spilled.off <= b.end.off
	} else {
		ok = ok && b.spilled == b.trimmed && b.tail.from == b.trimmed
	}
	if !ok {
		b.contradiction("")
	}
	for _, r := range b.readers {
		if !r.sound(b) {
			b.contradiction(r.Name)
		}
	}
}

func (b *Buffer) contradiction(reader string) {
	panic(fmt.Sprintf(
		"logbuffer: %s contradicts itself (reader %q): trimmed %v, needed %d, spilled %v, tail %v+%d, end %v",
		b.name, reader, b.trimmed, b.needed, b.spilled, b.tail.from, b.tail.n, b.end))
}
