package logbuffer_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

func TestContradictionsPanic(t *testing.T) {
	t.Parallel()
	for i := range logbuffer.Contradictions {
		b, _, _ := newBuffer(t)
		fill(b, 40)
		must(t, b.Ack("all", 3))
		logbuffer.Contradict(b, i)
		if !panics(func() { fill(b, 1) }) {
			t.Errorf("contradiction %d passes", i)
		}
	}
}

func sealed(tb testing.TB) (manifest []byte, names []string, folder *logbuffer.Folder, disk *simDisk) {
	tb.Helper()
	b, folder, disk := newBuffer(tb)
	fill(b, 60)
	must(tb, b.Seal())
	names = b.SegmentNames()
	folder.Pin(names...)
	must(tb, folder.Sync(names...))
	return b.AppendManifest(nil), names, folder, disk
}

func damages(folder *logbuffer.Folder, manifest []byte) (errs []error) {
	restore := func() *logbuffer.Buffer {
		b, _, err := logbuffer.RestoreBuffer("in", folder, small(), manifest)
		errs = append(errs, err)
		return b
	}
	if b := restore(); b != nil {
		_, err := drain(b, "all")
		errs = append(errs, err)
	}
	if b := restore(); b != nil {
		errs = append(errs, b.Ack("all", b.End()-1))
	}
	return errs
}

func checkDamageIsFound(t *testing.T, mutant bool) error {
	t.Helper()
	manifest, names, folder, disk := sealed(t)
	logbuffer.SetMutants(folder, mutant, false, false)
	data := disk.files[names[0]].data
	for _, i := range []int{36, 37, 41, 45, 46, 60, 100, len(data) / 2, len(data) / 2 * 8 / 10, len(data) - 1} {
		data[i] ^= 4
		found := false
		for _, err := range append(damages(folder, manifest), hashes(folder, manifest)) {
			if err != nil && (!errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), names[0]) ||
				!strings.Contains(err.Error(), "byte")) {
				return fmt.Errorf("the damage at byte %d is reported as: %w", i, err)
			}
			found = found || err != nil
		}
		data[i] ^= 4
		if !found {
			return fmt.Errorf("nobody finds the damage at byte %d", i)
		}
	}
	return nil
}

func hashes(folder *logbuffer.Folder, manifest []byte) error {
	b, _, err := logbuffer.RestoreBuffer("in", folder, small(), manifest)
	for n := uint64(0); err == nil && n <= b.End(); n++ {
		_, _, err = b.HashAt(n)
	}
	return err
}

func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	if err := checkDamageIsFound(t, false); err != nil {
		t.Error(err)
	}
}

func TestMutantNoCRC(t *testing.T) {
	t.Parallel()
	if err := checkDamageIsFound(t, true); err == nil {
		t.Error("without checksums on read the damage is still found: the check proves nothing")
	}
}

func TestMissingAndShortFiles(t *testing.T) {
	t.Parallel()
	manifest, names, folder, disk := sealed(t)
	node := disk.files[names[1]]
	whole := node.data
	for what, data := range map[string][]byte{
		"short": whole[:len(whole)-1], "empty": nil, "long": append(slices.Clip(whole), 0),
	} {
		node.data = data
		_, _, err := logbuffer.RestoreBuffer("in", folder, small(), manifest)
		if !errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), names[1]) {
			t.Errorf("%s: %v", what, err)
		}
	}
	node.data = whole
	b, rest, err := logbuffer.RestoreBuffer("in", folder, small(), manifest)
	if err != nil || len(rest) != 0 {
		t.Fatal(err)
	}
	node.data = whole[:len(whole)-300] // after the restore
	if _, err = drain(b, "all"); !errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), names[1]) {
		t.Errorf("short while it is read: %v", err)
	}
	delete(disk.files, names[1])
	if _, err = b.Locate("all", b.Cursors().Readers[0].Acked, 1<<20).Load(); !errors.Is(err, logbuffer.ErrCorrupt) ||
		!strings.Contains(err.Error(), "missing") {
		t.Errorf("missing while it is read: %v", err)
	}
	pinned := folder.Pinned(names[0])
	_, _, err = logbuffer.RestoreBuffer("in", folder, small(), manifest)
	if !errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), names[1]) ||
		folder.Pinned(names[0]) != pinned {
		t.Errorf("missing at the restore: %v", err)
	}
}

func checkManifestsLast(t *testing.T, mutant func(*logbuffer.Folder)) error {
	t.Helper()
	b, folder, _ := newBuffer(t)
	mutant(folder)
	for range 4 {
		fill(b, 8)
		if err := b.Seal(); err != nil {
			return err
		}
		var manifest []byte
		func() {
			defer func() { _ = recover() }() // a mutant's buffer is never quite sealed
			manifest = b.AppendManifest(nil)
		}()
		names := b.SegmentNames()
		folder.Pin(names...)
		fill(b, 8)
		if err := b.Ack("all", b.End()-1); err != nil {
			return err
		}
		again, _, err := logbuffer.RestoreBuffer("in", folder, small(), manifest)
		if err != nil {
			return err
		}
		if _, err := drain(again, "all"); err != nil {
			return err
		}
	}
	return nil
}

func TestManifestsLast(t *testing.T) {
	t.Parallel()
	if err := checkManifestsLast(t, func(*logbuffer.Folder) {}); err != nil {
		t.Error(err)
	}
}

func TestMutantSealedFileWrittenAgain(t *testing.T) {
	t.Parallel()
	err := checkManifestsLast(t, func(f *logbuffer.Folder) { logbuffer.SetMutants(f, false, true, false) })
	if !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("a sealed file is written again, and the check gives %v", err)
	}
}

func TestMutantPinIgnored(t *testing.T) {
	t.Parallel()
	err := checkManifestsLast(t, func(f *logbuffer.Folder) { logbuffer.SetMutants(f, false, false, true) })
	if !errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("pinned files are unlinked, and the check gives %v", err)
	}
}

func TestNoSpace(t *testing.T) {
	t.Parallel()
	b, folder, disk := newBuffer(t)
	disk.room = 3000
	err := func() (err error) {
		defer func() { err, _ = recover().(error) }()
		fill(b, 200)
		return nil
	}()
	if !errors.Is(err, errNoSpace) || !strings.Contains(err.Error(), "segment in-") {
		t.Fatalf("panic with %v", err)
	}
	disk.room = -1
	if err := b.Seal(); !errors.Is(err, errNoSpace) {
		t.Errorf("Seal after a failed write: %v", err)
	}
	again := logbuffer.NewBuffer("in", folder, small())
	must(t, again.SetReaders([]logbuffer.Reader{{Name: "all"}}))
	disk.room = 500
	fill(again, 8)
	if err := again.Seal(); !errors.Is(err, errNoSpace) {
		t.Errorf("Seal on a full disk: %v", err)
	}
}

func TestRestoreNames(t *testing.T) {
	t.Parallel()
	manifest, _, folder, _ := sealed(t)
	if _, _, err := logbuffer.RestoreBuffer("out", folder, small(), manifest); !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("another buffer's manifest: %v", err)
	}
	newer := frameOf(9, frameBody(manifest))
	if _, _, err := logbuffer.RestoreBuffer("in", folder, small(), newer); !errors.Is(err, logbuffer.ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
	for i := range len(manifest) * 8 {
		p := slices.Clone(manifest)
		p[i/8] ^= 1 << (i % 8)
		if _, _, err := logbuffer.RestoreBuffer("in", folder, small(), p); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for n := range manifest {
		if _, _, err := logbuffer.RestoreBuffer("in", folder, small(), manifest[:n]); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

func FuzzRestoreBuffer(f *testing.F) {
	manifest, _, folder, disk := sealed(f)
	f.Add(frameBody(manifest))
	s := newSim(f, 3)
	must(f, s.run(150))
	must(f, s.snapshot())
	f.Add(frameBody(s.snapshots[len(s.snapshots)-1].manifest))
	maps.Copy(disk.files, s.disk.files)
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _, _ = logbuffer.RestoreBuffer("in", folder, small(), body)
		b, _, err := logbuffer.RestoreBuffer("in", folder, small(), frameOf(1, body))
		if err != nil {
			return
		}
		defer func() {
			if err := b.Close(); err != nil {
				panic(err)
			}
		}()
		folder.Pin(b.SegmentNames()...) // what it trims is for the next run too
		for _, r := range b.Cursors().Readers {
			_, _ = b.Locate(r.Name, r.Acked, 1000).Load()
		}
		_, _, _ = b.HashAt(b.End() / 2)
	})
}

// lostAfterCrash counts the crashes, of many after a snapshot, that the snapshot does not survive.
func lostAfterCrash(t *testing.T, sync bool) (lost int) {
	t.Helper()
	for seed := range uint64(20) {
		disk := newSimDisk(newRand(seed))
		folder := openFolder(t, disk)
		b := logbuffer.NewBuffer("in", folder, small())
		must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}}))
		fill(b, 60)
		must(t, b.Seal())
		manifest := b.AppendManifest(nil)
		if sync {
			must(t, folder.Sync(b.SegmentNames()...))
		}
		fill(b, 60)
		b, _, err := logbuffer.RestoreBuffer("in", openFolder(t, disk.reboot()), small(), manifest)
		if err == nil {
			_, err = drain(b, "all")
		}
		if err != nil {
			lost++
		}
	}
	return lost
}

func TestSyncedSnapshotSurvives(t *testing.T) {
	t.Parallel()
	if n := lostAfterCrash(t, true); n != 0 {
		t.Errorf("%d of 20 snapshots are lost", n)
	}
}

func TestMutantNoSync(t *testing.T) {
	t.Parallel()
	if n := lostAfterCrash(t, false); n == 0 {
		t.Error("without a sync every snapshot survives: the simulated disk proves nothing")
	}
}
