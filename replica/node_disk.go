package replica

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

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

// describeDisk fills in what the status says of the data folder.
func (n *Node) describeDisk(s *Status) {
	d := n.store
	s.Raft.FirstIndex, _ = d.logs.FirstIndex() // what fails here ends the node elsewhere
	s.Raft.SnapshotIndex = d.snaps.newestIndex()
	s.Raft.SnapshotLag = d.logSinceSnapshot()
	free, _ := d.space.read()
	s.Disk = DiskStatus{
		FreeBytes: free, WaitBelow: d.space.minimum, LogBytes: d.logs.written(),
		SyncP50: d.syncs.quantile(0.5).Microseconds(), SyncP999: d.syncs.quantile(0.999).Microseconds(),
	}
}
