package proxy

import (
	"context"

	"ftproxy/logbuffer"
)

// Source brings tuples in. A listening source (HTTP, TCP, ftproxy) runs on every node for the life of the process; a
// polling source (Kafka) runs on the leader, within its tenure.
type Source interface {
	// Run takes tuples in until ctx ends, acknowledging each to its upstream only after Intake.Append returned. It
	// retries what can be retried by itself. An error means that the source stopped and says why, naming cause and
	// cure; it is then shown in the status and the source is started again with growing waits, except after a Halt.
	Run(ctx context.Context, in Intake) error
}

// Intake is the upstream end of the replicated IN buffer. All methods may be called concurrently.
type Intake interface {
	// Append makes the batches durable on a quorum, as one entry of the replicated log, and returns a receipt each.
	// It waits while the buffer is full. Errors are of class logbuffer.ErrUnavailable (nothing was written),
	// ErrTooLarge (neither) or ErrUnknown (ctx ended first: it may still be written).
	Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error)
	// Position returns the last position admitted from a source, judged behind a Raft barrier; known is false if the
	// source was never seen.
	Position(ctx context.Context, source string) (last int64, known bool, err error)
	// OpenSession gives a client a session id for numbering its tuples (logbuffer.RuleSession).
	OpenSession(ctx context.Context) (string, error)
	// Lineage is the random name of this replicated log's life: a new one means that nothing of before is remembered.
	Lineage() string
}

// Sink brings tuples out. It runs on the leader, within its tenure, and is started anew in each.
type Sink interface {
	// Run delivers tuples in order until ctx ends and acknowledges them. Errors: as for Source.Run.
	Run(ctx context.Context, out Outlet) error
}

// Outlet is a reader's end of a replicated buffer, valid for one tenure. All methods may be called concurrently; once
// the tenure has ended they return an error that wraps logbuffer.ErrUnavailable or ErrUnknown.
type Outlet interface {
	// Reader is the name of the reader whose end this is.
	Reader() string
	// Buffer names the buffer that is read: "in" or "out".
	Buffer() string
	// Lineage is as in Intake.
	Lineage() string
	// Barrier returns once everything committed before the call is applied here and this node is known to lead.
	Barrier(ctx context.Context) error
	// Cursor returns the reader's place behind a barrier.
	Cursor(ctx context.Context) (Cursor, error)
	// Read returns the reader's batches that have offsets above after, in order, at least one and as many more as fit
	// into maxBytes of encoded size. It waits until there is one. Offsets that are skipped belong to other readers.
	Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error)
	// HashAt returns the buffer's running hash at offset n if n is the end of a stored batch, is the offset confirmed
	// for this reader, or is the trimmed offset; ok is false otherwise.
	HashAt(ctx context.Context, n uint64) (hash uint64, ok bool, err error)
	// Ack commits that all up to ack.UpTo is done; ack.Reader is filled in. It returns when the entry is applied.
	Ack(ctx context.Context, ack logbuffer.Ack) error
}

// Cursor is a reader's place in its buffer.
type Cursor struct {
	// Acked is the reader's confirmed offset, End the offset of the last tuple in the buffer.
	Acked, End uint64
	// Hash is the running hash at Acked.
	Hash uint64
	// EverAcked tells whether this reader ever confirmed anything.
	EverAcked bool
}

// Halt marks an error after which a source or sink must not be started again by itself: a human has to decide.
type Halt struct{ Cause error } //nolint:errname // named for what it makes a supervisor do

// Error returns the cause's text.
func (h *Halt) Error() string { return h.Cause.Error() }

// Unwrap returns the cause.
func (h *Halt) Unwrap() error { return h.Cause }
