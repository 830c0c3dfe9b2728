package logbuffer

import (
	"fmt"
	"slices"
	"sync/atomic"
)

const (
	// scanChunkMax bounds what Load reads at a time.
	scanChunkMax = 1 << 20
	// lookahead bounds how far a reader of some sinks looks for the end of a Commit behind its last batch.
	lookahead = 16 << 20
)

// hint is where a reader's last Load ended: the next one begins there without a search.
type hint = atomic.Pointer[place]

// Slice is a part of a buffer, captured by Locate, to be read by Load.
type Slice struct {
	err      error
	folder   *Folder
	reader   Reader
	hint     *hint
	after    uint64
	maxBytes uint64

	// segments are read from start on, the last one up to lastTo, none beyond offset stop. All but the last are sealed.
	segments []*segment
	start    place
	lastTo   place
	index    []place // of the last segment while it is open, else nil
	stop     uint64
	// tail follows; lead tells that a Commit ends in it before any batch of the reader's own.
	tail []Stored
	lead bool
}

// Empty tells whether nothing of the reader's own was there.
func (s Slice) Empty() bool { return s.err == nil && len(s.segments) == 0 && len(s.tail) == 0 }

// Locate captures the reader's batches that have offsets above after: at least one if there is any, and as many more as
// fit into maxBytes. The first of them may begin at or below after. It is cheap and reads no file.
//
// Where nothing of the reader's own lies between, after may be below Trimmed; otherwise Load returns ErrTrimmed.
func (b *Buffer) Locate(name string, after uint64, maxBytes int) Slice {
	r := b.reader(name)
	if r == nil {
		return Slice{err: fmt.Errorf("buffer %s: read by %q, which is no reader: %w", b.name, name, ErrCorrupt)}
	}
	if after > b.end.off {
		return Slice{err: fmt.Errorf("buffer %s: read after %d by %s, but it ends at %d: %w",
			b.name, after, name, b.end.off, ErrCorrupt)}
	}
	if after >= r.acked && r.pending > 0 {
		after = max(after, r.done)
	}
	if r.last <= after || r.pending == 0 && after >= r.acked {
		return Slice{}
	}
	if after < b.trimmed.off {
		return Slice{err: fmt.Errorf("buffer %s: read after %d by %s, but it begins after %d: %w",
			b.name, after, name, b.trimmed.off, ErrTrimmed)}
	}
	s := Slice{
		folder: b.out.folder, reader: r.Reader, hint: r.hint, after: after,
		maxBytes: uint64(max(maxBytes, 1)), stop: b.tail.from.off,
	}
	budget := s.maxBytes
	if after < s.stop {
		budget = b.locateFiles(&s, r)
	}
	s.tail, s.lead = b.copyTail(r, max(after, s.stop), budget)
	return s
}

// locateFiles captures the segments, and returns how much of the tail is worth capturing too.
func (b *Buffer) locateFiles(s *Slice, r *reader) (budget uint64) {
	i := b.holds(s.after)
	s.segments = b.segments[i:len(b.segments):len(b.segments)]
	first, last := s.segments[0], s.segments[len(s.segments)-1]
	s.start, s.lastTo = first.from, last.to
	if !last.sealed {
		s.index = last.index
	}
	consider := func(p place) {
		if p.off <= s.after && p.off > s.start.off {
			s.start = p
		}
	}
	consider(b.trimmed)
	if r.pending > 0 {
		consider(r.at)
	}
	if p := r.hint.Load(); p != nil {
		consider(*p)
	}
	if b.spilled.cum-s.start.cum < s.maxBytes {
		return s.maxBytes
	}
	return 1
}

// copyTail copies the reader's batches after an offset that is not below the tail's begin.
func (b *Buffer) copyTail(r *reader, after, maxBytes uint64) (out []Stored, lead bool) {
	var bytes uint64
	for i := b.tail.search(after); i < b.tail.n; i++ {
		e := b.tail.at(i)
		if !slices.Contains(e.label.readers, r) {
			if n := len(out); n == 0 {
				lead = lead || e.boundary
			} else if e.boundary {
				out[n-1].Boundary = true
			}
		} else {
			size := recordBytes(e.data)
			if bytes > 0 && bytes+size > maxBytes {
				break
			}
			bytes += size
			out = append(out, Stored{
				First: e.end.off - uint64(e.count) + 1, Last: e.end.off, Hash: e.end.hash, Boundary: e.boundary, Data: e.data,
			})
		}
		if bytes >= maxBytes && out[len(out)-1].Boundary {
			break
		}
	}
	return out, lead
}

// Load returns the batches; it may run outside the owner's lock, concurrently with everything. It reads files and
// checks what it reads. An error wraps ErrTrimmed if the part was trimmed meanwhile, ErrCorrupt or ErrVersion if a file
// is missing, too short or damaged.
func (s Slice) Load() ([]Stored, error) {
	if s.err != nil {
		return nil, s.err
	}
	if len(s.segments) == 0 {
		return s.tail, nil
	}
	l := loader{Slice: s, at: s.start, scan: scanner{
		folder: s.folder, keep: len(s.reader.Sinks) == 0, least: min(s.maxBytes, scanChunkMax),
	}}
	for i, seg := range s.segments {
		if i > 0 {
			l.at = seg.from
		}
		full, err := l.load(seg, i == len(s.segments)-1)
		if err != nil {
			return nil, err
		}
		if full {
			break
		}
	}
	if !l.full {
		l.addTail()
	}
	end := l.at
	s.hint.Store(&end)
	return l.out, nil
}

// loader is the state of one Load.
type loader struct {
	Slice
	scan  scanner
	at    place
	out   []Stored
	bytes uint64
	// behind counts the bytes of other readers' batches since the last of its own.
	behind uint64
	full   bool
	sought bool
}

// load reads one segment from l.at on; it returns true if nothing further is wanted.
func (l *loader) load(seg *segment, last bool) (full bool, err error) {
	to := l.lastTo
	if !last {
		to = seg.to
	}
	open := last && l.index != nil
	if !open && !l.wants(seg) {
		l.at = to
		return false, nil
	}
	for l.at.off < to.off && l.at.off < l.stop {
		rec, err := l.scan.next(seg, l.at, to)
		if err != nil {
			return false, err
		}
		if rec.end.off <= l.after {
			if err := l.seek(seg, rec.end, open); err != nil {
				return false, err
			}
			continue
		}
		if l.add(rec) {
			l.full = true
			return true, nil
		}
	}
	return false, nil
}

// wants tells whether a sealed segment has anything for the reader: batches, or the end of the Commit of its last one.
func (l *loader) wants(seg *segment) bool {
	if n := len(l.out); n > 0 && !l.out[n-1].Boundary {
		return true
	}
	for _, h := range seg.shares {
		if l.reader.reads(h.label.name) {
			return true
		}
	}
	return false
}

// seek goes on from next, or, the first time, from the index's best place.
func (l *loader) seek(seg *segment, next place, open bool) error {
	l.at = next
	if l.sought {
		return nil
	}
	l.sought = true
	index := l.index
	if !open {
		var err error
		if index, err = seg.readIndex(l.folder); err != nil {
			return err
		}
	}
	if p := nearest(index, l.after); p.off > l.at.off {
		l.at = p
	}
	return nil
}

// add takes the record at l.at and moves on, or returns true if neither it nor anything behind it is wanted.
func (l *loader) add(rec record) (full bool) {
	size := rec.end.cum - l.at.cum
	own := l.reader.reads(string(rec.front.sink))
	n := len(l.out)
	switch {
	case n == 0:
	case own && l.bytes+size > l.maxBytes, !own && l.behind > lookahead:
		return true
	case l.out[n-1].Boundary && l.bytes+l.behind >= l.maxBytes:
		return true
	case !own && rec.boundary:
		l.out[n-1].Boundary = true
	}
	if own {
		if !l.scan.keep {
			rec.data = slices.Clone(rec.data)
		}
		l.out = append(l.out, Stored{
			First: l.at.off + 1, Last: rec.end.off, Hash: rec.end.hash, Boundary: rec.boundary, Data: rec.data,
		})
		l.bytes += size
		l.behind = 0
	} else {
		l.behind += size
	}
	l.at = rec.end
	return false
}

// addTail appends what still fits of the captured tail.
func (l *loader) addTail() {
	if n := len(l.out); n > 0 && l.lead {
		l.out[n-1].Boundary = true
	}
	for _, t := range l.tail {
		size := recordBytes(t.Data)
		if len(l.out) > 0 && l.bytes+size > l.maxBytes {
			return
		}
		l.bytes += size
		l.out = append(l.out, t)
	}
}

// HashAt returns the running hash at offset n, if n is the end of a retained batch, the trimmed offset, or an offset
// that a reader confirmed last; otherwise ok is false. It may read a file; errors are those of Load.
func (b *Buffer) HashAt(n uint64) (hash uint64, ok bool, err error) {
	switch n {
	case b.trimmed.off:
		return b.trimmed.hash, true, nil
	case b.end.off:
		return b.end.hash, true, nil
	}
	for _, r := range b.readers {
		if r.acked == n {
			return r.hash, true, nil
		}
	}
	if n < b.trimmed.off || n > b.end.off {
		return 0, false, nil
	}
	if n >= b.tail.from.off {
		p := b.tail.start(b.tail.search(n))
		return p.hash, p.off == n, nil
	}
	seg := b.segments[b.holds(n)]
	index := seg.index
	if seg.sealed {
		if index, err = seg.readIndex(b.out.folder); err != nil {
			return 0, false, err
		}
	}
	scan := scanner{folder: b.out.folder}
	at := nearest(index, n)
	for at.off < n {
		rec, err := scan.next(seg, at, seg.to)
		if err != nil {
			return 0, false, err
		}
		at = rec.end
	}
	return at.hash, at.off == n, nil
}
