// Package logbuffer is the FIFO of tuples between the stages of ftproxy: batches in a row with dense offsets, readers
// with cursors, and segment files for what does not fit into memory. It is deterministic: no clock, no goroutine, no
// network, no log; files only through FS. The design is in ARCHITECTURE.md, "The log buffer".
//
//	Append ─▶ ┌─────────┬───────────────────────────────┬───────────────┐
//	          │ trimmed │ segment files, sealed or open │ tail (memory) │ ─Locate▶ Slice ─Load▶ []Stored
//	Ack ────▶ └─────────┴───────────────────────────────┴───────────────┘
//	          Seal + AppendManifest ─▶ RestoreBuffer
//
// The files, bottom up:
//
//	tuple.go     tuples, batches, receipts, readers, letters; the error classes
//	wire.go      encoding of fields and frames
//	batch.go     the stored form of a batch, Cut, the running hash
//	headers.go   the headers that the tuples of a batch have in common
//	fs.go        FS, the folder of files, and the operating system's
//	folder.go    Folder: who still names a file, and unlinking
//	syncing.go   Folder: making files durable, early and at last
//	segment.go   the format of a segment file, its writer and its scanner
//	tail.go      the newest batches in memory
//	buffer.go    Buffer: append, spill, seal, trim, invariants
//	readers.go   readers and their cursors: SetReaders, Ack
//	slice.go     Locate, Load, HashAt
//	manifest.go  what a snapshot keeps of a Buffer, and RestoreBuffer
//	dead.go      Dead: letters that are resolved in any order
//
// What is not obvious:
//
//   - A place (offset, running hash, bytes so far) is both a point of the FIFO and a position in a segment file, since
//     the bytes count the records of all segments. So cursors need no file position of their own, survive a restart as
//     they are, and what is retained is the difference of two of them.
//   - A reader for which nothing is pending is at the end, wherever it acknowledged last; its confirmed offset and the
//     hash there stay as they are, for a sink that compares them with what it wrote downstream.
//   - An acknowledgement inside a segment reads the records it passes (sequentially, each once, checked), because only
//     they tell how many tuples were the reader's own, and which hash stands there.
package logbuffer
