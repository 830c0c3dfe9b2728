package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"ftproxy/logbuffer"
)

// storageConfig says where a node's data is and how it is kept.
type storageConfig struct {
	// dir is the data folder; it is created if missing.
	dir string
	// operator is the name of the operator that the data belongs to.
	operator string
	// node is the node's name, the first part of its server id.
	node string
	// snapshotBytes is the log between snapshots, minFree the free space below which tuples are refused; see freeSpace.
	snapshotBytes, minFree int64
	// walSegment is the size in bytes of the log's files; 0 for 64 MiB.
	walSegment int
	// fatal is told of the first failure. The process has to end; fatal must not wait for the storage.
	fatal func(error)
	// checkEntry tells whether a command in the log is intact; repeated is told of installs that repeat (see
	// snapshotStore).
	checkEntry func(data []byte) error
	repeated   func(index uint64)
	// log is where raft-wal writes; nil discards it.
	log hclog.Logger
	// salvage opens data that lost its newest entries, and what was quarantined: a human decided to.
	salvage bool

	hooks storageHooks
}

// storageHooks replaces the surroundings in tests, and switches protections off.
type storageHooks struct {
	files  files                            // nil: the operating system's
	vfs    types.VFS                        // the log's; nil: the operating system's
	folder func(root *os.Root) logbuffer.FS // nil: the operating system's
	// ignoreMark opens a log that is shorter than its watermark; keepMark does not lower the watermark; leaveFull leaves
	// it to raft-wal to open a file that a crash left full.
	ignoreMark, keepMark, leaveFull bool
}

// storage is a node's data folder, open.
type storage struct {
	dir      string // of the live data
	identity string // the server id
	lineage  string // of the log's life; empty: not known yet

	logs   *logStore
	stable *stableStore
	snaps  *snapshotStore
	folder *logbuffer.Folder
	space  *freeSpace
	syncs  *latencies // of the log

	fs     files
	root   *os.Root
	unlock func()

	// early syncs segments while they grow, until stop is closed.
	early sync.WaitGroup
	stop  chan struct{}
}

// earlyBytes is how much is written to segments before it is synced: all of it at the next snapshot would hold up the
// log, which is on the same disk.
const earlyBytes = 4 << 20

// openStorage opens the data folder, or begins one with a fresh server id. An error wraps ErrQuarantined if the data is
// damaged or incomplete: nothing was changed then, and prepareNext and moveAside lead on. Else it wraps ErrStorage,
// ErrVersion or ErrConfig, and the folder cannot be opened again in this process.
func openStorage(c storageConfig) (*storage, error) {
	c = c.withDefaults()
	if err := makeFolder(c.dir); err != nil {
		return nil, fmt.Errorf("%w: creating the data folder: %w", ErrStorage, err)
	}
	unlock, err := lockFolder(c.dir)
	if err != nil {
		return nil, err
	}
	if err = ensureData(c); err != nil {
		return nil, fmt.Errorf("%w: preparing the data folder: %w", ErrStorage, err)
	}
	s := &storage{
		dir: filepath.Join(c.dir, liveFolder), fs: c.hooks.files, unlock: unlock, syncs: &latencies{},
		stop: make(chan struct{}),
	}
	found, err := inspect(s.dir)
	if err != nil {
		return nil, err
	}
	if err = found.belongs(c); err != nil {
		return nil, err
	}
	if err = s.judge(c, found); err != nil {
		unlock()
		return nil, err
	}
	s.identity, s.lineage = found.identity, found.lineage
	if err = s.open(c, found); err != nil {
		return nil, fmt.Errorf("%w: opening the data: %w", ErrStorage, err)
	}
	if err = s.removeNext(c.dir); err != nil {
		return nil, fmt.Errorf("%w: removing what was prepared: %w", ErrStorage, err)
	}
	return s, nil
}

// removeNext removes what was prepared while the data was quarantined: the next time needs another id.
func (s *storage) removeNext(dir string) error {
	next := filepath.Join(dir, nextFolder)
	if err := s.fs.RemoveAll(next + tmpSuffix); err != nil {
		return err
	}
	if err := s.fs.Rename(next, next+tmpSuffix); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return s.fs.RemoveAll(next + tmpSuffix)
}

func (c storageConfig) withDefaults() storageConfig {
	if c.hooks.files == nil {
		c.hooks.files = osFiles{}
	}
	if c.hooks.vfs == nil {
		c.hooks.vfs = walfs.New()
	}
	if c.hooks.folder == nil {
		c.hooks.folder = logbuffer.OSFolder
	}
	if c.log == nil {
		c.log = hclog.NewNullLogger()
	}
	return c
}

// makeFolder makes a folder, durably, if there is none.
func makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return osFiles{}.SyncDir(filepath.Dir(filepath.Clean(dir)))
}

// ensureData makes sure that there is a live folder: the one there is, the one that was prepared when a crash came
// before it was put in place, or a new one.
func ensureData(c storageConfig) error {
	live, next := filepath.Join(c.dir, liveFolder), filepath.Join(c.dir, nextFolder)
	if _, err := os.Stat(live); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(next); err == nil {
		return errors.Join(c.hooks.files.Rename(next, live), c.hooks.files.SyncDir(c.dir))
	}
	return createData(c.hooks.files, live, c.operator, c.node)
}

// createData makes a complete, empty folder of data, with a server id of its own.
func createData(fs files, dir, operator, node string) error {
	tmp := dir + tmpSuffix
	if err := fs.RemoveAll(tmp); err != nil {
		return err
	}
	for _, folder := range []string{"", walFolder, manifestFolder, segmentFolder} {
		if err := fs.Mkdir(filepath.Join(tmp, folder)); err != nil {
			return err
		}
	}
	if err := writeLine(fs, tmp, identityFile, newIdentity(node)); err != nil {
		return err
	}
	if err := writeLine(fs, tmp, operatorFile, operator); err != nil {
		return err
	}
	if err := writeWhole(fs, filepath.Join(tmp, watermarkFile), encodeWatermark(0)); err != nil {
		return err
	}
	stable, err := openStable(filepath.Join(tmp, stableFile), &failure{fatal: func(error) {}})
	if err != nil {
		return err
	}
	if err := stable.close(); err != nil {
		return err
	}
	// raft-wal makes its first file when it is opened; its description is all that has to be here.
	if _, err := loadWALMeta(filepath.Join(tmp, walFolder)); err != nil {
		return err
	}
	if err := errors.Join(fs.SyncDir(tmp), fs.Rename(tmp, dir)); err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(dir))
}

// judge decides whether what was found may be used.
func (s *storage) judge(c storageConfig, found *inspection) error {
	reasons := found.reasons
	if !c.salvage && !c.hooks.ignoreMark {
		reasons = append(reasons, found.lost...)
	}
	if len(reasons) > 0 {
		return &quarantineError{dir: s.dir, reasons: reasons}
	}
	return nil
}

// open opens the parts. After an error what is open stays so: bbolt would wait for its own lock for ever.
func (s *storage) open(c storageConfig, found *inspection) (err error) {
	if c.salvage {
		if err = s.salvage(found); err != nil {
			return err
		}
	}
	if err = found.scan.cutTorn(); err != nil {
		return err
	}
	if !c.hooks.leaveFull {
		if err = found.scan.completeSeal(filepath.Join(s.dir, walFolder)); err != nil {
			return err
		}
	}
	fail := &failure{fatal: c.fatal}
	if err = guarded(func() error {
		s.stable, err = openStable(filepath.Join(s.dir, stableFile), fail)
		return err
	}); err != nil {
		return err
	}
	if s.space, err = newFreeSpace(c.dir, c.minFree, c.snapshotBytes); err != nil {
		return err
	}
	if s.root, err = os.OpenRoot(filepath.Join(s.dir, segmentFolder)); err != nil {
		return err
	}
	if s.folder, err = logbuffer.OpenFolder(c.hooks.folder(s.root)); err != nil {
		return err
	}
	s.folder.OnDamage(func(err error) { s.damaged(fail, err) })
	due := make(chan struct{}, 1)
	s.folder.OnWritten(earlyBytes, func() {
		select {
		case due <- struct{}{}:
		default:
		}
	})
	s.snaps = &snapshotStore{
		dir: filepath.Join(s.dir, manifestFolder), fs: s.fs, folder: s.folder, fail: fail,
		quarantine: func(reason string) { s.quarantine(fail, reason) },
		repeated:   c.repeated, room: s.space.room,
	}
	if err = s.snaps.open(); err != nil {
		return err
	}
	if err = s.openLog(c, found, fail); err != nil {
		return err
	}
	s.early.Go(func() { s.syncEarly(due, fail) })
	return nil
}

// syncEarly syncs what was written to segments whenever it is due.
func (s *storage) syncEarly(due <-chan struct{}, fail *failure) {
	for {
		select {
		case <-s.stop:
			return
		case <-due:
		}
		if err := s.folder.SyncEarly(); err != nil {
			_ = fail.report("syncing segment files", err) // reporting is all there is to do
			return
		}
	}
}

// salvage makes damaged data usable: the watermark comes down to what is there. It begins a new life of the log first,
// so that whatever a crash leaves behind never votes in the former one, of which it may have forgotten what it said.
func (s *storage) salvage(found *inspection) error {
	if err := s.setLineage(newLineage()); err != nil {
		return err
	}
	reach := max(found.scan.last, found.snapshot.head.index)
	if reach < found.mark {
		if err := writeWhole(s.fs, filepath.Join(s.dir, watermarkFile), encodeWatermark(reach)); err != nil {
			return err
		}
	}
	return errors.Join(s.fs.RemoveAll(filepath.Join(s.dir, quarantineFile)), s.fs.SyncDir(s.dir))
}

// openLog opens raft-wal and checks that it sees what inspect saw.
func (s *storage) openLog(c storageConfig, found *inspection, fail *failure) error {
	mark, err := openWatermark(filepath.Join(s.dir, watermarkFile))
	if err != nil {
		return err
	}
	l := &logStore{
		mark: mark, fail: fail, check: c.checkEntry, snapshotIndex: s.snaps.newestIndex, keepMark: c.hooks.keepMark,
		damaged: s.snaps.quarantine, start: time.Now(), stop: make(chan struct{}),
	}
	dir := filepath.Join(s.dir, walFolder)
	options := segment.NewFiler(dir, timedVFS{VFS: c.hooks.vfs, syncs: s.syncs})
	if err = guarded(func() error {
		l.wal, err = wal.Open(dir, wal.WithLogger(c.log), wal.WithSegmentFiler(options), wal.WithSegmentSize(c.walSegment))
		return err
	}); err != nil {
		return err
	}
	first, err := l.wal.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.wal.LastIndex()
	if err != nil {
		return err
	}
	if first != found.scan.first || last != found.scan.last {
		return fmt.Errorf("raft-wal sees entries %d to %d, and the files hold %d to %d", first, last, found.scan.first,
			found.scan.last)
	}
	for _, part := range found.scan.segments {
		l.sizes.seed(part.first, part.last, part.bytes)
	}
	s.logs = l
	if last > 0 && last < found.snapshot.head.index {
		// A crash came between the install of a snapshot and the removal of the log, which has nothing to add. Raft
		// would append behind a hole.
		if err := l.DeleteRange(first, last); err != nil {
			return err
		}
	}
	l.run()
	return nil
}

// hasState tells whether this data ever took part in a log: then the node just starts. Data without a lineage did not:
// that is written before Raft runs. If it has a term but no entry, a crash interrupted the start of a new group, which
// can then only be started anew; the term is taken back, since Raft would not.
func (s *storage) hasState() (bool, error) {
	if s.lineage != "" {
		return true, nil
	}
	term, err := s.stable.GetUint64(currentTerm)
	if err != nil || term == 0 {
		return false, err
	}
	last, err := s.logs.LastIndex()
	if err != nil || last > 0 || s.snaps.newestIndex() > 0 {
		return true, err
	}
	return false, s.stable.SetUint64(currentTerm, 0)
}

// currentTerm is the key of Raft's term in the stable store.
//
//nolint:gochecknoglobals // a constant that the language cannot express
var currentTerm = []byte("CurrentTerm")

// setLineage stores the life of the log that the data belongs to, durably.
func (s *storage) setLineage(lineage string) error {
	if err := writeLine(s.fs, s.dir, lineageFile, lineage); err != nil {
		return fmt.Errorf("%w: writing the lineage: %w", ErrStorage, err)
	}
	s.lineage = lineage
	return nil
}

// damaged ends the process because a segment cannot be read, unless that may be different the next time.
func (s *storage) damaged(fail *failure, err error) {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return
	}
	if errors.Is(err, logbuffer.ErrCorrupt) {
		s.quarantine(fail, err.Error())
	}
	_ = fail.report("reading a segment", err) // reporting is all there is to do
}

// quarantine makes the data unusable from the next start on, for a reason found at run time.
func (s *storage) quarantine(fail *failure, reason string) {
	if markQuarantined(s.fs, s.dir, reason) == nil { // else the disk is what failed
		fail.quarantine()
	}
}

// logSinceSnapshot returns about how many bytes of log the newest snapshot does not cover.
func (s *storage) logSinceSnapshot() int64 { return s.logs.bytesAfter(s.snaps.newestIndex()) }

// close closes everything; Raft must have stopped. The folder may be opened again.
func (s *storage) close() error {
	close(s.stop)
	s.early.Wait()
	err := errors.Join(s.logs.close(), s.stable.close(), s.root.Close())
	s.unlock()
	return err
}

// timedVFS is the log's file system; it measures every fsync.
type timedVFS struct {
	types.VFS
	syncs *latencies
}

// Create implements types.VFS.
func (v timedVFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	return timedFile{WritableFile: f, syncs: v.syncs}, nil
}

// OpenWriter implements types.VFS.
func (v timedVFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.VFS.OpenWriter(dir, name)
	if err != nil {
		return nil, err
	}
	return timedFile{WritableFile: f, syncs: v.syncs}, nil
}

type timedFile struct {
	types.WritableFile
	syncs *latencies
}

// Sync implements types.WritableFile.
func (f timedFile) Sync() error {
	began := time.Now()
	err := f.WritableFile.Sync()
	f.syncs.add(time.Since(began))
	return err
}
