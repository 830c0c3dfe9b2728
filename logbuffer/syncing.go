package logbuffer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
)

// early says when it is worth while to sync before Sync is called.
type early struct {
	// bytes and due are those of OnWritten.
	bytes int64
	due   func()
	// written counts what was written to any file since the last SyncEarly.
	written atomic.Int64
}

// madeFile is a file made here, which knows how much of it is not synced.
type madeFile struct {
	File
	early *early
	// written counts the bytes written, synced those of them that a sync covered; synced is guarded by Folder.syncing.
	written atomic.Int64
	synced  int64
}

// Write implements io.Writer.
func (m *madeFile) Write(p []byte) (int, error) {
	n, err := m.File.Write(p)
	m.written.Add(int64(n))
	if e := m.early; e.due != nil && e.written.Add(int64(n)) >= e.bytes {
		e.due()
	}
	return n, err
}

// OnWritten has due called by who writes, at every write, once so many bytes have been written to files since the last
// SyncEarly. It must be called before the Folder is used; due must be quick and may be called concurrently.
func (f *Folder) OnWritten(bytes int64, due func()) { f.early.bytes, f.early.due = bytes, due }

// Sync makes the files and then the folder durable; it waits for the disk, without holding up other calls than itself
// and SyncEarly. A file of which everything was synced early is not synced again. A sync that failed is never tried
// again: from then on every Sync fails with the same error, since what the disk holds is unknown. The files must be
// sealed (or received whole).
func (f *Folder) Sync(names ...string) error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	files, err := f.unsynced(names)
	if err != nil {
		return err
	}
	if err = f.syncFiles(files); err == nil {
		err = f.fs.SyncFolder()
	}
	return f.settle(files, err, true)
}

// SyncEarly syncs what was written to files, sealed or not, so that little is left for Sync to wait for, and other
// syncs of the same disk never wait for much at once. It makes nothing durable that Sync would not. Errors are those of
// Sync.
func (f *Folder) SyncEarly() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.early.written.Store(0)
	f.mu.Lock()
	names := slices.Collect(maps.Keys(f.open))
	f.mu.Unlock()
	files, err := f.unsynced(names)
	if err != nil {
		return err
	}
	return f.settle(files, f.syncFiles(files), false)
}

// unsynced returns the open handles among the named files and pins these files.
func (f *Folder) unsynced(names []string) (map[string]*madeFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost != nil {
		return nil, f.lost
	}
	files := map[string]*madeFile{}
	for _, name := range names {
		if file, ok := f.open[name]; ok && files[name] == nil {
			files[name] = file
			f.pins[name]++
		}
	}
	return files, nil
}

// syncFiles syncs the files that were written to since their last sync; f.syncing is held.
func (f *Folder) syncFiles(files map[string]*madeFile) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		written := file.written.Load()
		if file.synced == written && written > 0 || f.mutant.syncOnce && file.synced > 0 {
			continue
		}
		if err := file.Sync(); err != nil {
			return fmt.Errorf("sync %s: %w", name, err)
		}
		file.synced = written
	}
	return nil
}

// settle notes how a sync ended and takes the references back that it took. Files that will not be written any more are
// closed.
func (f *Folder) settle(files map[string]*madeFile, err error, sealed bool) error {
	f.mu.Lock()
	if f.lost == nil {
		f.lost = err
	}
	for name := range files {
		if open, ok := f.open[name]; ok && err == nil && sealed {
			delete(f.open, name)
			_ = open.Close() // synced: closing has nothing left to report
		}
	}
	f.mu.Unlock()
	return errors.Join(err, f.Unpin(slices.Collect(maps.Keys(files))...))
}
