package replica

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// logScan is what the log's files hold, found without changing them and without raft-wal, which repairs in silence.
type logScan struct {
	// first and last are the indexes of the first and the last entry, 0 if there is none.
	first, last uint64
	// segments are the log's files with the bytes that each uses; the last may not exist.
	segments []scannedSegment
	// tail is the path of the unsealed file; empty if there is none.
	tail string
	// tailEnd is the offset in tail at which the intact writes end, torn whether anything follows: a write that a crash
	// interrupted, or damage. Only the watermark can tell.
	tailEnd int64
	torn    bool
	// sealed is what the description would say of the unsealed file if a crash had not come between the write that
	// filled it and the note of that; nil: it has room.
	sealed *types.SegmentInfo
	// damage says what is wrong with the unsealed file although a crash cannot be why; empty: nothing is.
	damage string
}

type scannedSegment struct {
	first, last uint64
	bytes       int64
}

// The format of raft-wal's files, version 0: a header, then frames of a type, three zero bytes, and a length or a
// checksum, padded to 8 bytes. A commit frame carries the CRC-32C of everything since the commit before it.
const (
	walHeaderSize = 32
	walFrameSize  = 8
)

var errLogDamaged = errors.New("the log is damaged")

// scanLog reads the log's own description of its files and checks every one's presence, and the unsealed one's content.
// Damage comes back as errLogDamaged.
func scanLog(dir string) (logScan, error) {
	var scan logScan
	meta, err := loadWALMeta(dir)
	if err != nil {
		return scan, err
	}
	for i, info := range meta.Segments {
		path := filepath.Join(dir, segment.FileName(info))
		if i > 0 && meta.Segments[i-1].MaxIndex+1 != info.BaseIndex {
			return scan, fmt.Errorf("%w: nothing stands between entry %d and %d", errLogDamaged,
				meta.Segments[i-1].MaxIndex, info.BaseIndex)
		}
		if info.SealTime.IsZero() {
			if err := scan.readTail(path, info); err != nil {
				return scan, err
			}
			continue
		}
		stat, err := os.Stat(path)
		if err != nil || stat.Size() < int64(info.IndexStart) {
			return scan, fmt.Errorf("%w: %s is missing or shorter than it was", errLogDamaged, filepath.Base(path))
		}
		scan.add(info.MinIndex, info.MaxIndex, int64(info.IndexStart))
	}
	return scan, nil
}

func (s *logScan) add(first, last uint64, bytes int64) {
	if s.first == 0 {
		s.first = first
	}
	s.last = last
	s.segments = append(s.segments, scannedSegment{first: first, last: last, bytes: bytes})
}

// loadWALMeta reads wal-meta.db, which must exist.
func loadWALMeta(dir string) (state types.PersistentState, err error) {
	err = guarded(func() error {
		var db metadb.BoltMetaDB
		state, err = db.Load(dir)
		return errors.Join(err, db.Close())
	})
	if err != nil {
		return state, fmt.Errorf("%w: %s: %w", errLogDamaged, metadb.FileName, err)
	}
	return state, nil
}

// readTail checks the unsealed file write by write. raft-wal looks at the last write only, and takes what comes before
// the first frame that makes no sense for the whole.
func (s *logScan) readTail(path string, info types.SegmentInfo) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a crash came between naming the file and making it
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is only read
	t := tailReader{r: bufio.NewReaderSize(f, 1<<20)}
	s.tail = path
	switch err = t.read(info); {
	case errors.Is(err, errLogDamaged):
		s.damage = fmt.Sprintf("%s: %v", filepath.Base(path), err)
	case err != nil:
		return err
	}
	s.tailEnd = t.end
	if s.torn, err = anythingAfter(f, t.end); err != nil {
		return err
	}
	if t.index > 0 {
		info.MaxIndex, info.IndexStart, info.SealTime = info.BaseIndex+t.entries-1, uint64(t.index), time.Now()
		s.sealed = &info
	}
	if first, last := info.MinIndex, info.BaseIndex+t.entries-1; t.entries > 0 && first <= last {
		s.add(first, last, t.end)
	}
	return nil
}

// anythingAfter tells whether a file has bytes other than zero at or after offset.
func anythingAfter(f *os.File, offset int64) (bool, error) {
	buf := make([]byte, 1<<20)
	for {
		n, err := f.ReadAt(buf, offset)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return true, nil
		}
		if err != nil {
			return false, ignoreEOF(err)
		}
		offset += int64(n)
	}
}

// tailReader walks the frames of one file.
type tailReader struct {
	r       *bufio.Reader
	offset  int64
	crc     uint32 // of what was read since the last commit
	pending uint64 // entries since the last intact commit
	indexAt int64  // where an index since then begins; 0: there is none

	end     int64  // behind the last intact commit
	entries uint64 // up to end
	index   int64  // where the index begins that fills the file; 0: it is not full
}

// read goes as far as the writes are intact. It returns an error if they are not, and a crash cannot be why: a write is
// only begun after the one before it was synced.
func (t *tailReader) read(info types.SegmentInfo) error {
	var header [walHeaderSize]byte
	if err := t.next(header[:]); err != nil {
		return ignoreEOF(err)
	}
	broken := false // some commit's checksum was wrong
	for {
		var frame [walFrameSize]byte
		crc := t.crc
		if err := t.next(frame[:]); err != nil {
			return ignoreEOF(err)
		}
		value := binary.LittleEndian.Uint32(frame[4:])
		switch frame[0] {
		default:
			return nil
		case segment.FrameEntry, segment.FrameIndex:
			if frame[0] == segment.FrameEntry {
				t.pending++
			} else {
				t.indexAt = t.offset
			}
			if err := t.skip((int64(value) + walFrameSize - 1) &^ (walFrameSize - 1)); err != nil {
				return ignoreEOF(err)
			}
		case segment.FrameCommit:
			switch intact := crc == value; {
			case intact && broken:
				return fmt.Errorf("%w: a write before byte %d does not fit its checksum, and a later one does", errLogDamaged,
					t.offset)
			case intact:
				t.end, t.entries, t.index = t.offset, t.entries+t.pending, t.indexAt
			default:
				broken = true
			}
			t.crc, t.pending = 0, 0
			if first := binary.LittleEndian.Uint64(header[8:]); !broken && first != info.BaseIndex {
				return fmt.Errorf("%w: it begins with entry %d instead of %d", errLogDamaged, first, info.BaseIndex)
			}
		}
	}
}

// next reads into p and adds it to the checksum.
func (t *tailReader) next(p []byte) error {
	n, err := io.ReadFull(t.r, p)
	t.offset += int64(n)
	t.crc = crc32.Update(t.crc, castagnoli, p[:n])
	return err
}

// skip adds n bytes to the checksum.
func (t *tailReader) skip(n int64) error {
	sum := checksum(t.crc)
	read, err := io.CopyN(&sum, t.r, n)
	t.offset, t.crc = t.offset+read, uint32(sum)
	return err
}

// checksum is a running CRC-32C.
type checksum uint32

func (c *checksum) Write(p []byte) (int, error) {
	*c = checksum(crc32.Update(uint32(*c), castagnoli, p))
	return len(p), nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// completeSeal notes that the newest file is full and that another one follows, in case a crash came between: raft-wal
// does so in the background and, when it opens such a file, refuses every write to it for ever.
func (s *logScan) completeSeal(dir string) error {
	if s.sealed == nil {
		return nil
	}
	return guarded(func() error {
		var db metadb.BoltMetaDB
		state, err := db.Load(dir)
		if err != nil {
			return err
		}
		next := types.SegmentInfo{
			ID: state.NextSegmentID, BaseIndex: s.sealed.MaxIndex + 1, MinIndex: s.sealed.MaxIndex + 1,
			SizeLimit: s.sealed.SizeLimit, Codec: s.sealed.Codec, CreateTime: s.sealed.SealTime,
		}
		state.NextSegmentID++
		state.Segments = append(state.Segments[:len(state.Segments)-1], *s.sealed, next)
		return errors.Join(db.CommitState(state), db.Close())
	})
}

// cutTorn wipes what follows the last intact write, so that nothing of it is taken for frames later. raft-wal would
// write over its beginning only.
func (s *logScan) cutTorn() error {
	if !s.torn {
		return nil
	}
	f, err := os.OpenFile(s.tail, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // synced below
	stat, err := f.Stat()
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(s.tailEnd), f.Truncate(stat.Size()), f.Sync())
}
