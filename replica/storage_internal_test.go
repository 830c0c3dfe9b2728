package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"

	"ftproxy/logbuffer"
)

// testStorage returns a configuration whose fatal errors fail the test, unless the test takes them over.
func testStorage(t *testing.T, dir string) storageConfig {
	t.Helper()
	return storageConfig{
		dir: dir, operator: "op", node: "n0", snapshotBytes: 1 << 20, minFree: 1, walSegment: 64 << 10,
		fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
}

func mustOpen(t *testing.T, c storageConfig) *storage {
	t.Helper()
	s, err := openStorage(c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func mustClose(t *testing.T, s *storage) {
	t.Helper()
	if err := s.close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// logEntries makes log entries first to last of about size bytes.
func logEntries(first, last uint64, size int) []*raft.Log {
	var logs []*raft.Log
	for i := first; i <= last; i++ {
		data := bytes.Repeat(fmt.Appendf(nil, "%08d", i), (size+7)/8)
		logs = append(logs, &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: data})
	}
	return logs
}

// store appends entries first to last, one write each.
func storeEntries(t *testing.T, s *storage, first, last uint64, size int) {
	t.Helper()
	if s.lineage == "" {
		if err := s.setLineage("a life"); err != nil {
			t.Fatal(err)
		}
	}
	for _, log := range logEntries(first, last, size) {
		if err := s.logs.StoreLog(log); err != nil {
			t.Fatalf("store %d: %v", log.Index, err)
		}
	}
}

// checkEntries reports the first of the entries first to last that is not as storeEntries wrote it.
func checkEntries(l raft.LogStore, first, last uint64, size int) error {
	for _, want := range logEntries(first, last, size) {
		var got raft.Log
		if err := l.GetLog(want.Index, &got); err != nil {
			return fmt.Errorf("entry %d: %w", want.Index, err)
		}
		if !bytes.Equal(got.Data, want.Data) {
			return fmt.Errorf("entry %d has other bytes", want.Index)
		}
	}
	return nil
}

// wantQuarantine opens the storage and expects it to be refused with a reason.
func wantQuarantine(t *testing.T, c storageConfig, reason string) {
	t.Helper()
	s, err := openStorage(c)
	if err == nil {
		_ = s.close()
		t.Fatalf("the storage was opened; want a quarantine because of %q", reason)
	}
	if !errors.Is(err, ErrQuarantined) || !strings.Contains(err.Error(), reason) {
		t.Fatalf("got %v, want ErrQuarantined because of %q", err, reason)
	}
}

// lossyDisk is a file system for files and logbuffer.FS that can lose power. Beside the real files it keeps what is
// durable: a file's bytes as of its last Sync, a folder's names as of its last SyncDir.
type lossyDisk struct {
	// noSync makes every sync a lie.
	noSync bool
	// steps is how many operations are left before the process dies; negative: it lives.
	steps int

	mu      sync.Mutex
	inodes  map[string]*lossyInode            // by path
	durable map[string]map[string]*lossyInode // by folder, name
	log     []string
}

type lossyInode struct{ synced []byte }

var errDied = errors.New("the process died")

func newLossyDisk() *lossyDisk {
	return &lossyDisk{steps: -1, inodes: map[string]*lossyInode{}, durable: map[string]map[string]*lossyInode{}}
}

// step is called with d.mu held.
func (d *lossyDisk) step(what, path string) error {
	if d.steps == 0 {
		return errDied
	}
	d.steps--
	d.log = append(d.log, what+" "+filepath.Base(path))
	return nil
}

func (d *lossyDisk) Create(path string) (file, error) { return d.create(path) }

func (d *lossyDisk) create(path string) (*lossyDiskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("create", path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	d.inodes[path] = &lossyInode{}
	return &lossyDiskFile{File: f, d: d, inode: d.inodes[path]}, nil
}

func (*lossyDisk) Mkdir(path string) error { return os.Mkdir(path, 0o700) }

func (d *lossyDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("rename", to); err != nil {
		return err
	}
	d.inodes[to] = d.inodes[from]
	delete(d.inodes, from)
	return os.Rename(from, to)
}

func (d *lossyDisk) RemoveAll(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.inodes[path]; !ok {
		return nil
	}
	if err := d.step("remove", path); err != nil {
		return err
	}
	delete(d.inodes, path)
	return os.RemoveAll(path)
}

func (d *lossyDisk) SyncDir(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("sync folder", path); err != nil || d.noSync {
		return err
	}
	names := map[string]*lossyInode{}
	for p, n := range d.inodes {
		if filepath.Dir(p) == path {
			names[filepath.Base(p)] = n
		}
	}
	d.durable[path] = names
	return nil
}

// losePower leaves in the folders what was durable. Open files are of no more use.
func (d *lossyDisk) losePower(t *testing.T, folders ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inodes = map[string]*lossyInode{}
	for _, folder := range folders {
		old, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range old {
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		for name, n := range d.durable[folder] {
			d.inodes[filepath.Join(folder, name)] = n
			if err := os.WriteFile(filepath.Join(folder, name), n.synced, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type lossyDiskFile struct {
	*os.File
	d     *lossyDisk
	inode *lossyInode
}

func (f *lossyDiskFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.step("write", f.Name()); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *lossyDiskFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.step("sync", f.Name()); err != nil || f.d.noSync {
		return err
	}
	p, err := os.ReadFile(f.Name())
	f.inode.synced = p
	return err
}

func (f *lossyDiskFile) Size() (int64, error) {
	stat, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return stat.Size(), nil
}

// lossyFolder is a folder of a lossyDisk as logbuffer.FS.
type lossyFolder struct {
	*lossyDisk
	dir string
}

var _ logbuffer.FS = lossyFolder{}

func (d lossyFolder) Create(name string) (logbuffer.File, error) {
	f, err := d.create(filepath.Join(d.dir, name))
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d lossyFolder) Open(name string) (logbuffer.File, error) {
	f, err := os.Open(filepath.Join(d.dir, name))
	if err != nil {
		return nil, err
	}
	return &lossyDiskFile{File: f, d: d.lossyDisk, inode: &lossyInode{}}, nil
}

func (d lossyFolder) Remove(name string) error {
	if _, err := os.Lstat(filepath.Join(d.dir, name)); err != nil {
		return err
	}
	return d.RemoveAll(filepath.Join(d.dir, name))
}

func (d lossyFolder) List() ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d lossyFolder) SyncFolder() error { return d.SyncDir(d.dir) }

// lossyVFS is the log's file system on a machine that can lose power: losePower takes back what was written since the
// last sync of its file.
type lossyVFS struct {
	types.VFS
	noSync bool
	// failSync and failWrite, if not nil, are what the next ones return.
	failSync, failWrite error

	mu     sync.Mutex
	writes []lossyWrite
	syncs  int
}

type lossyWrite struct {
	path   string
	offset int64
	former []byte
}

func (v *lossyVFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	return v.wrap(filepath.Join(dir, name))(v.VFS.Create(dir, name, size))
}

func (v *lossyVFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	return v.wrap(filepath.Join(dir, name))(v.VFS.OpenWriter(dir, name))
}

func (v *lossyVFS) wrap(path string) func(types.WritableFile, error) (types.WritableFile, error) {
	return func(f types.WritableFile, err error) (types.WritableFile, error) {
		if err != nil {
			return nil, err
		}
		return &lossyFile{WritableFile: f, v: v, path: path}, nil
	}
}

type lossyFile struct {
	types.WritableFile
	v    *lossyVFS
	path string
}

func (f *lossyFile) WriteAt(p []byte, offset int64) (int, error) {
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if err := f.v.failWrite; err != nil {
		f.v.failWrite = nil
		return 0, err
	}
	former := make([]byte, len(p))
	_, _ = f.ReadAt(former, offset)
	f.v.writes = append(f.v.writes, lossyWrite{path: f.path, offset: offset, former: former})
	return f.WritableFile.WriteAt(p, offset)
}

func (f *lossyFile) Sync() error {
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	f.v.syncs++
	if err := f.v.failSync; err != nil {
		f.v.failSync = nil
		return err
	}
	if f.v.noSync {
		return nil
	}
	kept := f.v.writes[:0]
	for _, w := range f.v.writes {
		if w.path != f.path {
			kept = append(kept, w)
		}
	}
	f.v.writes = kept
	return f.WritableFile.Sync()
}

func (v *lossyVFS) losePower(t *testing.T) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range slices.Backward(v.writes) {
		f, err := os.OpenFile(w.path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(w.former, w.offset); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	v.writes = nil
}
