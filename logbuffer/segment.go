package logbuffer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
)

// A segment file, written in one go from front to back and never again once sealed:
//
//	"ftpseg\x00" | version (1) | offset, hash, bytes before its first batch (8 each, LE) | CRC-32C (4)
//	record × n:  mark (1): plain or boundary | batch
//	index:       number | (offset, bytes, hash) × number, as differences | CRC-32C (4)
//
// The manifest names the file with its length and the places where it begins and ends, so records and index need no
// delimiter. The index has one entry for about each 64 KiB, so it stays small whatever the batches are.
const (
	segmentMagic   = "ftpseg\x00"
	segmentVersion = 1
	segmentHeader  = len(segmentMagic) + 1 + 3*8 + 4
	// The two marks differ in every bit: no flip turns one into the other.
	markPlain, markBoundary = 0x5a, 0xa5
	recordHead              = 1 + frameBytes
	indexEvery              = 64 << 10
	minIndexEntry           = 10
	// chunkBytes is what a scanner reads at a time; flushBytes what the writer gathers.
	chunkBytes = 64 << 10
	flushBytes = 256 << 10
)

// place is a point between two batches of a buffer.
type place struct {
	// off is the offset of the last tuple before it, hash the running hash there.
	off, hash uint64
	// cum counts the bytes of all records before it, since the buffer's first: differences are sizes, and with a
	// segment's first place they are positions in its file.
	cum uint64
}

// after returns the place behind the batch e of count tuples that begins at p.
func (p place) after(e Encoded, count int) place {
	return place{off: p.off + uint64(count), hash: chain(p.hash, e.sum(), count), cum: p.cum + recordBytes(e)}
}

func recordBytes(e Encoded) uint64 { return 1 + uint64(len(e)) }

func (p place) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, p.off)
	dst = binary.LittleEndian.AppendUint64(dst, p.hash)
	return binary.LittleEndian.AppendUint64(dst, p.cum)
}

func (p *parser) place() place { return place{off: p.fixed64(), hash: p.fixed64(), cum: p.fixed64()} }

// share is what a segment holds of one label.
type share struct {
	label         *label
	tuples, bytes uint64
}

// segment is one file. Everything but dropped is guarded by the buffer's owner until sealed, and never changes after.
type segment struct {
	name string
	// from is the place before its first batch, to the one after its last.
	from, to place
	// size is the file's length, sum its CRC-32C.
	size   int64
	sum    uint32
	shares []share
	sealed bool
	// index holds the places of the open segment about every 64 KiB; once sealed it is read from the file at need.
	index []place
	// dropped is set before the file loses the buffer's reference.
	dropped atomic.Bool
}

// position returns where the record at p begins in the file.
func (s *segment) position(p place) int64 { return int64(segmentHeader) + int64(p.cum-s.from.cum) }

func (s *segment) header() []byte {
	b := append([]byte(segmentMagic), segmentVersion)
	b = s.from.append(b)
	return binary.LittleEndian.AppendUint32(b, checksum(b))
}

// add accounts for a record.
func (s *segment) add(l *label, count, size uint64) {
	i := slices.IndexFunc(s.shares, func(h share) bool { return h.label == l })
	if i < 0 {
		i = len(s.shares)
		s.shares = append(s.shares, share{label: l})
	}
	s.shares[i].tuples += count
	s.shares[i].bytes += size
}

// damage names the file and the place of what is wrong with it.
func (s *segment) damage(position int64, why string) error {
	return fmt.Errorf("segment %s at byte %d: %s: %w", s.name, position, why, ErrCorrupt)
}

// read fills p from the file at position.
func (s *segment) read(folder *Folder, p []byte, position int64) error {
	file, err := folder.Open(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		if s.dropped.Load() {
			return fmt.Errorf("segment %s: %w", s.name, ErrTrimmed)
		}
		return s.damage(position, "the file is missing")
	}
	if err != nil {
		return fmt.Errorf("segment %s: %w", s.name, err)
	}
	_, err = file.ReadAt(p, position)
	err = errors.Join(err, file.Close())
	if errors.Is(err, io.EOF) {
		return s.damage(position, "the file is shorter than it was")
	}
	if err != nil {
		return fmt.Errorf("segment %s at byte %d: %w", s.name, position, err)
	}
	return nil
}

// check compares the file's length and header with what the manifest says.
func (s *segment) check(folder *Folder) error {
	file, err := folder.Open(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return s.damage(0, "the file is missing")
	}
	if err != nil {
		return fmt.Errorf("segment %s: %w", s.name, err)
	}
	size, err := file.Size()
	err = errors.Join(err, file.Close())
	if err != nil {
		return fmt.Errorf("segment %s: %w", s.name, err)
	}
	if size != s.size {
		return s.damage(min(size, s.size), fmt.Sprintf("the file has %d bytes, not %d", size, s.size))
	}
	return nil
}

// appendIndex appends the index, as it stands at the end of the file.
func (s *segment) appendIndex(dst []byte) []byte {
	start := len(dst)
	dst = binary.AppendUvarint(dst, uint64(len(s.index)))
	before := s.from
	for _, p := range s.index {
		dst = binary.AppendUvarint(dst, p.off-before.off)
		dst = binary.AppendUvarint(dst, p.cum-before.cum)
		dst = binary.LittleEndian.AppendUint64(dst, p.hash)
		before = p
	}
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}

// readIndex reads the index of a sealed segment.
func (s *segment) readIndex(folder *Folder) ([]place, error) {
	index, err := s.parseIndex(folder)
	return index, folder.failed(err)
}

func (s *segment) parseIndex(folder *Folder) ([]place, error) {
	at := s.position(s.to)
	b := make([]byte, s.size-at)
	if err := s.read(folder, b, at); err != nil {
		return nil, err
	}
	body := b[:len(b)-4]
	if checksum(body) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, s.damage(at, "the checksum of its index does not match")
	}
	in := parser{rest: body}
	index := make([]place, in.count(minIndexEntry))
	before := s.from
	for i := range index {
		off, cum := in.uvarint(), in.uvarint()
		p := place{off: before.off + off, cum: before.cum + cum, hash: in.fixed64()}
		if off > s.to.off-before.off || cum > s.to.cum-before.cum || p.cum >= s.to.cum || i > 0 && (off == 0 || cum == 0) {
			in.fail()
			break
		}
		index[i], before = p, p
	}
	if in.bad || len(in.rest) != 0 || len(index) == 0 || index[0] != s.from {
		return nil, s.damage(at, "its index does not parse")
	}
	return index, nil
}

// nearest returns the last place of an index at or before offset off.
func nearest(index []place, off uint64) place {
	i, found := slices.BinarySearchFunc(index, off, func(p place, off uint64) int {
		switch {
		case p.off < off:
			return -1
		case p.off > off:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	return index[max(i, 0)]
}

// record is one batch as it stands in a segment.
type record struct {
	front    header
	data     Encoded
	boundary bool
	end      place
}

// scanner reads records one after another, a chunk at a time; the zero value with a folder is ready.
type scanner struct {
	folder *Folder
	// keep makes it read into a new chunk each time, because records are handed out that alias it.
	keep bool
	// least is what it reads at a time, if that is more than the folder's chunk.
	least uint64
	seg   *segment
	chunk []byte
	at    uint64 // the cum of chunk[0]
}

// next returns the record at the place at, checked. The segment ends at to, as far as the caller knows.
func (s *scanner) next(seg *segment, at, to place) (record, error) {
	r, err := s.parse(seg, at, to)
	return r, s.folder.failed(err)
}

func (s *scanner) parse(seg *segment, at, to place) (record, error) {
	position := seg.position(at)
	if at.cum < seg.from.cum || at.cum > to.cum || to.cum-at.cum < recordHead {
		return record{}, seg.damage(position, "no room for a batch")
	}
	b, err := s.view(seg, at.cum, to.cum, recordHead)
	if err != nil {
		return record{}, err
	}
	n := recordHead + uint64(binary.LittleEndian.Uint32(b[1:]))
	if n > to.cum-at.cum {
		return record{}, seg.damage(position, "a batch reaches beyond the end")
	}
	if b, err = s.view(seg, at.cum, to.cum, n); err != nil {
		return record{}, err
	}
	if b[0] != markPlain && b[0] != markBoundary {
		return record{}, seg.damage(position, "neither mark begins the record")
	}
	r := record{data: Encoded(b[1:n:n]), boundary: b[0] == markBoundary}
	if s.folder.mutant.skipCRC {
		r.front, _ = r.data.header()
	} else if r.front, err = r.data.intact(); err != nil {
		return record{}, fmt.Errorf("segment %s at byte %d: %w", seg.name, position, err)
	}
	r.end = at.after(r.data, r.front.count)
	if r.front.count == 0 || r.end.off > to.off || (r.end.cum == to.cum) != (r.end.off == to.off) ||
		r.end.cum == to.cum && r.end != to {
		return record{}, seg.damage(position, "the batch does not fit into the chain of batches")
	}
	return r, nil
}

// view returns the bytes from cum on, at least n of them.
func (s *scanner) view(seg *segment, cum, limit, n uint64) ([]byte, error) {
	var have []byte
	if s.seg == seg && cum >= s.at && cum-s.at <= uint64(len(s.chunk)) {
		have = s.chunk[cum-s.at:]
	}
	if uint64(len(have)) >= n {
		return have, nil
	}
	want := min(max(n, s.least, s.folder.chunk), limit-cum)
	chunk := s.chunk[:0]
	if s.keep || uint64(cap(chunk)) < want || cap(chunk) > 16*chunkBytes {
		chunk = make([]byte, 0, want)
	}
	chunk = append(chunk, have...)
	got := uint64(len(chunk))
	chunk = chunk[:want]
	s.seg = nil // until the read succeeds
	if err := seg.read(s.folder, chunk[got:], int64(segmentHeader)+int64(cum+got-seg.from.cum)); err != nil {
		return nil, err
	}
	s.seg, s.chunk, s.at = seg, chunk, cum
	return chunk, nil
}

// writer appends records to the open segment.
type writer struct {
	folder *Folder
	buffer string
	seg    *segment // nil: none is open
	file   File
	buf    []byte
}

// add gathers a record that begins at from; begin must have opened a segment.
func (w *writer) add(from place, e *entry) error {
	if n := len(w.seg.index); n == 0 || from.cum-w.seg.index[n-1].cum >= w.folder.interval {
		w.seg.index = append(w.seg.index, from)
	}
	mark := byte(markPlain)
	if e.boundary {
		mark = markBoundary
	}
	w.buf = append(w.buf, mark)
	if len(e.data) >= flushBytes {
		if err := w.flush(); err != nil {
			return err
		}
		if err := w.write(e.data); err != nil {
			return err
		}
	} else {
		w.buf = append(w.buf, e.data...)
	}
	w.seg.add(e.label, uint64(e.count), recordBytes(e.data))
	w.seg.to = e.end
	if len(w.buf) >= flushBytes {
		return w.flush()
	}
	return nil
}

// begin opens a new segment at from.
func (w *writer) begin(from place) error {
	name, file, err := w.folder.createNext(w.buffer, from.off+1)
	if err != nil {
		return err
	}
	w.seg, w.file = &segment{name: name, from: from, to: from}, file
	w.buf = append(w.buf[:0], w.seg.header()...)
	return nil
}

func (w *writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := w.write(w.buf)
	w.buf = w.buf[:0]
	return err
}

func (w *writer) write(p []byte) error {
	if _, err := w.file.Write(p); err != nil {
		return fmt.Errorf("segment %s at byte %d: %w", w.seg.name, w.seg.size, err)
	}
	w.seg.size += int64(len(p))
	w.seg.sum = updateSum(w.seg.sum, p)
	return nil
}

// seal ends the open segment with its index; the file is never written again.
func (w *writer) seal() error {
	w.buf = w.seg.appendIndex(w.buf)
	if err := w.flush(); err != nil {
		return err
	}
	w.seg.sealed, w.seg.index = true, nil
	if w.folder.mutant.rewriteSealed {
		w.seg.sealed = false
		return nil
	}
	w.forget()
	return nil
}

// forget lets go of the open segment; its file is closed when the folder syncs or unlinks it.
func (w *writer) forget() { w.seg, w.file, w.buf = nil, nil, w.buf[:0] }
