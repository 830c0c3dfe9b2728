package logbuffer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

// model is a buffer that forgets nothing and computes everything anew: the judge of the real one.
type model struct {
	batches []modelBatch
	readers []*modelReader
	trimmed uint64
	needed  uint64
}

type modelBatch struct {
	logbuffer.Stored
	sink   string
	unread bool
}

type modelReader struct {
	logbuffer.Reader
	acked, hash, idle uint64
	ever              bool
	received          uint64
	open              map[uint64]bool // offsets of its own, not acknowledged
}

func newModel() *model { return &model{needed: math.MaxUint64} }

func (m *model) end() uint64 {
	if len(m.batches) == 0 {
		return 0
	}
	return m.batches[len(m.batches)-1].Last
}

func (r *modelReader) reads(sink string) bool {
	return sink == "" || len(r.Sinks) == 0 || slices.Contains(r.Sinks, sink)
}

// mix is the hash chain, written down a second time.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

func (m *model) hashAt(n uint64) (uint64, bool) {
	if n == 0 {
		return 0, true
	}
	for _, b := range m.batches {
		if b.Last == n {
			return b.Hash, true
		}
	}
	return 0, false
}

func (m *model) append(e logbuffer.Encoded, boundary bool) {
	last, _ := m.hashAt(m.end())
	sum := uint64(e[4]) | uint64(e[5])<<8 | uint64(e[6])<<16 | uint64(e[7])<<24
	count := uint64(e.Count())
	b := modelBatch{sink: e.Sink(), unread: true}
	b.First, b.Last, b.Boundary, b.Data = m.end()+1, m.end()+count, boundary, e
	b.Hash = mix(last*0x9e3779b97f4a7c15 + (sum<<32 | count))
	for _, r := range m.readers {
		if !r.reads(b.sink) {
			continue
		}
		b.unread = false
		if len(r.open) == 0 {
			r.idle = m.end()
		}
		for n := b.First; n <= b.Last; n++ {
			r.open[n] = true
		}
		r.received += count
	}
	m.batches = append(m.batches, b)
}

// done is the offset up to which a reader has nothing to do.
func (m *model) done(r *modelReader) uint64 {
	if len(r.open) == 0 {
		return m.end()
	}
	return max(r.acked, r.idle)
}

func (m *model) ack(name string, n uint64) {
	for _, r := range m.readers {
		if r.Name != name || n <= m.done(r) {
			continue
		}
		for o := range r.open {
			if o <= n {
				delete(r.open, o)
			}
		}
		r.acked, r.ever = n, true
		for _, b := range m.batches {
			if b.Last == n {
				r.hash = b.Hash
			} else if b.First <= n && n < b.Last {
				before, _ := m.hashAt(b.First - 1)
				r.hash = mix(before ^ mix((n-b.First+1)^0x5851f42d4c957f2d))
			}
		}
	}
	m.trim()
}

func (m *model) floor() uint64 {
	floor := m.end()
	for _, r := range m.readers {
		for _, b := range m.batches {
			if done := m.done(r); b.First <= done+1 && done+1 <= b.Last {
				floor = min(floor, b.First-1)
			}
		}
	}
	for _, b := range m.batches {
		if b.unread {
			floor = min(floor, b.First-1)
		}
	}
	return floor
}

func (m *model) trim() {
	limit := min(m.floor(), m.needed)
	for _, b := range m.batches {
		if b.Last <= limit {
			m.trimmed = max(m.trimmed, b.Last)
		}
	}
}

func (m *model) setReaders(rs []logbuffer.Reader) {
	var next []*modelReader
	for _, spec := range rs {
		i := slices.IndexFunc(m.readers, func(r *modelReader) bool { return r.Name == spec.Name })
		if i >= 0 {
			next = append(next, m.readers[i])
			m.readers[i].Sinks = spec.Sinks
			continue
		}
		r := &modelReader{Reader: spec, acked: m.trimmed, idle: m.trimmed, open: map[uint64]bool{}}
		r.hash, _ = m.hashAt(m.trimmed)
		for _, b := range m.batches {
			for n := b.First; n <= b.Last && b.Last > m.trimmed && r.reads(b.sink); n++ {
				r.open[n] = true
				r.received++
			}
		}
		next = append(next, r)
	}
	m.readers = next
	for i, b := range m.batches {
		for _, r := range m.readers {
			if r.reads(b.sink) {
				m.batches[i].unread = false
			}
		}
	}
	m.trim()
}

// own lists what a reader may get after an offset, boundaries of others' batches folded in.
func (m *model) own(r *modelReader, after uint64) []logbuffer.Stored {
	var out []logbuffer.Stored
	for _, b := range m.batches {
		switch {
		case b.Last <= after:
		case r.reads(b.sink):
			out = append(out, b.Stored)
		case b.Boundary && len(out) > 0:
			out[len(out)-1].Boundary = true
		}
	}
	return out
}

func (m *model) cursors() logbuffer.Cursors {
	c := logbuffer.Cursors{Trimmed: m.trimmed, End: m.end(), Needed: m.needed}
	c.TrimmedHash, _ = m.hashAt(c.Trimmed)
	c.EndHash, _ = m.hashAt(c.End)
	c.Readers = []logbuffer.ReaderCursor{}
	floor := m.floor()
	for _, b := range m.batches {
		if b.Last > m.trimmed {
			c.Bytes += uint64(len(b.Data)) + 1
			if b.Last <= floor {
				c.Held += uint64(len(b.Data)) + 1
			}
			if b.unread {
				c.Unread += b.Last - b.First + 1
			}
		}
	}
	for _, r := range m.readers {
		rc := logbuffer.ReaderCursor{
			Name: r.Name, Acked: r.acked, Hash: r.hash, EverAcked: r.ever,
			PendingTuples: uint64(len(r.open)), ReceivedTuples: r.received,
		}
		for _, b := range m.batches {
			if r.open[b.Last] {
				rc.PendingBytes += uint64(len(b.Data)) + 1
			}
		}
		c.Readers = append(c.Readers, rc)
	}
	return c
}

// compare holds the buffer against the model: cursors, hashes, and what each reader can read from several places.
func (m *model) compare(tb testing.TB, b *logbuffer.Buffer) {
	tb.Helper()
	if got, want := fmt.Sprintf("%+v", b.Cursors()), fmt.Sprintf("%+v", m.cursors()); got != want {
		tb.Fatalf("cursors\n got %s\nwant %s", got, want)
	}
	for n := uint64(0); n <= m.end(); n++ {
		m.compareHash(tb, b, n)
	}
	for _, r := range m.readers {
		for _, after := range []uint64{m.trimmed, r.acked, m.done(r), (m.done(r) + m.end()) / 2, m.end()} {
			if after >= m.trimmed || after >= r.acked {
				for _, maxBytes := range []int{1, 300, 4000, 1 << 20} {
					m.compareRead(tb, b, r, after, maxBytes)
				}
			}
		}
	}
}

func (m *model) compareHash(tb testing.TB, b *logbuffer.Buffer, n uint64) {
	tb.Helper()
	got, ok, err := b.HashAt(n)
	if err != nil {
		tb.Fatalf("HashAt(%d): %v", n, err)
	}
	want, known := m.hashAt(n)
	known = known && n >= m.trimmed
	for _, r := range m.readers {
		if !known && r.acked == n {
			want, known = r.hash, true
		}
	}
	if ok != known || ok && got != want {
		tb.Fatalf("HashAt(%d) = %x, %v; want %x, %v (trimmed %d)", n, got, ok, want, known, m.trimmed)
	}
}

func (m *model) compareRead(tb testing.TB, b *logbuffer.Buffer, r *modelReader, after uint64, maxBytes int) {
	tb.Helper()
	slice := b.Locate(r.Name, after, maxBytes)
	got, err := slice.Load()
	if err != nil {
		tb.Fatalf("read after %d by %s: %v", after, r.Name, err)
	}
	if after >= r.acked {
		after = max(after, m.done(r))
	}
	want := m.own(r, after)
	if slice.Empty() != (len(want) == 0) || (len(got) == 0) != (len(want) == 0) || len(got) > len(want) {
		tb.Fatalf("read after %d by %s: %d batches, empty %v; want up to %d",
			after, r.Name, len(got), slice.Empty(), len(want))
	}
	size := 0
	for i, s := range got {
		w := want[i]
		if s.First != w.First || s.Last != w.Last || s.Hash != w.Hash || s.Boundary != w.Boundary ||
			!bytes.Equal(s.Data, w.Data) {
			tb.Fatalf("read after %d of %d by %s: batch %d is %s; want %s", after, maxBytes, r.Name, i, show(s), show(w))
		}
		size += len(s.Data)
	}
	if len(got) > 1 && size > maxBytes {
		tb.Fatalf("read after %d by %s: %d bytes; limit %d", after, r.Name, size, maxBytes)
	}
}

func show(s logbuffer.Stored) string {
	return fmt.Sprintf("%d to %d, hash %x, boundary %v, %d bytes", s.First, s.Last, s.Hash, s.Boundary, len(s.Data))
}

// refused tells whether the model allows SetReaders to be refused: something is pending or waiting.
func (m *model) refused(rs []logbuffer.Reader, err error) bool {
	if !errors.Is(err, logbuffer.ErrUnavailable) {
		return false
	}
	for _, r := range m.readers {
		i := slices.IndexFunc(rs, func(s logbuffer.Reader) bool { return s.Name == r.Name })
		if i < 0 && len(r.open) > 0 || i >= 0 && !slices.Equal(rs[i].Sinks, r.Sinks) {
			return true
		}
	}
	return false
}
