package logbuffer_test

import (
	"errors"
	"io/fs"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

func TestFolderCountsReferences(t *testing.T) {
	t.Parallel()
	disk := newSimDisk(newRand(1))
	folder := openFolder(t, disk)
	const name = "received.seg"
	file, err := folder.Create(name)
	must(t, err)
	if _, err := file.Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a pinned file: %v", err)
	}
	folder.Pin(name, name)
	must(t, folder.Unpin(name, name))
	if folder.Pinned(name) != 1 || disk.files[name] == nil {
		t.Fatal("it is gone with a reference left")
	}
	if logbuffer.OpenFiles(folder) != 1 {
		t.Error("the handle that sees write errors is gone before the sync")
	}
	must(t, folder.Sync(name))
	if n := disk.held[name]; n == nil || string(n.synced) != "data" || logbuffer.OpenFiles(folder) != 0 {
		t.Error("synced, but not durable, or still open")
	}
	must(t, folder.Unpin(name))
	if disk.files[name] != nil {
		t.Error("nobody names it, but it is there")
	}
	if !panics(func() { _ = folder.Unpin(name) }) {
		t.Error("a reference too many was taken")
	}
	for _, bad := range []string{"", "x", "a/b.seg", `a\b.seg`} {
		if _, err := folder.Create(bad); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("create %q: %v", bad, err)
		}
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	disk := newSimDisk(newRand(1))
	for _, name := range []string{"kept.seg", "left.seg", "foreign"} {
		if _, err := disk.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	folder := openFolder(t, disk)
	folder.Pin("kept.seg")
	must(t, folder.Sweep())
	if names, _ := disk.List(); !slices.Equal(names, []string{"foreign", "kept.seg"}) {
		t.Errorf("left: %v", names)
	}
	if _, err := disk.Create("left.seg"); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Create("left.seg"); err != nil { // a transfer that broke off, begun anew
		t.Error(err)
	}
}

// TestFailedSyncIsFinal: the disk may have dropped the data and forget the error, so that a second try would lie.
func TestFailedSyncIsFinal(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	fill(b, 10)
	must(t, b.Seal())
	disk.syncErr = errors.New("input/output error")
	if err := folder.Sync(b.SegmentNames()...); !errors.Is(err, disk.syncErr) {
		t.Fatalf("sync: %v", err)
	}
	syncs, want := disk.syncs, disk.syncErr
	disk.syncErr = nil
	if err := folder.Sync(b.SegmentNames()...); !errors.Is(err, want) || disk.syncs != syncs {
		t.Errorf("the second sync: %v, tried %v", err, disk.syncs != syncs)
	}
}

// TestDamageIsReported: who owns the folder learns of what readers find, and of nothing that was only trimmed.
func TestDamageIsReported(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	fill(b, 60)
	must(t, b.Seal())
	var got []error
	folder.OnDamage(func(err error) { got = append(got, err) })
	trimmed := b.Locate("all", 0, 1)
	if _, err := trimmed.Load(); err != nil || got != nil {
		t.Fatal(err, got)
	}
	name := b.SegmentNames()[0]
	disk.files[name].data[60] ^= 1
	if _, err := trimmed.Load(); len(got) != 1 || !errors.Is(got[0], err) || !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("read: %v, reported %v", err, got)
	}
	if err := b.Ack("all", 1); len(got) != 2 || !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("ack: %v, reported %v", err, got)
	}
	disk.files[name].data[60] ^= 1
	must(t, b.Ack("all", b.End()))
	if _, err := trimmed.Load(); len(got) != 2 || !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("trimmed: %v, reported %v", err, got)
	}
}

// TestSyncKeepsFilesItSyncs: a file that is trimmed while it is synced goes when the sync is over.
func TestSyncKeepsFilesItSyncs(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	fill(b, 10)
	must(t, b.Seal())
	names := b.SegmentNames()
	for _, name := range names {
		disk.onSync = func() {
			if err := b.Ack("all", b.End()); err != nil {
				t.Error(err)
			}
			if disk.files[name] == nil {
				t.Error("unlinked while it is synced")
			}
		}
	}
	must(t, folder.Sync(names...))
	if left, _ := disk.List(); len(left) != 0 {
		t.Errorf("trimmed, but there are %v", left)
	}
}

func TestNamesAreNeverUsedTwice(t *testing.T) {
	t.Parallel()
	disk := newSimDisk(newRand(1))
	seen := map[string]bool{}
	for range 3 {
		b := logbuffer.NewBuffer("in", openFolder(t, disk), small())
		fill(b, 60)
		for _, name := range b.SegmentNames() {
			if seen[name] {
				t.Errorf("%s twice", name)
			}
			seen[name] = true
		}
	}
}
