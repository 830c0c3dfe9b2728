package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// The encoding, all integers as (u)varints:
//
//	table   = sources | sessions | ids
//	sources = n | (name length | name | last) × n, by name
//	session = n | (name length | name | last | seen since the one before) × n, by last use
//	ids     = n | (id (16) | seen since the one before) × n, by last use
//
// The bounds are not in it: they are settings of the caller.

// errTable is the cause of every error of Restore.
var errTable = errors.New("dedup table does not decode")

// Append appends the table's encoding to dst. Two tables that saw the same calls have the same encoding.
func (t *Table) Append(dst []byte) []byte {
	p := &t.positions
	dst = binary.AppendUvarint(dst, uint64(len(p.sources)))
	for _, name := range slices.Sorted(maps.Keys(p.sources)) {
		dst = appendString(dst, name)
		dst = binary.AppendVarint(dst, p.sources[name].last)
	}
	dst = binary.AppendUvarint(dst, uint64(len(p.sessions)))
	before := int64(0)
	for at := p.order.Front(); at != nil; at = at.Next() {
		name, _ := at.Value.(string)
		s := p.sessions[name]
		dst = appendString(dst, name)
		dst = binary.AppendVarint(dst, s.last)
		dst = binary.AppendVarint(dst, s.seen-before)
		before = s.seen
	}
	dst = binary.AppendUvarint(dst, uint64(len(t.ids.index)))
	before = 0
	for at := t.ids.oldest; at != none; at = t.ids.slots[at].next {
		s := &t.ids.slots[at]
		dst = append(dst, s.id[:]...)
		dst = binary.AppendVarint(dst, s.seen-before)
		before = s.seen
	}
	return dst
}

// Restore reads a table that Append wrote from the start of p and returns what follows it. It never panics on damaged
// bytes but for bounds that fail their Check; what the bounds do not allow any more is forgotten at the next Expire.
func Restore(b Bounds, p []byte) (t *Table, rest []byte, err error) {
	t = NewTable(b)
	d := decoder{p: p}
	name := ""
	for i := range d.count(2) {
		before := name
		name = d.string()
		if i > 0 && name <= before {
			d.fail("sources out of order")
		}
		t.positions.sources[name] = &source{last: d.varint()}
	}
	seen := int64(0)
	for i := range d.count(3) {
		name, last := d.string(), d.varint()
		seen = d.later(seen, i)
		if t.positions.openSession(name, seen) {
			d.fail("session twice")
		}
		t.positions.sessions[name].last = last
	}
	seen = 0
	for i := range d.count(len(ID{}) + 1) {
		id := ID(d.bytes(uint64(len(ID{}))))
		seen = d.later(seen, i)
		if t.ids.see(id, seen) {
			d.fail("id twice")
		}
	}
	if d.err != nil {
		return nil, nil, d.err
	}
	return t, d.p, nil
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// decoder reads from p until the first failure; after it every read gives zeros and every loop ends.
type decoder struct {
	p   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errTable, what)
	}
	d.p = nil
}

// count reads a number of items of at least size bytes each and yields 0 to n-1 while there is no failure.
func (d *decoder) count(size int) func(yield func(int) bool) {
	n := d.uvarint()
	if n > uint64(len(d.p)/size) {
		d.fail("too short for its count")
	}
	return func(yield func(int) bool) {
		for i := 0; uint64(i) < n && d.err == nil; i++ {
			if !yield(i) {
				return
			}
		}
	}
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 {
		d.fail("bad integer")
		return 0
	}
	d.p = d.p[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.p)
	if n <= 0 {
		d.fail("bad integer")
		return 0
	}
	d.p = d.p[n:]
	return v
}

// later reads a time that is given relative to before; only the first one may lie before it.
func (d *decoder) later(before int64, i int) int64 {
	t := before + d.varint()
	if i > 0 && t < before {
		d.fail("time goes back")
	}
	return t
}

// bytes returns the next n bytes, or n zeros after a failure (n is then not more than an id's).
func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.p)) {
		d.fail("too short")
		return make([]byte, len(ID{}))
	}
	b := d.p[:n]
	d.p = d.p[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes(d.uvarint())) }
