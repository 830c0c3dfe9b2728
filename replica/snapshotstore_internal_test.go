package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// snapRig is a snapshot store on a disk that can die and lose power.
type snapRig struct {
	*snapshotStore
	t     *testing.T
	disk  *lossyDisk
	base  string
	fatal error // the first
	// again collects the indexes of repeated installs.
	again []uint64
}

func newSnapRig(t *testing.T) *snapRig {
	t.Helper()
	r := &snapRig{t: t, disk: newLossyDisk(), base: t.TempDir()}
	for _, folder := range []string{manifestFolder, segmentFolder} {
		if err := os.Mkdir(filepath.Join(r.base, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.reopen(); err != nil {
		t.Fatal(err)
	}
	return r
}

// reopen starts a new store on what is on the disk, after the same look at it as a node's.
func (r *snapRig) reopen() error {
	r.disk.steps = -1
	found := &inspection{}
	if err := found.inspectSnapshot(r.base); err != nil {
		return err
	}
	if len(found.reasons) > 0 {
		return errors.New(strings.Join(found.reasons, "; "))
	}
	folder, err := logbuffer.OpenFolder(lossyFolder{lossyDisk: r.disk, dir: filepath.Join(r.base, segmentFolder)})
	if err != nil {
		return err
	}
	r.snapshotStore = &snapshotStore{
		dir: filepath.Join(r.base, manifestFolder), fs: r.disk, folder: folder, quarantine: func(string) {},
		repeated: func(index uint64) { r.again = append(r.again, index) }, room: func(int64) error { return nil },
		fail: &failure{fatal: func(err error) { r.fatal = err }},
	}
	return r.open()
}

// write makes a segment file, pinned once as a live buffer would, not synced.
func (r *snapRig) write(name, content string) {
	r.t.Helper()
	f, err := r.folder.Create(name)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := io.WriteString(f, content); err != nil {
		r.t.Fatal(err)
	}
}

// segments describes segment files as they are.
func (r *snapRig) segments(names ...string) []logbuffer.SegmentFile {
	r.t.Helper()
	var files []logbuffer.SegmentFile
	for _, name := range names {
		p, err := os.ReadFile(filepath.Join(r.base, segmentFolder, name))
		if err != nil {
			r.t.Fatal(err)
		}
		sum := crc32.Checksum(p, castagnoli)
		files = append(files, logbuffer.SegmentFile{Name: name, Size: int64(len(p)), Sum: sum})
	}
	return files
}

// local takes a snapshot as Raft does.
func (r *snapRig) local(index uint64, manifest string, files ...string) error {
	captured := r.capture(&Image{Manifest: []byte(manifest), Files: r.segments(files...)})
	defer captured.Release()
	sink, err := r.Create(1, index, 1, testServers, index, nil)
	if err != nil {
		return err
	}
	if err := captured.Persist(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// testServers is the configuration of every snapshot here.
var testServers = raft.Configuration{ //nolint:gochecknoglobals // a constant
	Servers: []raft.Server{{ID: "n0#1", Address: "n0"}},
}

// install writes a stream to a sink as Raft does.
func (r *snapRig) install(index, term uint64, stream io.Reader) error {
	sink, err := r.Create(1, index, term, testServers, 1, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, stream); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// stream returns the newest snapshot as a follower would get it.
func (r *snapRig) stream() (raft.SnapshotMeta, []byte) {
	r.t.Helper()
	list, err := r.List()
	if err != nil || len(list) != 1 {
		r.t.Fatal("no snapshot", err)
	}
	meta, source, err := r.Open(list[0].ID)
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := io.ReadAll(source)
	if err = errors.Join(err, source.Close()); err != nil {
		r.t.Fatal(err)
	}
	if int64(len(p)) != meta.Size {
		r.t.Fatalf("the stream has %d bytes, %d were announced", len(p), meta.Size)
	}
	return *meta, p
}

// content describes the newest snapshot: the state's manifest, and the files that it names.
func (r *snapRig) content() (string, error) {
	list, err := r.List()
	if err != nil || len(list) == 0 {
		return "nothing", err
	}
	_, source, err := r.Open(list[0].ID)
	if err != nil {
		return "", err
	}
	defer source.Close() //nolint:errcheck // only the manifest was read
	var out strings.Builder
	fmt.Fprintf(&out, "%d:", list[0].Index)
	err = r.restore(countedReader{source}, func(manifest []byte) error {
		out.WriteString(string(manifest))
		return nil
	})
	for _, name := range r.newest.files {
		p, readErr := os.ReadFile(filepath.Join(r.base, segmentFolder, name))
		fmt.Fprintf(&out, " %s=%s", name, p)
		err = errors.Join(err, readErr)
	}
	return out.String(), err
}

// countedReader wraps a snapshot as Raft does when it restores one; to read from it is an error.
type countedReader struct{ io.ReadCloser }

func (c countedReader) WrappedReadCloser() io.ReadCloser { return c.ReadCloser }
func (countedReader) Read([]byte) (int, error)           { panic("a local snapshot's bytes were read") }

func (r *snapRig) want(content string) {
	r.t.Helper()
	if got, err := r.content(); got != content || err != nil {
		r.t.Fatalf("got %q, %v, want %q", got, err, content)
	}
}

func (r *snapRig) names(folder string) []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.base, folder))
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSnapshotSharesFiles(t *testing.T) {
	t.Parallel()
	r := newSnapRig(t)
	r.write("a.seg", "aaa")
	r.write("b.seg", "bb")
	if err := r.local(10, "first", "a.seg", "b.seg"); err != nil {
		t.Fatal(err)
	}
	r.want("10:first a.seg=aaa b.seg=bb")
	if err := r.folder.Unpin("a.seg", "b.seg"); err != nil { // the live state trims
		t.Fatal(err)
	}
	r.want("10:first a.seg=aaa b.seg=bb")
	r.write("c.seg", "c")
	if err := r.local(20, "second", "b.seg", "c.seg"); err != nil {
		t.Fatal(err)
	}
	r.want("20:second b.seg=bb c.seg=c")
	if got := r.names(segmentFolder); !slices.Equal(got, []string{"b.seg", "c.seg"}) {
		t.Fatalf("files %v: what only the former snapshot named must go", got)
	}
	if got := r.names(manifestFolder); len(got) != 1 {
		t.Fatalf("manifests %v: an older snapshot is left", got)
	}
	r.write("d.seg", "nobody names it")
	if err := r.reopen(); err != nil {
		t.Fatal(err)
	}
	r.want("20:second b.seg=bb c.seg=c")
	if got := r.names(segmentFolder); !slices.Equal(got, []string{"b.seg", "c.seg"}) {
		t.Fatalf("files %v after a start", got)
	}
	if r.newestIndex() != 20 || r.fatal != nil {
		t.Fatalf("index %d, fatal %v", r.newestIndex(), r.fatal)
	}
	list, _ := r.List()
	if got := list[0]; got.Term != 1 || got.ConfigurationIndex != 20 || got.Configuration.Servers[0].ID != "n0#1" {
		t.Fatalf("meta %+v", got)
	}
}

// A file that the state lets go between its image and the manifest must still be there.
func TestCaptureHoldsFiles(t *testing.T) {
	t.Parallel()
	r := newSnapRig(t)
	r.write("a.seg", "aaa")
	captured := r.capture(&Image{Files: r.segments("a.seg")})
	if err := r.folder.Unpin("a.seg"); err != nil {
		t.Fatal(err)
	}
	sink, err := r.Create(1, 1, 1, testServers, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := captured.Persist(sink); err != nil {
		t.Fatal(err)
	}
	if err := sink.Cancel(); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err == nil {
		t.Fatal("a cancelled snapshot is durable")
	}
	captured.Release()
	if got := r.names(segmentFolder); len(got) != 0 {
		t.Fatalf("files %v of a cancelled snapshot", got)
	}
}

func TestOlderSnapshotDoesNotReplaceNewer(t *testing.T) {
	t.Parallel()
	r := newSnapRig(t)
	r.write("a.seg", "aaa")
	if err := r.local(20, "newer", "a.seg"); err != nil {
		t.Fatal(err)
	}
	r.write("b.seg", "bbb")
	if err := r.local(19, "older", "b.seg"); err == nil {
		t.Fatal("a local snapshot that an install overtook was taken")
	}
	r.want("20:newer a.seg=aaa")
	if err := r.local(20, "same index, after a recovery", "a.seg"); err != nil {
		t.Fatal(err)
	}
	r.want("20:same index, after a recovery a.seg=aaa")
}

// While a snapshot is sent its files stay, even if a newer one takes its place.
func TestOpenSnapshotKeepsItsFiles(t *testing.T) {
	t.Parallel()
	r := newSnapRig(t)
	r.write("a.seg", "aaaa")
	if err := r.local(10, "first", "a.seg"); err != nil {
		t.Fatal(err)
	}
	if err := r.folder.Unpin("a.seg"); err != nil {
		t.Fatal(err)
	}
	id := r.newest.meta.ID
	_, source, err := r.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(source, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := r.local(20, "second"); err != nil {
		t.Fatal(err)
	}
	if p, err := io.ReadAll(source); err != nil || !bytes.Contains(p, []byte("aaaa")) {
		t.Fatalf("%q, %v", p, err)
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.names(segmentFolder); len(got) != 0 {
		t.Fatalf("files %v", got)
	}
	if _, _, err := r.Open(id); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the former snapshot: %v", err)
	}
}

// The process dies after an install is durable and before the log is gone: what is left of the log is in the way.
func TestLogBehindSnapshotIsRemoved(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 40, 100)
	sink, err := s.snaps.Create(1, 1000, 3, testServers, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	captured := s.snaps.capture(&Image{Manifest: []byte("x")})
	if err := errors.Join(captured.Persist(sink), sink.Close()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	s = mustOpen(t, c)
	if last, _ := s.logs.LastIndex(); last != 0 {
		t.Fatalf("the log ends with %d", last)
	}
	storeEntries(t, s, 1001, 1010, 100)
	if got := s.logSinceSnapshot(); got < 1000 || got > 3000 {
		t.Errorf("%d bytes since the snapshot", got)
	}
	mustClose(t, s)
	s = mustOpen(t, c)
	mustClose(t, s)

	// The snapshot is gone: the log begins behind a hole, and the watermark knows better too.
	manifests, _ := filepath.Glob(filepath.Join(c.dir, liveFolder, manifestFolder, "*"))
	if err := os.Remove(manifests[0]); err != nil {
		t.Fatal(err)
	}
	wantQuarantine(t, c, "begins with entry 1001")
}

func TestBadManifestIsQuarantined(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	if err := s.setLineage("a life"); err != nil {
		t.Fatal(err)
	}
	f, err := s.folder.Create("a.seg")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.WriteString(f, "aaa"); err != nil {
		t.Fatal(err)
	}
	sink, err := s.snaps.Create(1, 7, 1, testServers, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	captured := s.snaps.capture(&Image{Manifest: []byte("x"), Files: []logbuffer.SegmentFile{{
		Name: "a.seg", Size: 3, Sum: crc32.Checksum([]byte("aaa"), castagnoli),
	}}})
	if err = errors.Join(captured.Persist(sink), sink.Close()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	manifests, _ := filepath.Glob(filepath.Join(c.dir, liveFolder, manifestFolder, "*"))
	good, err := os.ReadFile(manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		p := slices.Clone(good)
		p[i] ^= 0x10
		if _, err := decodeManifest(p); err == nil {
			t.Fatalf("byte %d flipped: taken", i)
		}
	}
	good[len(good)/2]++
	if err := os.WriteFile(manifests[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
	wantQuarantine(t, c, filepath.Base(manifests[0]))
	good[len(good)/2]--
	if err := os.WriteFile(manifests[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, c))
	if err := os.Truncate(filepath.Join(c.dir, liveFolder, segmentFolder, "a.seg"), 1); err != nil {
		t.Fatal(err)
	}
	wantQuarantine(t, c, "a.seg of the snapshot has 1 bytes instead of 3")
}
