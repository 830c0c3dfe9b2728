package logbuffer

// SetMutants switches protections of everything above the folder off: no checksum on read, a sealed file written again,
// files unlinked although pinned.
func SetMutants(f *Folder, skipCRC, rewriteSealed, ignorePins bool) {
	f.mutant = mutants{skipCRC: skipCRC, rewriteSealed: rewriteSealed, ignorePins: ignorePins}
}

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
