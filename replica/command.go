package replica

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"ftproxy/logbuffer"
)

// This file is the codec of the replicated log's entries; command_body.go has the commands' bodies.
//
//	entry   = version(1) | time ms (uvarint) | n (uvarint) | command × n | CRC-32C of all before (4, LE)
//	command = kind(1) | proposer | incarnation (uvarint) | number (uvarint) | body length (uvarint) | body
//
// A string is its length (uvarint) and its bytes.

// formatVersion is the newest entry format and the newest set of kinds that this build reads and writes. A new kind or
// a changed body raises it; an entry bears the lowest version that can read it, and the leader writes no entry of a
// version that a member has not announced.
const formatVersion = 1

// kind says what a command is.
type kind uint8

const (
	kindOpen kind = iota + 1
	kindAppend
	kindCommit
	kindAck
	kindRequeue
	kindDrop
	kindOpenSession
	kindTick
	kindHash
	kindAnnounce
	kindSettings
	kindEnd // the first one that is unknown
)

// String returns the command's name.
func (k kind) String() string {
	names := [...]string{
		"none", "open", "append", "commit", "ack", "requeue", "drop", "open-session", "tick", "hash", "announce", "settings",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// maxProposer is the longest name of a proposer, in bytes.
const maxProposer = 255

// castagnoli is the CRC's table. It is never changed.
var castagnoli = crc32.MakeTable(crc32.Castagnoli) //nolint:gochecknoglobals // a constant in all but syntax

// command is one numbered proposal. Body is made by one of the append…Body functions and is not changed any more.
type command struct {
	Kind        kind
	Proposer    string
	Incarnation uint64
	Number      uint64
	Body        []byte
}

// size is the encoded size in bytes, at most.
func (c command) size() int {
	return 1 + 4*binary.MaxVarintLen64 + len(c.Proposer) + len(c.Body)
}

// appendTo appends the command's encoding.
func (c command) appendTo(dst []byte) []byte {
	dst = append(dst, byte(c.Kind))
	dst = appendString(dst, c.Proposer)
	dst = binary.AppendUvarint(dst, c.Incarnation)
	dst = binary.AppendUvarint(dst, c.Number)
	return appendBytes(dst, c.Body)
}

const (
	// entryHead is the room for version, time and number of commands.
	entryHead = 1 + 2*binary.MaxVarintLen64
	// entryTail is the room for the CRC.
	entryTail = crc32.Size
)

// entryBuilder coalesces commands into one entry; each command is copied once. The zero value is ready.
type entryBuilder struct {
	buf []byte // entryHead bytes of room, then the commands
	n   int
}

// grow makes room for an entry of size bytes, so that what is added up to there is not moved again.
func (b *entryBuilder) grow(size int) {
	if b.buf == nil {
		b.buf = make([]byte, entryHead, entryHead+size+entryTail)
	}
}

// add appends a command. Commands of one proposer must be added in the order of their numbers.
func (b *entryBuilder) add(c command) {
	b.grow(c.size())
	b.buf = c.appendTo(b.buf)
	b.n++
}

// size is the size in bytes of the entry so far, at most; 0 if it has no command.
func (b *entryBuilder) size() int {
	if b.n == 0 {
		return 0
	}
	return len(b.buf) + entryTail
}

// count is the number of commands so far.
func (b *entryBuilder) count() int { return b.n }

// seal returns the entry, stamped with the leader's replicated time in milliseconds, and makes the builder empty. The
// entry's memory is not used again by the builder.
func (b *entryBuilder) seal(now int64) []byte {
	b.grow(0)
	var head [entryHead]byte
	h := append(head[:0], formatVersion)
	h = binary.AppendUvarint(h, uint64(now))
	h = binary.AppendUvarint(h, uint64(b.n))
	entry := b.buf[entryHead-len(h):]
	copy(entry, h)
	entry = binary.LittleEndian.AppendUint32(entry, crc32.Checksum(entry, castagnoli))
	*b = entryBuilder{}
	return entry
}

// entry is a decoded entry; its commands alias the bytes that it was decoded from.
type entry struct {
	Time     int64
	Commands []command
	CRC      uint32
}

// decodeEntry reads an entry. An error wraps logbuffer.ErrCorrupt, or ErrVersion if a newer build wrote the entry.
func decodeEntry(p []byte) (entry, error) {
	if len(p) < 1+entryTail {
		return entry{}, fmt.Errorf("%w: entry of %d bytes", logbuffer.ErrCorrupt, len(p))
	}
	body, tail := p[:len(p)-entryTail], p[len(p)-entryTail:]
	e := entry{CRC: binary.LittleEndian.Uint32(tail)}
	if sum := crc32.Checksum(body, castagnoli); sum != e.CRC {
		return entry{}, fmt.Errorf("%w: entry's CRC is %08x, its bytes give %08x", logbuffer.ErrCorrupt, e.CRC, sum)
	}
	if v := body[0]; v != formatVersion {
		return entry{}, versionError("entry", int(v))
	}
	d := bodyReader{p: body[1:]}
	e.Time = int64(d.uvarint())
	n := d.uvarint()
	if e.Time < 0 || n > uint64(len(d.p)) {
		d.fail("time or number of commands out of range")
	}
	for range n {
		c := d.command()
		if d.err != nil {
			break
		}
		if c.Kind == 0 || c.Kind >= kindEnd {
			return entry{}, fmt.Errorf("%w: command of unknown %s in an entry of format %d: a newer build wrote it; "+
				"upgrade this node to the version that the other members run", ErrVersion, c.Kind, formatVersion)
		}
		e.Commands = append(e.Commands, c)
	}
	return e, d.end("entry")
}

// versionError says that something was written by a build with a newer format.
func versionError(what string, version int) error {
	return fmt.Errorf("%w: %s of format %d, this build reads format %d: upgrade this node to a build of format %d or "+
		"later", ErrVersion, what, version, formatVersion, version)
}

func (d *bodyReader) command() command {
	return command{
		Kind:        kind(d.byte()),
		Proposer:    d.stringOf(maxProposer),
		Incarnation: d.uvarint(),
		Number:      d.uvarint(),
		Body:        d.bytes(),
	}
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// bodyReader reads from p until the first failure, after which every read gives a zero. What it returns aliases p.
type bodyReader struct {
	p   []byte
	err error
}

func (d *bodyReader) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", logbuffer.ErrCorrupt, what)
	}
	d.p = nil
}

// end returns the first failure, or one if bytes are left over.
func (d *bodyReader) end(what string) error {
	if d.err == nil && len(d.p) > 0 {
		d.fail(fmt.Sprintf("%d bytes too many", len(d.p)))
	}
	if d.err != nil {
		return fmt.Errorf("%s: %w", what, d.err)
	}
	return nil
}

func (d *bodyReader) byte() byte {
	if len(d.p) == 0 {
		d.fail("too short")
		return 0
	}
	b := d.p[0]
	d.p = d.p[1:]
	return b
}

func (d *bodyReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 {
		d.fail("bad integer")
		return 0
	}
	d.p = d.p[n:]
	return v
}

func (d *bodyReader) varint() int64 {
	v, n := binary.Varint(d.p)
	if n <= 0 {
		d.fail("bad integer")
		return 0
	}
	d.p = d.p[n:]
	return v
}

// int reads an integer from 0 to limit.
func (d *bodyReader) int(limit int) int {
	v := d.uvarint()
	if v > uint64(limit) {
		d.fail("integer out of range")
		return 0
	}
	return int(v)
}

// count reads a number of items that take at least size bytes each.
func (d *bodyReader) count(size int) int { return d.int(len(d.p) / size) }

// fixed returns the next n bytes, or nil after a failure.
func (d *bodyReader) fixed(n int) []byte {
	if n > len(d.p) {
		d.fail("too short")
		return nil
	}
	b := d.p[:n:n]
	d.p = d.p[n:]
	return b
}

func (d *bodyReader) bytes() []byte { return d.fixed(d.int(len(d.p))) }

func (d *bodyReader) stringOf(limit int) string { return string(d.fixed(d.int(min(limit, len(d.p))))) }
