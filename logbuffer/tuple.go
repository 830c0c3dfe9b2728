package logbuffer

import "errors"

// Header is one name and value that travels with a tuple. A nil Value is null, an empty one is not.
type Header struct {
	Key   string
	Value []byte
}

// Tuple is one unit of the stream. A nil Key is "no key" and a nil Value is null (Kafka's tombstone); empty slices are
// neither. The slices are never changed once the tuple has been handed on.
type Tuple struct {
	Key     []byte
	Value   []byte
	Headers []Header
	// Time is the tuple's own timestamp in milliseconds since the Unix epoch; 0 if its source gave none.
	Time int64
	// Position is the tuple's place at its source, in the source's own numbering; see Rule.
	Position int64
}

// ID identifies a tuple for deduplication by id: a 128-bit hash of the configured source's name and the id that the
// client gave. The zero ID means "this tuple has none".
type ID [16]byte

// Rule says how the positions of a batch are judged against the last position admitted from its source.
type Rule uint8

const (
	// RuleNone is for a source without positions; only ids, if any, are judged.
	RuleNone Rule = iota
	// RuleSparse says that positions ascend and may have holes (Kafka offsets); what is at or below the last one is a
	// duplicate.
	RuleSparse
	// RuleDense says that the client numbers positions without holes, from 1; at or below the last one is a duplicate,
	// last+1 is admitted, anything above is a gap and refused whole.
	RuleDense
	// RuleSession is RuleDense for a client session (Source is the session's id) which must be open: a batch of an
	// unknown or expired session gets CodeExpired, never "new".
	RuleSession
	// RuleRange says that the batch covers the positions (After, last tuple's], holes allowed. It is admitted if After
	// equals the last position admitted (0 if none), overlaps are cut, and After beyond it is a gap and refused whole.
	RuleRange
)

// Batch is a run of tuples of one source, the unit in which tuples are stored, checked and read.
type Batch struct {
	// Source names the source with its lineage ("kafka/<topic uuid>/3"): two lives of a source never share a name.
	Source string
	// Partition is the tuples' partition at the source, used where a sink has to choose one for a tuple without a key.
	Partition int32
	// Sink is the sink that the tuples are for; empty: every reader's.
	Sink string
	Rule Rule
	// After is the position that the batch follows on; only RuleRange uses it.
	After  int64
	Tuples []Tuple
	// IDs holds one id a tuple for deduplication by id, or nothing. They are judged on arrival and not stored.
	IDs []ID
}

// Code is the verdict on a batch.
type Code uint8

const (
	// CodeDone says that every tuple was admitted or is a duplicate.
	CodeDone Code = iota
	// CodeGap says that positions are missing before this batch; nothing was admitted; Receipt.Expected is due.
	CodeGap
	// CodeExpired says that the session is unknown or expired; nothing was admitted.
	CodeExpired
	// CodeFull says that the source is new, and as many sources with positions are known as the settings allow; nothing
	// was admitted. Raising the bound is the cure.
	CodeFull
)

// Receipt is what the replicated state did with one batch. It is only ever given for a committed entry.
type Receipt struct {
	Code Code
	// First and Last are the offsets given to the admitted tuples, 0 if there are none.
	First, Last uint64
	// Admitted and Duplicates count tuples; with CodeDone they sum up to the batch.
	Admitted, Duplicates int
	// Expected, with CodeGap, is the position due next (RuleRange: the After due next).
	Expected int64
}

// Reader is one consumer of a buffer: a sink, or all sinks that share transactions. It reads the batches whose Sink is
// empty or among its Sinks (no Sinks: every batch).
type Reader struct {
	Name  string
	Sinks []string
}

// Letter is a dead letter: a tuple that a reader gave up on, with all it carried.
type Letter struct {
	// Offset is the letter's own offset in DEAD (0 until it is stored), From the tuple's offset in the buffer it was
	// read from.
	Offset, From uint64
	// Reader is the reader that gave up. Requeue sends the tuple to that reader only.
	Reader   string
	Reason   string
	Attempts int
	// Time is replicated time, in milliseconds since the Unix epoch, at which the letter was written.
	Time      int64
	Source    string
	Partition int32
	Sink      string
	Tuple     Tuple
}

// Ack moves a reader's cursor: every tuple of the reader up to UpTo is delivered, dead-lettered or dropped by policy.
type Ack struct {
	Reader string
	UpTo   uint64
	Dead   []Letter
	// Dropped counts the tuples among them that a policy discarded.
	Dropped int
}

// Three classes of error cross package borders; see ARCHITECTURE.md, "Errors".
var (
	// ErrUnavailable is a definite no: nothing was written and nothing will be. Ask again later.
	ErrUnavailable = errors.New("not available")
	// ErrTooLarge is a definite no: what was given exceeds a limit that the message names. Asking again is useless.
	ErrTooLarge = errors.New("too large")
	// ErrUnknown is an unknown outcome: it may still be written. Repeat with the same positions or ids.
	ErrUnknown = errors.New("outcome unknown")
	// ErrCorrupt is damage: data that fails its checksum or contradicts itself. It is never skipped.
	ErrCorrupt = errors.New("corrupt")
	// ErrTrimmed is a definite no to a read below the trimmed offset.
	ErrTrimmed = errors.New("trimmed")
)
