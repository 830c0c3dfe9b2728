package logbuffer

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	deadVersion = 1
	// DefaultDeadLetters is the bound on letters of a Dead whose options leave it at zero.
	DefaultDeadLetters = 10_000
	// DefaultDeadBytes is the bound on their encoded size.
	DefaultDeadBytes = 16 << 20
	// minLetterBytes is the least that a letter takes in a manifest.
	minLetterBytes = 2
)

// DeadOptions bounds a Dead.
type DeadOptions struct {
	// Letters and Bytes (of encoded letters) are the bounds at which Full is true; zero means the default.
	Letters int
	Bytes   int64
}

// Dead keeps dead letters until they are resolved, in any order. Offsets start at 1 and are dense:
//
//	resolved prefix │ letters not yet resolved, holes between them │
//	               Cursor                                         End
//
// It keeps only what is not resolved, so the holes take no memory. Its letters live in memory and in the manifest; its
// bounds keep both small. Not safe for concurrent use. Equal calls give equal manifests.
type Dead struct {
	o       DeadOptions
	end     uint64
	letters []filed // ascending by offset
	bytes   int64   // sum of len(letters[i].data)
}

type filed struct {
	offset uint64
	data   []byte // encoded, an own copy
}

// NewDead returns an empty Dead.
func NewDead(o DeadOptions) *Dead {
	if o.Letters <= 0 {
		o.Letters = DefaultDeadLetters
	}
	if o.Bytes <= 0 {
		o.Bytes = DefaultDeadBytes
	}
	return &Dead{o: o}
}

// Add stores a copy of the letter under the next offset, which it returns; l.Offset is ignored. It never refuses: who
// produces letters asks Full before.
func (d *Dead) Add(l Letter) uint64 {
	d.end++
	l.Offset = d.end
	data := appendLetter(nil, &l)
	d.letters = append(d.letters, filed{d.end, slices.Clip(data)})
	d.bytes += int64(len(data))
	d.assert()
	return d.end
}

// Resolve takes a letter out and returns it; ok is false if there is none at that offset (any more).
func (d *Dead) Resolve(offset uint64) (l Letter, ok bool) {
	i, ok := d.find(offset)
	if !ok {
		return Letter{}, false
	}
	l = d.decode(i)
	d.bytes -= int64(len(d.letters[i].data))
	d.letters = slices.Delete(d.letters, i, i+1)
	d.assert()
	return l, true
}

// Get returns the letter at an offset; ok is false if there is none (any more).
func (d *Dead) Get(offset uint64) (l Letter, ok bool) {
	i, ok := d.find(offset)
	if !ok {
		return Letter{}, false
	}
	return d.decode(i), true
}

// List returns up to limit letters with offsets above after, in order.
func (d *Dead) List(after uint64, limit int) []Letter {
	i, found := d.find(after)
	if found {
		i++
	}
	var out []Letter
	for ; i < len(d.letters) && len(out) < limit; i++ {
		out = append(out, d.decode(i))
	}
	return out
}

// Len returns the number of letters, Bytes their encoded size.
func (d *Dead) Len() int { return len(d.letters) }

// Bytes returns the encoded size of the letters.
func (d *Dead) Bytes() int64 { return d.bytes }

// Full tells whether a bound is reached.
func (d *Dead) Full() bool { return len(d.letters) >= d.o.Letters || d.bytes >= d.o.Bytes }

// SetOptions changes the bounds.
func (d *Dead) SetOptions(o DeadOptions) { d.o = NewDead(o).o }

// End returns the offset of the newest letter ever added.
func (d *Dead) End() uint64 { return d.end }

// Cursor returns the offset up to which every letter is resolved.
func (d *Dead) Cursor() uint64 {
	if len(d.letters) == 0 {
		return d.end
	}
	return d.letters[0].offset - 1
}

func (d *Dead) find(offset uint64) (int, bool) {
	return slices.BinarySearchFunc(d.letters, offset, func(f filed, offset uint64) int {
		switch {
		case f.offset < offset:
			return -1
		case f.offset > offset:
			return 1
		}
		return 0
	})
}

// decode returns letter i; it was encoded here or checked at restore, so it parses.
func (d *Dead) decode(i int) Letter {
	l, ok := parseLetter(d.letters[i].data)
	if !ok {
		panic(fmt.Sprintf("logbuffer: dead letter %d does not parse", d.letters[i].offset))
	}
	l.Offset = d.letters[i].offset
	return l
}

// assert checks in O(1) what must hold after every change.
func (d *Dead) assert() {
	n := len(d.letters)
	if d.Cursor() > d.end || (n == 0) != (d.bytes == 0) || d.bytes < 0 ||
		n > 0 && (d.letters[n-1].offset > d.end || d.letters[0].offset > d.letters[n-1].offset) {
		panic(fmt.Sprintf("logbuffer: dead letters contradict themselves: cursor %d, end %d, %d letters of %d bytes",
			d.Cursor(), d.end, n, d.bytes))
	}
}

// AppendManifest appends everything that RestoreDead needs.
func (d *Dead) AppendManifest(dst []byte) []byte {
	body := binary.AppendUvarint(nil, d.end)
	body = binary.AppendUvarint(body, uint64(len(d.letters)))
	var before uint64
	for _, f := range d.letters {
		body = binary.AppendUvarint(body, f.offset-before)
		body = appendBytes(body, f.data)
		before = f.offset
	}
	return appendFrame(dst, deadVersion, body)
}

// RestoreDead takes a manifest off the front of p and returns what it describes, and the rest. Errors wrap ErrCorrupt
// or ErrVersion. Nothing returned aliases p but rest.
func RestoreDead(o DeadOptions, p []byte) (d *Dead, rest []byte, err error) {
	body, rest, err := nextFrame("dead letters", deadVersion, p)
	if err != nil {
		return nil, nil, err
	}
	d = NewDead(o)
	in := parser{rest: body}
	d.end = in.uvarint()
	n := in.count(minLetterBytes)
	d.letters = make([]filed, 0, n)
	var offset uint64
	for range n {
		delta := in.uvarint()
		data := slices.Clone(in.bytes())
		offset += delta
		if _, ok := parseLetter(data); !ok || delta == 0 || offset < delta || offset > d.end {
			in.fail()
			break
		}
		d.letters = append(d.letters, filed{offset, data})
		d.bytes += int64(len(data))
	}
	if in.bad || len(in.rest) != 0 {
		return nil, nil, fmt.Errorf("dead letters: the manifest does not parse: %w", ErrCorrupt)
	}
	d.assert()
	return d, rest, nil
}

func appendLetter(dst []byte, l *Letter) []byte {
	dst = binary.AppendUvarint(dst, l.From)
	dst = appendBytes(dst, l.Reader)
	dst = appendBytes(dst, l.Reason)
	dst = binary.AppendVarint(dst, int64(l.Attempts))
	dst = binary.AppendVarint(dst, l.Time)
	return AppendBatch(dst, &Batch{Source: l.Source, Partition: l.Partition, Sink: l.Sink, Tuples: []Tuple{l.Tuple}})
}

func parseLetter(p []byte) (Letter, bool) {
	in := parser{rest: p}
	l := Letter{
		From: in.uvarint(), Reader: string(in.bytes()), Reason: string(in.bytes()),
		Attempts: int(in.varint()), Time: in.varint(),
	}
	b, err := Encoded(in.rest).Decode()
	if in.bad || err != nil || len(b.Tuples) != 1 {
		return Letter{}, false
	}
	l.Source, l.Partition, l.Sink, l.Tuple = b.Source, b.Partition, b.Sink, b.Tuples[0]
	return l, true
}
