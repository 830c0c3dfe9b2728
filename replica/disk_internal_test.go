package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"

	"ftproxy/logbuffer"
)

// reseal gives a damaged small file the right checksum.
func reseal(t *testing.T, name, content string) []byte {
	t.Helper()
	if name == watermarkFile {
		p := []byte(content)
		return binary.LittleEndian.AppendUint32(p[:16], crc32.Checksum(p[:16], castagnoli))
	}
	cut := content[:len(content)-9]
	return fmt.Appendf([]byte(cut), "%08x\n", crc32.Checksum([]byte(cut), castagnoli))
}

func TestFolderIsLocked(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	if _, err := openStorage(c); !errors.Is(err, ErrStorage) {
		t.Fatalf("opened twice: %v", err)
	}
	if _, err := prepareNext(c.dir, c.operator, c.node); !errors.Is(err, ErrStorage) {
		t.Fatalf("prepared beside an open storage: %v", err)
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, c))
}

// bbolt would wait for a lock that this process holds itself, and raft-wal deletes files at a second open.
func TestFailedOpenIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	c.hooks.vfs = failingVFS{walfs.New()}
	for range 2 {
		began := time.Now()
		if _, err := openStorage(c); !errors.Is(err, ErrStorage) || errors.Is(err, ErrQuarantined) {
			t.Fatalf("got %v, want ErrStorage", err)
		}
		if time.Since(began) > 2*time.Second {
			t.Fatal("the second open waited")
		}
		c.hooks.vfs = nil // would succeed now
	}
}

type failingVFS struct{ types.VFS }

func (failingVFS) ListDir(string) ([]string, error) { return nil, syscall.EIO }

// A crash while the folder is made leaves nothing that is taken for damage.
func TestCrashWhileFolderIsMade(t *testing.T) {
	t.Parallel()
	for steps := 0; ; steps++ {
		c := testStorage(t, t.TempDir())
		d := newLossyDisk()
		d.steps = steps
		c.hooks.files = d
		_, err := openStorage(c)
		if err == nil {
			if steps < 10 {
				t.Fatalf("only %d steps were seen", steps)
			}
			return
		}
		c2 := c
		c2.dir = t.TempDir()
		if err := os.CopyFS(c2.dir, os.DirFS(c.dir)); err != nil { // the locks of the process that died are gone with it
			t.Fatal(err)
		}
		c2.hooks.files = nil
		mustClose(t, mustOpen(t, c2))
	}
}

func TestFreeSpace(t *testing.T) {
	t.Parallel()
	free, failing := int64(1000), error(nil)
	now := time.Now()
	d := &freeSpace{
		minimum: 500, dir: "/data", now: func() time.Time { return now },
		statfs: func(string) (int64, int64, error) { return free, 2000, failing },
	}
	step := func(f int64) { free, now = f, now.Add(freeSpaceAge) }
	if err := d.check(); err != nil {
		t.Fatal(err)
	}
	step(499)
	if err := d.check(); !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Fatalf("nearly full: %v", err)
	}
	free = 5000
	if err := d.check(); err == nil {
		t.Fatal("a reading is used for a while")
	}
	step(500)
	if err := d.check(); err != nil {
		t.Fatalf("space returned: %v", err)
	}
	if err := d.room(250); err != nil {
		t.Fatal(err)
	}
	if err := d.room(251); !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Fatalf("room: %v", err)
	}
	failing = syscall.EIO
	step(0)
	if err := d.check(); !errors.Is(err, ErrStorage) {
		t.Fatalf("the disk does not answer: %v", err)
	}
}

func TestFreeSpaceDefault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, total, err := statfs(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ minimum, snapshot, want int64 }{
		{7, 1 << 30, 7}, {0, 1, min(leastFree, total/4)}, {0, 1 << 30, min(2<<30, total/4)},
	} {
		d, err := newFreeSpace(dir, c.minimum, c.snapshot)
		if err != nil || d.minimum != c.want {
			t.Errorf("%+v: minimum %d, %v", c, d.minimum, err)
		}
	}
}

// On a real small disk: tuples are refused before it is full, taken again when space returns, and a full disk under the
// log ends the process.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c := testStorage(t, dir)
	c.minFree = 4 << 20
	var fatal error
	c.fatal = func(err error) { fatal = err }
	s := mustOpen(t, c)
	defer func() { _ = s.close() }()
	if err := s.space.check(); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 13<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if !storageAwait(func() bool { return errors.Is(s.space.check(), logbuffer.ErrUnavailable) }) {
		t.Fatal("a nearly full disk takes tuples")
	}
	storeEntries(t, s, 1, 20, 1<<10) // what is under way still goes through
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if !storageAwait(func() bool { return s.space.check() == nil }) {
		t.Fatal("space returned, and tuples are still refused")
	}
	var err error
	for i := uint64(21); err == nil && i < 10_000; i++ {
		err = s.logs.StoreLogs([]*raft.Log{{Index: i, Term: 1, Data: make([]byte, 32<<10)}})
	}
	if !errors.Is(err, ErrStorage) || fatal == nil {
		t.Fatalf("a full disk: %v, fatal %v", err, fatal)
	}
}
