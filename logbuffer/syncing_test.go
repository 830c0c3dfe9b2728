package logbuffer_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"ftproxy/logbuffer"
)

// TestFailedSyncFailsSyncsBesideIt: the operating system tells of a failed write once, to one of two calls.
func TestFailedSyncFailsSyncsBesideIt(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	fill(b, 10)
	must(t, b.Seal())
	name := b.SegmentNames()[0]
	want := errors.New("input/output error")
	var beside error
	var wait sync.WaitGroup
	disk.syncErr = want
	disk.onSync = func() {
		disk.onSync = nil
		wait.Go(func() { beside = folder.Sync(name) })
	}
	if err := folder.SyncEarly(); !errors.Is(err, want) {
		t.Errorf("the early sync: %v", err)
	}
	wait.Wait()
	if !errors.Is(beside, want) || disk.syncs != 1 {
		t.Errorf("the sync beside it: %v, after %d syncs", beside, disk.syncs)
	}
}

// checkEarly syncs a file early, writes more of it, and tells whether Sync made all of it durable.
func checkEarly(t *testing.T, spoil func(*logbuffer.Folder)) error {
	t.Helper()
	disk := newSimDisk(newRand(1))
	folder := openFolder(t, disk)
	spoil(folder)
	file, err := folder.Create("a.seg")
	must(t, err)
	for _, part := range []string{"first", "second"} {
		if _, err := file.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		if part == "first" {
			must(t, folder.SyncEarly())
		}
	}
	if n := disk.files["a.seg"]; string(n.synced) != "first" {
		t.Fatalf("synced early: %q", n.synced)
	}
	must(t, folder.Sync("a.seg"))
	if n := disk.held["a.seg"]; n == nil || string(n.synced) != "firstsecond" {
		return fmt.Errorf("durable after the sync: %+v", n)
	}
	return nil
}

func TestSyncAfterAnEarlyOne(t *testing.T) {
	t.Parallel()
	must(t, checkEarly(t, func(*logbuffer.Folder) {}))
}

func TestMutantSyncOnce(t *testing.T) {
	t.Parallel()
	if err := checkEarly(t, logbuffer.SetSyncOnce); err == nil {
		t.Error("what was written after an early sync is not synced, and the check does not see it")
	}
}

// TestEarlySyncsLeaveLittle: what a buffer spills is due to be synced in small portions, and once it was, Sync has the
// last of it left.
func TestEarlySyncsLeaveLittle(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	early := 0
	folder.OnWritten(1000, func() {
		if err := folder.SyncEarly(); err != nil {
			t.Error(err)
		}
		early++
	})
	fill(b, 200)
	must(t, b.Seal())
	if segments := len(b.SegmentNames()); early < 20 || segments < 5 {
		t.Fatalf("%d early syncs of %d segments", early, segments)
	}
	must(t, folder.SyncEarly())
	before := disk.syncs
	must(t, folder.Sync(b.SegmentNames()...))
	if disk.syncs != before {
		t.Errorf("%d files were synced again", disk.syncs-before)
	}
	for _, name := range b.SegmentNames() {
		if n := disk.held[name]; n == nil || len(n.synced) != len(n.data) {
			t.Errorf("%s is not durable", name)
		}
	}
	if logbuffer.OpenFiles(folder) != 0 {
		t.Error("files are left open")
	}
}
