package replica

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// intactEntry checks an entry's checksum, whatever its version. An error wraps logbuffer.ErrCorrupt.
func intactEntry(p []byte) error {
	cut := len(p) - entryTail
	if cut < 1 || crc32.Checksum(p[:cut], castagnoli) != binary.LittleEndian.Uint32(p[cut:]) {
		return fmt.Errorf("%w: the checksum of an entry of %d bytes is wrong", logbuffer.ErrCorrupt, len(p))
	}
	return nil
}

// disk is a node's data folder as the node uses it. The one implementation is storageDisk; tests of many nodes in one
// process have another in memory.
type disk interface {
	// names returns the server id and the lineage, empty while it is not known.
	names() (identity, lineage string)
	// hasState tells whether the data ever took part in a log.
	hasState() (bool, error)
	// setLineage makes the lineage durable.
	setLineage(lineage string) error
	log() raft.LogStore
	stable() raft.StableStore
	snapshots() snapshots
	segments() *logbuffer.Folder
	// sinceSnapshot is how many bytes of log the newest snapshot does not cover.
	sinceSnapshot() int64
	// entriesWithin is how many of the newest entries take about so many bytes.
	entriesWithin(bytes int64) uint64
	// stalled is how long the log's write in progress has lasted; 0 if there is none.
	stalled() time.Duration
	// room is nil while there is free space for tuples.
	room() error
	// describe fills in what the status says of the disk.
	describe(s *Status)
	// close closes all files; Raft must have stopped.
	close() error
}

// snapshots is a snapshot store for Raft and for the fsm.
type snapshots interface {
	raft.SnapshotStore
	imageStore
}

// storageDisk is a disk in a folder.
type storageDisk struct{ s *storage }

var _ disk = storageDisk{}

func (d storageDisk) names() (identity, lineage string) { return d.s.identity, d.s.lineage }
func (d storageDisk) hasState() (bool, error)           { return d.s.hasState() }
func (d storageDisk) setLineage(lineage string) error   { return d.s.setLineage(lineage) }
func (d storageDisk) log() raft.LogStore                { return d.s.logs }
func (d storageDisk) stable() raft.StableStore          { return d.s.stable }
func (d storageDisk) snapshots() snapshots              { return d.s.snaps }
func (d storageDisk) segments() *logbuffer.Folder       { return d.s.folder }
func (d storageDisk) sinceSnapshot() int64              { return d.s.logSinceSnapshot() }
func (d storageDisk) entriesWithin(bytes int64) uint64  { return d.s.logs.entriesWithin(bytes) }
func (d storageDisk) stalled() time.Duration            { return d.s.logs.stalled() }
func (d storageDisk) room() error                       { return d.s.space.check() }
func (d storageDisk) close() error                      { return d.s.close() }

func (d storageDisk) describe(s *Status) {
	s.Raft.FirstIndex, _ = d.s.logs.FirstIndex() // what fails here fails the node elsewhere
	s.Raft.SnapshotIndex = d.s.snaps.newestIndex()
	s.Raft.SnapshotLag = d.s.logSinceSnapshot()
	free, _ := d.s.space.read()
	s.Disk = DiskStatus{
		FreeBytes: free, WaitBelow: d.s.space.minimum, LogBytes: d.s.logs.written(),
		SyncP50: d.s.syncs.quantile(0.5).Microseconds(), SyncP999: d.s.syncs.quantile(0.999).Microseconds(),
	}
}
