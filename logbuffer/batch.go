package logbuffer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrVersion is data in a format that this program does not know, written by a newer one. It is not damage: the data is
// whole, and running the newer program is the cure.
var ErrVersion = errors.New("unknown format version")

const (
	batchVersion = 1
	// MaxBatchBytes bounds the encoded size of one batch; AppendBatch panics beyond it. Callers limit tuples and entries
	// far below.
	MaxBatchBytes = 256 << 20
	// frameBytes is what stands before a batch's version: its length and its checksum.
	frameBytes = 8
	// minTupleBytes is the least that a tuple takes: key, value, number of headers, time, position.
	minTupleBytes = 5
)

// Encoded is one batch in its stored form, with its length and its checksum:
//
//	length of the rest after the CRC (4, LE) | CRC-32C of what follows (4, LE) | version (1) | count | first position
//	| last position | source | partition | sink | headers | tuple × count
//
//	tuple   = key | value | headers | time − time before | position − position before
//	headers = number | (header key | header value) × number
//
// The headers that all tuples begin with stand once, before the tuples; a tuple has its further ones. Numbers are
// varints, signed ones zig-zag; positions start from the first position, times from 0. A key or value is its length + 1
// and its bytes, 0 being null, but a header's key just its length and its bytes. An Encoded is never changed once made.
type Encoded []byte

// AppendBatch appends the stored form of b to dst. Rule, After and IDs are not stored: they are judged on arrival.
func AppendBatch(dst []byte, b *Batch) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, batchVersion)
	var first, last int64
	if n := len(b.Tuples); n > 0 {
		first, last = b.Tuples[0].Position, b.Tuples[n-1].Position
	}
	dst = binary.AppendUvarint(dst, uint64(len(b.Tuples)))
	dst = binary.AppendVarint(dst, first)
	dst = binary.AppendVarint(dst, last)
	dst = appendBytes(dst, b.Source)
	dst = binary.AppendVarint(dst, int64(b.Partition))
	dst = appendBytes(dst, b.Sink)
	shared := sharedHeaders(b.Tuples)
	dst = appendHeaders(dst, shared)
	var time int64
	position := first
	for i := range b.Tuples {
		t := &b.Tuples[i]
		dst = appendTuple(dst, t, len(shared), time, position)
		time, position = t.Time, t.Position
	}
	n := len(dst) - start
	if n > MaxBatchBytes {
		panic(fmt.Sprintf("logbuffer: a batch of %d bytes exceeds %d", n, MaxBatchBytes))
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(n-frameBytes))
	binary.LittleEndian.PutUint32(dst[start+4:], checksum(dst[start+frameBytes:]))
	return dst
}

func appendTuple(dst []byte, t *Tuple, shared int, time, position int64) []byte {
	dst = appendNullable(dst, t.Key)
	dst = appendNullable(dst, t.Value)
	dst = appendHeaders(dst, t.Headers[shared:])
	dst = binary.AppendVarint(dst, t.Time-time)
	return binary.AppendVarint(dst, t.Position-position)
}

// NextEncoded takes one batch off the front of p by its length alone: neither its checksum nor its structure is looked
// at. Both results alias p. An error wraps ErrCorrupt.
func NextEncoded(p []byte) (e Encoded, rest []byte, err error) {
	if len(p) < frameBytes+1 {
		return nil, nil, fmt.Errorf("batch: %d bytes are no batch: %w", len(p), ErrCorrupt)
	}
	n := uint64(binary.LittleEndian.Uint32(p)) + frameBytes
	if n <= frameBytes || n > MaxBatchBytes || n > uint64(len(p)) {
		return nil, nil, fmt.Errorf("batch: length %d with %d bytes there: %w", n, len(p), ErrCorrupt)
	}
	return Encoded(p[:n:n]), p[n:], nil
}

// header is the decoded front of a batch, up to the shared headers; source and sink alias it.
type header struct {
	count        int
	first, last  int64
	source, sink []byte
	partition    int32
	rest         []byte
}

// header parses the front of the batch; ok is false if it does not parse.
func (e Encoded) header() (h header, ok bool) {
	if len(e) < frameBytes+1 || e[frameBytes] != batchVersion {
		return header{}, false
	}
	in := parser{rest: e[frameBytes+1:]}
	count := in.uvarint()
	h.first, h.last = in.varint(), in.varint()
	h.source = in.bytes()
	partition := in.varint()
	h.sink = in.bytes()
	h.rest = in.rest
	h.partition = int32(partition)
	if in.bad || count > uint64(len(h.rest)/minTupleBytes) || int64(h.partition) != partition {
		return header{}, false
	}
	h.count = int(count)
	return h, true
}

// sum is the stored CRC-32C.
func (e Encoded) sum() uint32 { return binary.LittleEndian.Uint32(e[4:]) }

// Count returns the number of tuples. Like the other peeks it parses the front of the batch only and returns the zero
// value where that does not parse; Check first what was not made here.
func (e Encoded) Count() int {
	h, _ := e.header()
	return h.count
}

// FirstPosition returns the position of the first tuple; see Count.
func (e Encoded) FirstPosition() int64 {
	h, _ := e.header()
	return h.first
}

// LastPosition returns the position of the last tuple; see Count.
func (e Encoded) LastPosition() int64 {
	h, _ := e.header()
	return h.last
}

// Source returns the name of the source; see Count.
func (e Encoded) Source() string {
	h, _ := e.header()
	return string(h.source)
}

// Sink returns the sink that the tuples are for, empty for every reader's; see Count.
func (e Encoded) Sink() string {
	h, _ := e.header()
	return string(h.sink)
}

// Partition returns the tuples' partition at the source; see Count.
func (e Encoded) Partition() int32 {
	h, _ := e.header()
	return h.partition
}

// intact checks length, checksum, version and the front of the batch, and returns the front.
func (e Encoded) intact() (header, error) {
	if len(e) < frameBytes+1 || uint64(binary.LittleEndian.Uint32(e))+frameBytes != uint64(len(e)) {
		return header{}, fmt.Errorf("batch: its length is not %d: %w", len(e), ErrCorrupt)
	}
	if got := checksum(e[frameBytes:]); got != e.sum() {
		return header{}, fmt.Errorf("batch: checksum %08x, stored %08x: %w", got, e.sum(), ErrCorrupt)
	}
	if v := e[frameBytes]; v != batchVersion {
		return header{}, fmt.Errorf("batch: format version %d, this program knows %d: %w", v, batchVersion, ErrVersion)
	}
	h, ok := e.header()
	if !ok {
		return header{}, fmt.Errorf("batch: its front does not parse: %w", ErrCorrupt)
	}
	return h, nil
}

// Check verifies the checksum, then the whole structure. An error wraps ErrCorrupt, or ErrVersion if the batch is whole
// but of an unknown format.
func (e Encoded) Check() error {
	h, err := e.intact()
	if err != nil {
		return err
	}
	in := parser{rest: h.rest}
	in.skipShared()
	position := h.first
	for i := range h.count {
		in.nullable()
		in.nullable()
		in.skipHeaders()
		in.varint()
		delta := in.varint()
		position += delta
		if i == 0 && delta != 0 {
			in.fail()
		}
	}
	return ended(&in, h, position)
}

// ended judges the parser after the last tuple.
func ended(in *parser, h header, position int64) error {
	if in.bad || len(in.rest) != 0 || position != h.last {
		return fmt.Errorf("batch: its tuples do not parse: %w", ErrCorrupt)
	}
	return nil
}

// Decode checks the batch and returns it. Keys and values alias e, and the tuples without headers of their own have one
// slice of headers in common. Errors are those of Check.
func (e Encoded) Decode() (Batch, error) {
	h, err := e.intact()
	if err != nil {
		return Batch{}, err
	}
	b := Batch{Source: string(h.source), Partition: h.partition, Sink: string(h.sink)}
	if h.count > 0 {
		b.Tuples = make([]Tuple, h.count)
	}
	in := parser{rest: h.rest}
	shared := in.sharedHeaders()
	var time int64
	position := h.first
	for i := range b.Tuples {
		t := &b.Tuples[i]
		t.Key, t.Value = in.nullable(), in.nullable()
		t.Headers = in.headers(shared)
		time += in.varint()
		delta := in.varint()
		position += delta
		t.Time, t.Position = time, position
		if i == 0 && delta != 0 {
			in.fail()
		}
	}
	if err := ended(&in, h, position); err != nil {
		return Batch{}, err
	}
	return b, nil
}

// Cut returns e without the tuples whose keep is false, encoded anew; e itself if all are kept, nil if none is. It is
// used at apply, when deduplication drops a part of a batch. What is encoded anew takes at most twice its size in
// memory. Errors are those of Check.
func Cut(e Encoded, keep []bool) (Encoded, error) {
	b, err := e.Decode()
	if err != nil {
		return nil, err
	}
	if len(keep) != len(b.Tuples) {
		return nil, fmt.Errorf("batch: %d judgements on %d tuples: %w", len(keep), len(b.Tuples), ErrCorrupt)
	}
	kept := b.Tuples[:0]
	for i, t := range b.Tuples {
		if keep[i] {
			kept = append(kept, t)
		}
	}
	switch len(kept) {
	case len(keep):
		return e, nil
	case 0:
		return nil, nil
	}
	b.Tuples = kept
	cut := AppendBatch(make([]byte, 0, len(e)), &b)
	if len(cut) < len(e)/2 {
		cut = slices.Clone(cut) // so that little data holds little memory
	}
	return cut, nil
}

// chain returns the running hash after a batch: it depends on every batch since the buffer's first, and on nothing but
// their contents and their tuples' number, so that all replicas agree whatever their files look like.
func chain(hash uint64, sum uint32, count int) uint64 {
	return scramble(hash*0x9e3779b97f4a7c15 + (uint64(sum)<<32 | uint64(uint32(count))))
}

// inside returns the hash at an offset inside a batch, n tuples after hash; it differs from every batch end's.
func inside(hash, n uint64) uint64 { return scramble(hash ^ scramble(n^0x5851f42d4c957f2d)) }

// scramble is the finisher of MurmurHash3: every bit of x changes about half of the result's.
func scramble(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
