package logbuffer

import (
	"bytes"
	"encoding/binary"
	"slices"
)

const (
	minHeaderBytes = 2
	// maxShared and maxSharedBytes bound the headers that a batch stores once: what is decoded, or written to a sink, must
	// stay in proportion to what is stored.
	maxShared      = 8
	maxSharedBytes = 256
)

// sharedHeaders returns the headers that all tuples begin with, as many as may be stored once.
func sharedHeaders(tuples []Tuple) []Header {
	if len(tuples) == 0 {
		return nil
	}
	shared := tuples[0].Headers
	shared = shared[:min(len(shared), maxShared)]
	for i := 1; i < len(tuples) && len(shared) > 0; i++ {
		if h := tuples[i].Headers; len(h) < len(shared) || &h[0] != &shared[0] {
			shared = shared[:common(shared, h)]
		}
	}
	size := 0
	for i, h := range shared {
		if size += len(h.Key) + len(h.Value); size > maxSharedBytes {
			return shared[:i]
		}
	}
	return shared
}

// common returns the length of the longest common prefix.
func common(a, b []Header) int {
	for i := range min(len(a), len(b)) {
		x, y := &a[i], &b[i]
		if x.Key != y.Key || !bytes.Equal(x.Value, y.Value) || (x.Value == nil) != (y.Value == nil) {
			return i
		}
	}
	return min(len(a), len(b))
}

func appendHeaders(dst []byte, headers []Header) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(headers)))
	for i := range headers {
		dst = appendBytes(dst, headers[i].Key)
		dst = appendNullable(dst, headers[i].Value)
	}
	return dst
}

// headers reads headers and returns them behind those given, the given slice itself if there are none to read.
func (p *parser) headers(before []Header) []Header {
	n := p.count(minHeaderBytes)
	if n == 0 {
		return before
	}
	all := append(make([]Header, 0, len(before)+n), before...)
	for range n {
		all = append(all, Header{Key: string(p.bytes()), Value: p.nullable()})
	}
	return all
}

func (p *parser) skipHeaders() {
	for range p.count(minHeaderBytes) {
		p.bytes()
		p.nullable()
	}
}

// sharedHeaders reads what is stored once, without room behind it: who appends to it gets a copy.
func (p *parser) sharedHeaders() []Header {
	at := *p
	p.skipShared()
	if p.bad {
		return nil
	}
	return slices.Clip(at.headers(nil))
}

// skipShared passes what is stored once and holds it against its bounds.
func (p *parser) skipShared() {
	n, size := p.count(minHeaderBytes), 0
	if n > maxShared {
		p.fail()
		return
	}
	for range n {
		size += len(p.bytes()) + len(p.nullable())
	}
	if size > maxSharedBytes {
		p.fail()
	}
}
