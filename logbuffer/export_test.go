package logbuffer

// SetMutants switches protections of everything above the folder off: no checksum on read, a sealed file written again,
// files unlinked although pinned.
func SetMutants(f *Folder, skipCRC, rewriteSealed, ignorePins bool) {
	f.mutant = mutants{skipCRC: skipCRC, rewriteSealed: rewriteSealed, ignorePins: ignorePins}
}

// SetSyncOnce makes the folder believe that a file synced once stays so.
func SetSyncOnce(f *Folder) { f.mutant.syncOnce = true }

// SetToken fixes what is random in the names of files.
func SetToken(f *Folder, token string) { f.token = token }

// InFiles returns the offset up to which segments hold the batches.
func InFiles(b *Buffer) uint64 { return b.spilled.off }

// TailFrom returns the offset after which batches are in memory, TailBytes how many bytes they take.
func TailFrom(b *Buffer) uint64 { return b.tail.from.off }

// TailBytes returns the bytes that the tail accounts for.
func TailBytes(b *Buffer) int64 { return b.tail.bytes }

// Labels returns the number of sinks that the buffer remembers.
func Labels(b *Buffer) int { return len(b.labels) }

// OpenFiles returns the number of files that the folder holds open.
func OpenFiles(f *Folder) int { return len(f.open) }

// SetSizes makes what is read at a time, and the distance of index entries, small.
func SetSizes(f *Folder, chunk, interval uint64) { f.chunk, f.interval = chunk, interval }

// Contradictions is the number of ways in which Contradict breaks a buffer.
const Contradictions = 9

// Contradict breaks an invariant of a buffer with one reader that has tuples pending.
func Contradict(b *Buffer, way int) {
	r := b.readers[0]
	switch way {
	case 0:
		b.trimmed.off = b.end.off + 2
	case 1:
		b.needed = b.trimmed.off - 1
	case 2:
		r.at.off = b.trimmed.off - 1
	case 3:
		r.acked = b.end.off + 2
	case 4:
		r.pending += b.end.off
	case 5:
		r.pendingBytes = 0
	case 6:
		b.tail.bytes = 0
	case 7:
		b.segments = b.segments[1:]
	case 8:
		r.pending = 0
	}
}
