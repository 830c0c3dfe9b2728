package replica

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"ftproxy/logbuffer"
)

// Ledger accounts for every tuple that was received for one reader. At any moment
//
//	Received = Delivered + Deduplicated + DeadLettered + Dropped + Retained
//
// where Retained is counted by the buffer and the rest by the commands that were applied. What was refused (a gap, an
// expired session) was not received.
type Ledger struct {
	// Buffer is "in" or "out", Reader the reader of it.
	Buffer, Reader string
	// Received counts tuples that arrived for the reader; for one that was added later, from what it found retained.
	Received uint64
	// Delivered counts tuples that the reader acknowledged as handed on.
	Delivered uint64
	// Deduplicated counts tuples that were not admitted because they were known.
	Deduplicated uint64
	// DeadLettered counts the reader's unresolved dead letters. A letter that is requeued is retained again.
	DeadLettered uint64
	// Dropped counts tuples that a policy discarded, and dead letters that were dropped by hand.
	Dropped uint64
	// Retained counts tuples in the buffer that the reader has not acknowledged.
	Retained uint64
}

// balance returns an error if the ledger does not add up.
func (l *Ledger) balance() error {
	if l.Received == l.Delivered+l.Deduplicated+l.DeadLettered+l.Dropped+l.Retained {
		return nil
	}
	return fmt.Errorf("%w: the ledger does not add up: %+v", logbuffer.ErrCorrupt, *l)
}

// counts is the counted part of a reader's ledger.
type counts struct {
	received, delivered, deduplicated, deadLettered, dropped uint64
}

// ledgers holds the counts of each reader; readers' names differ over both buffers.
type ledgers map[string]*counts

// appendTo encodes: n | (reader | its five counts) × n, by reader.
func (l ledgers) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(l)))
	for _, name := range slices.Sorted(maps.Keys(l)) {
		c := l[name]
		dst = appendString(dst, name)
		for _, v := range []uint64{c.received, c.delivered, c.deduplicated, c.deadLettered, c.dropped} {
			dst = binary.AppendUvarint(dst, v)
		}
	}
	return dst
}

func restoreLedgers(d *bodyReader) ledgers {
	l := ledgers{}
	for range d.count(6) {
		name := d.stringOf(maxName)
		l[name] = &counts{
			received: d.uvarint(), delivered: d.uvarint(), deduplicated: d.uvarint(),
			deadLettered: d.uvarint(), dropped: d.uvarint(),
		}
	}
	return l
}
