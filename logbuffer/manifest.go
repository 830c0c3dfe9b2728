package logbuffer

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

const (
	bufferVersion = 1
	placeBytes    = 24
	// The least that each item of a manifest takes.
	minLabelBytes, minReaderBytes, minSegmentBytes, minShareBytes = 3, 15, 2*placeBytes + 7, 3
)

// SegmentFile names a sealed segment with its length and its CRC-32C, by which a copy of it can be checked.
type SegmentFile struct {
	Name string
	Size int64
	Sum  uint32
}

// Segments returns the segments in order; after Seal these are the ones that the manifest names.
func (b *Buffer) Segments() []SegmentFile {
	out := make([]SegmentFile, len(b.segments))
	for i, seg := range b.segments {
		out[i] = SegmentFile{seg.name, seg.size, seg.sum}
	}
	return out
}

// AppendManifest appends everything that RestoreBuffer needs beside the segments. The buffer must be sealed, with
// nothing appended since. The size depends on the numbers of readers, sinks and segments, not on the tuples'.
func (b *Buffer) AppendManifest(dst []byte) []byte {
	if b.spilled != b.end || b.out.seg != nil {
		panic("logbuffer: " + b.name + ": a manifest of a buffer that is not sealed")
	}
	body := appendBytes(nil, b.name)
	body = b.trimmed.append(body)
	body = b.end.append(body)
	body = binary.AppendUvarint(body, b.needed)

	labels := make([]*label, 0, len(b.labels))
	for _, l := range b.labels {
		labels = append(labels, l)
	}
	slices.SortFunc(labels, func(x, y *label) int { return cmp.Compare(x.name, y.name) })
	number := map[*label]uint64{}
	body = binary.AppendUvarint(body, uint64(len(labels)))
	for i, l := range labels {
		number[l] = uint64(i)
		body = appendBytes(body, l.name)
		body = binary.AppendUvarint(body, l.last)
		body = binary.AppendUvarint(body, l.unread)
		if l.unread > 0 {
			body = l.unreadFrom.append(body)
		}
	}
	body = binary.AppendUvarint(body, uint64(len(b.readers)))
	for _, r := range b.readers {
		body = r.append(body)
	}
	body = binary.AppendUvarint(body, uint64(len(b.segments)))
	for _, seg := range b.segments {
		body = seg.append(body, number)
	}
	return appendFrame(dst, bufferVersion, body)
}

func (r *reader) append(dst []byte) []byte {
	dst = appendBytes(dst, r.Name)
	dst = binary.AppendUvarint(dst, uint64(len(r.Sinks)))
	for _, sink := range r.Sinks {
		dst = appendBytes(dst, sink)
	}
	var ever byte
	if r.ever {
		ever = 1
	}
	dst = append(dst, ever)
	dst = binary.AppendUvarint(dst, r.acked)
	dst = binary.LittleEndian.AppendUint64(dst, r.hash)
	dst = binary.AppendUvarint(dst, r.last)
	dst = binary.AppendUvarint(dst, r.received)
	dst = binary.AppendUvarint(dst, r.pending)
	if r.pending > 0 {
		dst = binary.AppendUvarint(dst, r.pendingBytes)
		dst = binary.AppendUvarint(dst, r.done)
		dst = r.at.append(dst)
	}
	return dst
}

func (p *parser) reader(folder *Folder) *reader {
	r := newReader(Reader{Name: string(p.bytes())}, folder)
	for range p.count(1) {
		r.Sinks = append(r.Sinks, string(p.bytes()))
	}
	ever := p.byte()
	r.ever = ever == 1
	r.acked, r.hash, r.last, r.received, r.pending = p.uvarint(), p.fixed64(), p.uvarint(), p.uvarint(), p.uvarint()
	if r.pending > 0 {
		r.pendingBytes, r.done, r.at = p.uvarint(), p.uvarint(), p.place()
	}
	if ever > 1 || r.Name == "" {
		p.fail()
	}
	return r
}

func (s *segment) append(dst []byte, number map[*label]uint64) []byte {
	dst = appendBytes(dst, s.name)
	dst = s.from.append(dst)
	dst = s.to.append(dst)
	dst = binary.AppendUvarint(dst, uint64(s.size))
	dst = binary.LittleEndian.AppendUint32(dst, s.sum)
	dst = binary.AppendUvarint(dst, uint64(len(s.shares)))
	for _, h := range s.shares {
		dst = binary.AppendUvarint(dst, number[h.label])
		dst = binary.AppendUvarint(dst, h.tuples)
		dst = binary.AppendUvarint(dst, h.bytes)
	}
	return dst
}

func (p *parser) segment(labels []*label) *segment {
	s := &segment{sealed: true, name: string(p.bytes()), from: p.place(), to: p.place()}
	size := p.uvarint()
	s.sum = p.fixed32()
	var tuples, bytes uint64
	for range p.count(minShareBytes) {
		i, h := p.uvarint(), share{tuples: p.uvarint(), bytes: p.uvarint()}
		if i >= uint64(len(labels)) || h.tuples == 0 || h.bytes == 0 ||
			h.tuples > s.to.off-s.from.off || h.bytes > s.to.cum-s.from.cum {
			p.fail()
			return s
		}
		h.label = labels[i]
		tuples, bytes = tuples+h.tuples, bytes+h.bytes
		s.shares = append(s.shares, h)
	}
	records := s.to.cum - s.from.cum
	if s.to.off <= s.from.off || s.to.cum <= s.from.cum || tuples != s.to.off-s.from.off || bytes != records ||
		size > math.MaxInt64 || records > size || size-records < uint64(segmentHeader)+1+minIndexEntry+4 ||
		size-records > records+uint64(segmentHeader)+64 {
		p.fail()
		return s
	}
	s.size = int64(size)
	return s
}

// RestoreBuffer takes a manifest off the front of p and returns the buffer that it describes, and the rest. It pins the
// segments and looks at their lengths, but reads none. Errors wrap ErrCorrupt (also for a file that is missing or of
// the wrong length) or ErrVersion; then nothing is pinned. Nothing but rest aliases p.
func RestoreBuffer(name string, folder *Folder, o Options, p []byte) (b *Buffer, rest []byte, err error) {
	what := "buffer " + name
	body, rest, err := nextFrame(what, bufferVersion, p)
	if err != nil {
		return nil, nil, err
	}
	b = NewBuffer(name, folder, o)
	in := &parser{rest: body}
	if got := string(in.bytes()); got != name && !in.bad {
		return nil, nil, fmt.Errorf("%s: the manifest is of buffer %q: %w", what, got, ErrCorrupt)
	}
	b.parse(in)
	if in.bad || len(in.rest) != 0 {
		return nil, nil, fmt.Errorf("%s: the manifest does not parse: %w", what, ErrCorrupt)
	}
	if !b.consistent() {
		return nil, nil, fmt.Errorf("%s: the manifest contradicts itself: %w", what, ErrCorrupt)
	}
	for _, seg := range b.segments {
		if err := seg.check(folder); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	folder.Pin(b.SegmentNames()...)
	b.assert()
	return b, rest, nil
}

// parse reads the manifest's body after the name.
func (b *Buffer) parse(in *parser) {
	b.trimmed, b.end = in.place(), in.place()
	b.spilled, b.tail.from = b.end, b.end
	b.needed = in.uvarint()
	labels := make([]*label, in.count(minLabelBytes))
	for i := range labels {
		l := &label{name: string(in.bytes()), last: in.uvarint(), unread: in.uvarint()}
		if l.unread > 0 {
			l.unreadFrom = in.place()
			b.unread += l.unread
		}
		labels[i] = l
		b.labels[l.name] = l
	}
	for range in.count(minReaderBytes) {
		b.readers = append(b.readers, in.reader(b.out.folder))
	}
	for range in.count(minSegmentBytes) {
		b.segments = append(b.segments, in.segment(labels))
	}
	if len(b.labels) != len(labels) {
		in.fail() // a name twice
		return
	}
	for _, l := range labels {
		for _, r := range b.readers {
			if r.reads(l.name) {
				l.readers = append(l.readers, r)
			}
		}
	}
}

// consistent checks what a manifest must say, so that nothing that follows has to doubt it.
func (b *Buffer) consistent() bool {
	if b.trimmed.off > b.needed || b.trimmed.off > b.end.off || b.trimmed.cum > b.end.cum {
		return false
	}
	at := b.trimmed
	for i, seg := range b.segments {
		first := seg.from.off <= at.off && at.off < seg.to.off && seg.from.cum <= at.cum && at.cum < seg.to.cum
		if i == 0 && !first || i > 0 && seg.from != at {
			return false
		}
		at = seg.to
	}
	if at != b.end {
		return false
	}
	names := map[string]bool{}
	for _, seg := range b.segments {
		names[seg.name] = true
	}
	for _, l := range b.labels {
		if l.last > b.end.off || l.unread > 0 &&
			(l.unreadFrom.off < b.trimmed.off || l.last <= l.unreadFrom.off || l.unread > l.last-l.unreadFrom.off ||
				len(l.readers) > 0) {
			return false
		}
	}
	seen := map[string]bool{}
	for _, r := range b.readers {
		if seen[r.Name] || !r.sound(b) {
			return false
		}
		seen[r.Name] = true
	}
	return len(names) == len(b.segments)
}
