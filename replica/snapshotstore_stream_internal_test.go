package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

func TestInstall(t *testing.T) {
	t.Parallel()
	leader, follower := newSnapRig(t), newSnapRig(t)
	big := strings.Repeat("0123456789abcdef", 10_000)
	leader.write("a.seg", big)
	leader.write("b.seg", "")
	leader.write("c.seg", "c")
	if err := leader.local(50, "the state", "a.seg", "b.seg", "c.seg"); err != nil {
		t.Fatal(err)
	}
	follower.write("old.seg", "old")
	if err := follower.local(10, "old", "old.seg"); err != nil {
		t.Fatal(err)
	}
	if err := follower.folder.Unpin("old.seg"); err != nil {
		t.Fatal(err)
	}
	meta, stream := leader.stream()
	if err := follower.install(meta.Index, meta.Term, iotestOneByte{bytes.NewReader(stream)}); err != nil {
		t.Fatal(err)
	}
	follower.want("50:the state a.seg=" + big + " b.seg= c.seg=c")
	if got := follower.names(segmentFolder); !slices.Equal(got, []string{"a.seg", "b.seg", "c.seg"}) {
		t.Fatalf("files %v", got)
	}
	if len(follower.names(manifestFolder)) != 1 {
		t.Fatal("the former snapshot is left")
	}
	// Again, which Raft may do without end: the files are there.
	if err := follower.install(meta.Index, meta.Term, bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(follower.again, []uint64{50}) || follower.repeats.Load() != 1 || follower.installs.Load() != 2 {
		t.Fatalf("repeated installs %v, %d of %d", follower.again, follower.repeats.Load(), follower.installs.Load())
	}
	follower.disk.losePower(t, filepath.Join(follower.base, manifestFolder), filepath.Join(follower.base, segmentFolder))
	if err := follower.reopen(); err != nil {
		t.Fatal(err)
	}
	follower.want("50:the state a.seg=" + big + " b.seg= c.seg=c")
	if follower.fatal != nil || leader.fatal != nil {
		t.Fatal(follower.fatal, leader.fatal)
	}
}

// iotestOneByte gives one byte at a time, and hides io.WriterTo.
type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// Whatever is wrong with a stream, it is refused, and nothing of it is left.
func TestBadStreamIsRefused(t *testing.T) {
	t.Parallel()
	leader, follower := newSnapRig(t), newSnapRig(t)
	leader.write("a.seg", "aaaaaaaaaaaaaaaaaaaa")
	leader.write("b.seg", "bbbb")
	if err := leader.local(50, "the state", "a.seg", "b.seg"); err != nil {
		t.Fatal(err)
	}
	follower.write("b.seg", "bbbb") // this one is here and in use
	meta, good := leader.stream()
	refuse := func(what string, index, term uint64, stream []byte) {
		t.Helper()
		if err := follower.install(index, term, bytes.NewReader(stream)); err == nil {
			t.Fatalf("%s: taken", what)
		} else if errors.Is(err, ErrStorage) {
			t.Fatalf("%s: it is not the disk's fault: %v", what, err)
		}
		got, pins := follower.names(segmentFolder), follower.folder.Pinned("b.seg")
		if !slices.Equal(got, []string{"b.seg"}) || pins != 1 {
			t.Fatalf("%s: files %v are left, %d times in use", what, got, pins)
		}
		if len(follower.names(manifestFolder)) != 0 {
			t.Fatalf("%s: a manifest is left", what)
		}
	}
	for i := range good {
		p := slices.Clone(good)
		p[i] ^= 1
		refuse(fmt.Sprintf("byte %d flipped", i), meta.Index, meta.Term, p)
		refuse(fmt.Sprintf("cut at %d", i), meta.Index, meta.Term, good[:i])
	}
	refuse("a byte too many", meta.Index, meta.Term, append(slices.Clone(good), 0))
	refuse("another index", meta.Index+1, meta.Term, good)
	refuse("another term", meta.Index, meta.Term+1, good)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's noise
	for range 100 {
		p := make([]byte, 200)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		copy(p, good[:min(random.IntN(40), len(good))])
		refuse("noise", meta.Index, meta.Term, p)
	}
	follower.room = func(int64) error { return logbuffer.ErrUnavailable }
	refuse("no room", meta.Index, meta.Term, good)
	follower.room = func(int64) error { return nil }
	if err := follower.install(meta.Index, meta.Term, bytes.NewReader(good)); err != nil || follower.fatal != nil {
		t.Fatal(err, follower.fatal)
	}
}

func TestFileOfOtherContentIsRefused(t *testing.T) {
	t.Parallel()
	leader, follower := newSnapRig(t), newSnapRig(t)
	leader.write("a.seg", "aaaa")
	if err := leader.local(50, "the state", "a.seg"); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"aaab", "aaaaa", ""} {
		follower.write("a.seg", content)
		meta, stream := leader.stream()
		if err := follower.install(meta.Index, meta.Term, bytes.NewReader(stream)); !errors.Is(err, errSnapshot) {
			t.Fatalf("%q stands for another file: %v", content, err)
		}
		if err := follower.folder.Unpin("a.seg"); err != nil {
			t.Fatal(err)
		}
	}
}

// A head of a size that nobody has sent yet takes no memory.
func TestAnnouncedSizeTakesNoMemory(t *testing.T) {
	r := newSnapRig(t)
	prefix := append([]byte(streamMagic), snapshotVersion, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0) // 1 GiB
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := r.install(1, 1, bytes.NewReader(prefix)); !errors.Is(err, errSnapshot) {
		t.Fatalf("got %v", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Fatalf("%d bytes were allocated", got)
	}
}

// A file of a snapshot that changed under the store is damage; it is never sent on.
func TestDamagedSnapshotIsNotSent(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(r *snapRig) error{
		"file gone":  func(r *snapRig) error { return os.Remove(filepath.Join(r.base, segmentFolder, "a.seg")) },
		"file short": func(r *snapRig) error { return os.Truncate(filepath.Join(r.base, segmentFolder, "a.seg"), 1) },
		"bit flipped": func(r *snapRig) error {
			return os.WriteFile(filepath.Join(r.base, segmentFolder, "a.seg"), []byte("aaca"), 0o600)
		},
		"manifest": func(r *snapRig) error {
			return os.WriteFile(filepath.Join(r.dir, r.newest.meta.ID), []byte("FTSN"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSnapRig(t)
			r.write("a.seg", "aaaa")
			if err := r.local(50, "the state", "a.seg"); err != nil {
				t.Fatal(err)
			}
			if err := damage(r); err != nil {
				t.Fatal(err)
			}
			_, source, err := r.Open(r.newest.meta.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(source); !errors.Is(err, ErrStorage) || r.fatal == nil {
				t.Fatalf("got %v, fatal %v", err, r.fatal)
			}
			if err := r.reopen(); err == nil && name != "bit flipped" { // files are not read through at start
				t.Fatal("opened with a damaged snapshot")
			}
		})
	}
}

// A file that was here a moment ago, and that the live state has trimmed since, is one like any other.
func TestFileTrimmedDuringInstall(t *testing.T) {
	t.Parallel()
	r := newSnapRig(t)
	u := newUnpacker(r.folder, r.room)
	if err := u.compare(logbuffer.SegmentFile{Name: "gone.seg", Size: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(u.out, "new"); err != nil || r.folder.Pinned("gone.seg") != 1 {
		t.Fatal(err, r.folder.Pinned("gone.seg"))
	}
	r.folder.Pin("damaged.seg") // and missing all the same
	if err := u.compare(logbuffer.SegmentFile{Name: "damaged.seg"}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// Raft tells of a state that cannot be restored only that there is none.
func TestUnusableStateEndsTheProcess(t *testing.T) {
	t.Parallel()
	for _, class := range []error{ErrVersion, logbuffer.ErrCorrupt} {
		r := newSnapRig(t)
		quarantined := false
		r.quarantine = func(string) { quarantined = true }
		if err := r.local(10, "the state"); err != nil {
			t.Fatal(err)
		}
		_, source, err := r.Open(r.newest.meta.ID)
		if err != nil {
			t.Fatal(err)
		}
		err = r.restore(countedReader{source}, func([]byte) error { return class })
		if !errors.Is(err, class) || !errors.Is(r.fatal, class) || quarantined != errors.Is(class, logbuffer.ErrCorrupt) {
			t.Errorf("%v: got %v, fatal %v, quarantined %v", class, err, r.fatal, quarantined)
		}
		if err := source.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzInstall(f *testing.F) {
	head := snapshotHead{index: 1, term: 1, manifest: []byte("m"), files: []logbuffer.SegmentFile{
		{Name: "a.seg", Size: 2, Sum: 3},
	}}
	f.Add(head.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := decodeHead(p)
		if err == nil && !bytes.Equal(h.append(nil), p) {
			t.Fatalf("%+v does not encode to what it was decoded from", h)
		}
		folder, err := logbuffer.OpenFolder(lossyFolder{lossyDisk: newLossyDisk(), dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		u := newUnpacker(folder, func(int64) error { return nil })
		_, err = u.Write(p)
		if err == nil {
			err = u.finish()
		}
		if err == nil {
			t.Fatal("a stream without a checksum was taken")
		}
		if err := u.abandon(); err != nil {
			t.Fatal(err)
		}
	})
}
