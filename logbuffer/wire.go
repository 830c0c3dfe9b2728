package logbuffer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// castagnoli is the table of CRC-32C, the checksum of batches, segments, letters and manifests.
//
//nolint:gochecknoglobals // a constant that the language cannot express
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// parser takes encoded fields off the front of a byte slice. The first field that does not fit makes it bad for good;
// from then on it yields zeros, so that the caller checks once, at the end.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) fail() { p.rest, p.bad = nil, true }

func (p *parser) uvarint() uint64 {
	if len(p.rest) > 0 && p.rest[0] < 0x80 {
		v := uint64(p.rest[0])
		p.rest = p.rest[1:]
		return v
	}
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) varint() int64 {
	u := p.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (p *parser) fixed32() uint32 {
	if b := p.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (p *parser) fixed64() uint64 {
	if b := p.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (p *parser) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

// take returns the next n bytes, aliased, or nil if there are fewer; n = 0 yields an empty slice.
func (p *parser) take(n uint64) []byte {
	if p.bad || n > uint64(len(p.rest)) {
		p.fail()
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

// bytes reads a length and that many bytes.
func (p *parser) bytes() []byte { return p.take(p.uvarint()) }

// nullable reads what appendNullable wrote: nil and empty are told apart.
func (p *parser) nullable() []byte {
	n := p.uvarint()
	if n == 0 {
		return nil
	}
	return p.take(n - 1)
}

// count reads the number of items that follow, each of which takes at least size bytes: a larger number is refused, so
// that what is allocated stays in proportion to what was read.
func (p *parser) count(size int) int {
	n := p.uvarint()
	if n > uint64(len(p.rest)/size) {
		p.fail()
		return 0
	}
	return int(n)
}

func appendBytes[T ~string | ~[]byte](dst []byte, b T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func appendNullable(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))+1), b...)
}

// appendFrame wraps a body: version, length, body, CRC-32C of all before. The manifests of Buffer and Dead use it.
func appendFrame(dst []byte, version byte, body []byte) []byte {
	start := len(dst)
	dst = append(dst, version)
	dst = appendBytes(dst, body)
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}

// nextFrame undoes appendFrame. The body aliases p. The frame itself is the same in every version, so that a newer one
// is told apart from damage.
func nextFrame(what string, version byte, p []byte) (body, rest []byte, err error) {
	in := parser{rest: p}
	got := in.byte()
	body = in.bytes()
	covered := len(p) - len(in.rest)
	sum := in.fixed32()
	switch {
	case len(p) == 0:
		return nil, nil, fmt.Errorf("%s: missing: %w", what, ErrCorrupt)
	case in.bad:
		return nil, nil, fmt.Errorf("%s: cut short at %d bytes: %w", what, len(p), ErrCorrupt)
	case checksum(p[:covered]) != sum:
		return nil, nil, fmt.Errorf("%s: checksum does not match: %w", what, ErrCorrupt)
	case got != version:
		return nil, nil, fmt.Errorf("%s: format version %d, this program knows %d: %w", what, got, version, ErrVersion)
	}
	return body, in.rest, nil
}

func updateSum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }
