package replica

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// logStore is the Raft log: raft-wal, with everything around it that raft-wal leaves to others.
//
//	StoreLogs ─▶ raft-wal (write, fsync) ─▶ watermark.raise
//	DeleteRange ─▶ watermark.lower (fsync) ─▶ raft-wal
//	GetLog ─▶ raft-wal ─▶ index and checksum checked
//
// The first failure of a write or a read ends the process (failure) and is never tried again; an entry that is not
// there is no failure. Methods are called as Raft does: one writer, many readers.
type logStore struct {
	wal  *wal.WAL
	mark *watermark
	fail *failure
	// check tells whether a command is intact; damaged is told when one is not.
	check   func(data []byte) error
	damaged func(reason string)
	// snapshotIndex is the index of the newest durable snapshot, 0 if there is none.
	snapshotIndex func() uint64
	sizes         sizes
	// busy is when the write in progress began, in nanoseconds since start; 0: none is in progress.
	busy  atomic.Int64
	start time.Time
	// keepMark leaves the watermark alone when the log is cut: a mutant, for tests only.
	keepMark bool

	closed atomic.Bool
	stop   chan struct{}
	done   sync.WaitGroup
}

var _ raft.MonotonicLogStore = (*logStore)(nil)

// watermarkInterval is the time between two syncs of the watermark.
const watermarkInterval = time.Second

// run syncs the watermark once a second until close.
func (l *logStore) run() {
	l.done.Go(func() {
		tick := time.NewTicker(watermarkInterval)
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-tick.C:
			}
			if err := l.mark.sync(); err != nil {
				_ = l.fail.report("syncing the watermark", err) // reporting is all there is to do
				return
			}
		}
	})
}

// IsMonotonic tells Raft that the log admits no holes, so that it removes the whole log after a snapshot is installed.
// Whatever wraps a logStore must have this method too, or a follower that installed a snapshot never gets on.
func (*logStore) IsMonotonic() bool { return true }

// FirstIndex returns the index of the first entry, 0 if there is none.
func (l *logStore) FirstIndex() (uint64, error) { return l.wal.FirstIndex() }

// LastIndex returns the index of the last entry, 0 if there is none.
func (l *logStore) LastIndex() (uint64, error) { return l.wal.LastIndex() }

// GetLog reads an entry. Raft compares the error with raft.ErrLogNotFound, which is therefore returned as it is.
func (l *logStore) GetLog(index uint64, log *raft.Log) error {
	err := l.read(index, log)
	switch _, disk := errors.AsType[syscall.Errno](err); {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrLogNotFound):
		return raft.ErrLogNotFound
	case !disk && !errors.Is(err, wal.ErrClosed) && !errors.Is(err, ErrVersion):
		l.damaged(fmt.Sprintf("entry %d of the log is damaged: %v", index, err))
	}
	return l.failed("reading the log", err)
}

// read reads an entry and checks it. raft-wal panics on some entries that are damaged.
func (l *logStore) read(index uint64, log *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: it makes no sense: %v", wal.ErrCorrupt, p)
		}
	}()
	if err := l.wal.GetLog(index, log); err != nil {
		return err
	}
	return l.intact(index, log)
}

// intact checks what raft-wal read from where it believes entry index to be.
func (l *logStore) intact(index uint64, log *raft.Log) error {
	if log.Index != index {
		return fmt.Errorf("%w: entry %d stands in its place", wal.ErrCorrupt, log.Index)
	}
	switch log.Type {
	case raft.LogCommand:
		if l.check == nil {
			return nil
		}
		return l.check(log.Data)
	case raft.LogConfiguration:
		return nil // Raft decodes it at once
	case raft.LogNoop, raft.LogBarrier:
		if len(log.Data) == 0 {
			return nil
		}
	case raft.LogAddPeerDeprecated, raft.LogRemovePeerDeprecated: // nobody writes them
	}
	return fmt.Errorf("%w: %d bytes are in an entry of type %d", wal.ErrCorrupt, len(log.Data), log.Type)
}

// StoreLog stores one entry.
func (l *logStore) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs appends entries; when it returns nil they are durable.
func (l *logStore) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if err := l.fail.sticky(); err != nil {
		return err
	}
	l.busy.Store(max(1, int64(time.Since(l.start))))
	defer l.busy.Store(0)
	if err := l.wal.StoreLogs(logs); err != nil {
		return l.failed("writing the log", err)
	}
	for _, log := range logs {
		l.sizes.add(log.Index, int64(len(log.Data)+len(log.Extensions)+entryOverhead))
	}
	if err := l.mark.raise(logs[len(logs)-1].Index); err != nil {
		return l.failed("writing the watermark", err)
	}
	return nil
}

// entryOverhead is about what raft-wal adds to an entry's data, in bytes.
const entryOverhead = 48

// DeleteRange deletes entries from the start or the end of the log.
func (l *logStore) DeleteRange(first, last uint64) error {
	if err := l.fail.sticky(); err != nil {
		return err
	}
	have, err := l.wal.LastIndex()
	if err != nil {
		return l.failed("reading the log", err)
	}
	oldest, err := l.wal.FirstIndex()
	if err != nil {
		return l.failed("reading the log", err)
	}
	if last >= have && first <= have && !l.keepMark { // the end, or all of it
		remains := l.snapshotIndex()
		if first > oldest {
			remains = max(remains, first-1)
		}
		if err := l.mark.lower(remains); err != nil {
			return l.failed("lowering the watermark", err)
		}
	}
	if err := l.wal.DeleteRange(first, last); err != nil {
		return l.failed("cutting the log", err)
	}
	if first <= oldest {
		l.sizes.cutHead(last)
	} else {
		l.sizes.cutTail(first - 1)
	}
	return nil
}

// failed makes err final, unless it is only that the log was closed.
func (l *logStore) failed(what string, err error) error {
	if l.closed.Load() && errors.Is(err, wal.ErrClosed) {
		return err
	}
	return l.fail.report(what, err)
}

// stalled returns how long the write in progress has lasted; 0 if there is none.
func (l *logStore) stalled() time.Duration {
	began := l.busy.Load()
	if began == 0 {
		return 0
	}
	return time.Since(l.start) - time.Duration(began)
}

// bytesAfter returns about how many bytes of log stand above index.
func (l *logStore) bytesAfter(index uint64) int64 { return l.sizes.after(index) }

// entriesWithin returns how many of the newest entries take about bytes, at least one.
func (l *logStore) entriesWithin(bytes int64) uint64 { return l.sizes.within(bytes) }

// written returns the bytes of log written since the start.
func (l *logStore) written() int64 { return l.sizes.written() }

func (l *logStore) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	close(l.stop)
	l.done.Wait()
	return errors.Join(l.wal.Close(), l.mark.close())
}
