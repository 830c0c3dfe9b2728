package replica

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"ftproxy/logbuffer"
)

// countedFS is a folder of segments that counts syncs, and fails them with err, if there is one.
type countedFS struct {
	logbuffer.FS
	syncs *atomic.Int64
	err   error
}

func (c countedFS) Create(name string) (logbuffer.File, error) {
	f, err := c.FS.Create(name)
	return countedFile{File: f, fs: c}, err
}

type countedFile struct {
	logbuffer.File
	fs countedFS
}

func (c countedFile) Sync() error {
	c.fs.syncs.Add(1)
	return errors.Join(c.fs.err, c.File.Sync())
}

// earlyStorage opens a storage and writes a segment that is due to be synced.
func earlyStorage(t *testing.T, fail error, fatal func(error)) (s *storage, syncs *atomic.Int64) {
	t.Helper()
	syncs = &atomic.Int64{}
	c := testStorage(t, t.TempDir())
	if fatal != nil {
		c.fatal = fatal
	}
	c.hooks.folder = func(root *os.Root) logbuffer.FS {
		return countedFS{FS: logbuffer.OSFolder(root), syncs: syncs, err: fail}
	}
	s = mustOpen(t, c)
	file, err := s.folder.Create("a.seg")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(make([]byte, earlyBytes)); err != nil {
		t.Fatal(err)
	}
	return s, syncs
}

// TestSegmentsAreSyncedWhileTheyGrow: a snapshot has nothing to wait for.
func TestSegmentsAreSyncedWhileTheyGrow(t *testing.T) {
	t.Parallel()
	s, syncs := earlyStorage(t, nil, nil)
	eventually(t, "an early sync", func() error {
		if syncs.Load() == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	if err := s.folder.Sync("a.seg"); err != nil || syncs.Load() != 1 {
		t.Errorf("the sync of a snapshot: %v, after %d syncs of the file", err, syncs.Load())
	}
	mustClose(t, s)
}

// TestFailedEarlySyncEndsTheNode: what was written may be lost, and the next sync would not tell.
func TestFailedEarlySyncEndsTheNode(t *testing.T) {
	t.Parallel()
	want := errors.New("input/output error")
	got := make(chan error, 1)
	s, _ := earlyStorage(t, want, func(err error) { got <- err })
	if err := <-got; !errors.Is(err, want) || !errors.Is(err, ErrStorage) {
		t.Errorf("fatal: %v", err)
	}
	if err := s.folder.Sync("a.seg"); !errors.Is(err, want) {
		t.Errorf("the sync of a snapshot: %v", err)
	}
	mustClose(t, s)
}
