package logbuffer

// Options sizes a Buffer; zero values mean the defaults.
type Options struct {
	// SegmentBytes is the size at which a segment file is sealed and the next one begun; default 64 MiB.
	SegmentBytes int64
	// TailBytes bounds the memory that the newest batches take, bookkeeping included; default 32 MiB.
	TailBytes int64
}

// Stored is one batch in its place in a buffer.
type Stored struct {
	// First and Last are the offsets of its tuples, Hash the running hash after it.
	First, Last, Hash uint64
	// Boundary tells that a Commit ended here: for a reader of some sinks, that none of its batches follows in the Commit.
	Boundary bool
	Data     Encoded
}

// Decode returns the batch; see Encoded.Decode.
func (s Stored) Decode() (Batch, error) { return s.Data.Decode() }

// ReaderCursor is one reader's place.
type ReaderCursor struct {
	Name string
	// Acked is the offset that the reader confirmed last, Hash the running hash there.
	Acked, Hash uint64
	// EverAcked tells whether this reader ever confirmed anything.
	EverAcked bool
	// PendingTuples counts the tuples of its own that it has not acknowledged, ReceivedTuples all that it was ever given.
	PendingTuples, ReceivedTuples uint64
	// PendingBytes is the encoded size of the batches of its own that it has not acknowledged whole.
	PendingBytes uint64
}

// Cursors describes a buffer at one moment. Trimmed ≤ Needed, and Trimmed ≤ every reader's place ≤ End.
type Cursors struct {
	// Trimmed is the end of the last batch that is gone, End the offset of the last tuple; with their running hashes.
	Trimmed, TrimmedHash, End, EndHash uint64
	// Needed is what SetNeeded set last.
	Needed uint64
	// Bytes is the encoded size of what is retained, Held the part of it that only Needed retains.
	Bytes, Held uint64
	// Unread counts the tuples for sinks that no reader reads; they are retained until one does.
	Unread  uint64
	Readers []ReaderCursor
}

type Buffer struct{}

type Slice struct{}

func NewBuffer(name string, folder *Folder, o Options) *Buffer { panic("being built") }

func RestoreBuffer(name string, folder *Folder, o Options, manifest []byte) (b *Buffer, rest []byte, err error) {
	panic("being built")
}

func (b *Buffer) Append(e Encoded, boundary bool) (first, last uint64) { panic("being built") }
func (b *Buffer) SetReaders(rs []Reader) error                         { panic("being built") }
func (b *Buffer) Ack(reader string, n uint64) error                    { panic("being built") }

// SetNeeded sets the floor; an error wraps ErrCorrupt (a segment had to be read).
func (b *Buffer) SetNeeded(n uint64) error                               { panic("being built") }
func (b *Buffer) Cursors() Cursors                                       { panic("being built") }
func (b *Buffer) Reader(name string) (ReaderCursor, bool)                { panic("being built") }
func (b *Buffer) End() uint64                                            { panic("being built") }
func (b *Buffer) Bytes() uint64                                          { panic("being built") }
func (b *Buffer) Locate(reader string, after uint64, maxBytes int) Slice { panic("being built") }
func (s Slice) Empty() bool                                              { panic("being built") }
func (s Slice) Load() ([]Stored, error)                                  { panic("being built") }
func (b *Buffer) HashAt(n uint64) (hash uint64, ok bool, err error)      { panic("being built") }
func (b *Buffer) Seal() error                                            { panic("being built") }
func (b *Buffer) AppendManifest(dst []byte) []byte                       { panic("being built") }
func (b *Buffer) SegmentNames() []string                                 { panic("being built") }

// Close releases the buffer's files (a state that is replaced must not hold them).
func (b *Buffer) Close() error { panic("being built") }
