package logbuffer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"ftproxy/logbuffer"
)

// batchOf returns a batch of count tuples of size bytes for a sink.
func batchOf(sink string, count, size int) logbuffer.Encoded {
	b := logbuffer.Batch{Source: "test", Sink: sink}
	for i := range count {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: bytes.Repeat([]byte{byte(i)}, size), Position: int64(i)})
	}
	return logbuffer.AppendBatch(nil, &b)
}

// newBuffer returns a buffer with one reader, "all", on a simulated disk. Its tail holds about ten batches of 100
// bytes.
func newBuffer(tb testing.TB) (*logbuffer.Buffer, *logbuffer.Folder, *simDisk) {
	tb.Helper()
	disk := newSimDisk(newRand(1))
	folder := openFolder(tb, disk)
	logbuffer.SetSizes(folder, 1, 300)
	b := logbuffer.NewBuffer("in", folder, small())
	must(tb, b.SetReaders([]logbuffer.Reader{{Name: "all"}}))
	return b, folder, disk
}

func small() logbuffer.Options { return logbuffer.Options{SegmentBytes: 2000, TailBytes: 2000} }

func fill(b *logbuffer.Buffer, n int) {
	for range n {
		b.Append(batchOf("", 1, 100), true)
	}
}

// drain reads and acknowledges everything and returns the number of tuples.
func drain(b *logbuffer.Buffer, reader string) (tuples uint64, err error) {
	c, _ := b.Reader(reader)
	at := c.Acked
	for {
		s := b.Locate(reader, at, 1000)
		if s.Empty() {
			return tuples, nil
		}
		got, err := s.Load()
		if err != nil {
			return tuples, err
		}
		for _, g := range got {
			if err := g.Data.Check(); err != nil {
				return tuples, err
			}
			tuples += g.Last - g.First + 1
			at = g.Last
		}
		if err := b.Ack(reader, at); err != nil {
			return tuples, err
		}
	}
}

func TestDrainedBufferWritesNothing(t *testing.T) {
	t.Parallel()
	b, _, disk := newBuffer(t)
	for range 500 {
		fill(b, 5)
		if _, err := drain(b, "all"); err != nil {
			t.Fatal(err)
		}
	}
	must(t, b.Seal())
	if disk.step != 0 || len(b.SegmentNames()) != 0 {
		t.Errorf("%d mutations of the disk, segments %v", disk.step, b.SegmentNames())
	}
	if c := b.Cursors(); c.Trimmed != 2500 || c.End != 2500 || c.Bytes != 0 {
		t.Errorf("%+v", c)
	}
}

func TestTailIsBoundedAndFilesTakeTheRest(t *testing.T) {
	t.Parallel()
	b, _, disk := newBuffer(t)
	for i := range 200 {
		b.Append(batchOf("", 1, 100), true)
		if n := logbuffer.TailBytes(b); n > small().TailBytes {
			t.Fatalf("after %d batches the tail takes %d bytes", i, n)
		}
	}
	b.Append(batchOf("", 1, 5000), true) // more than the tail may hold
	if n := logbuffer.TailBytes(b); n > small().TailBytes {
		t.Fatalf("after a huge batch the tail takes %d bytes", n)
	}
	names, err := disk.List()
	must(t, err)
	if len(names) < 10 || !slices.Equal(names, b.SegmentNames()) {
		t.Errorf("%d files, %v", len(names), names)
	}
	if n, err := drain(b, "all"); err != nil || n != 201 {
		t.Fatalf("%d tuples, %v", n, err)
	}
	if names, _ := disk.List(); len(names) != 0 {
		t.Errorf("drained, but there are %v", names)
	}
}

// TestSealFindsLittleToWrite: with a growing backlog a snapshot must not write a whole tail at once.
func TestSealFindsLittleToWrite(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 13)
	if n := logbuffer.InFiles(b); n > 6 {
		t.Fatalf("at the first overflow %d batches are written already", n)
	}
	for range 100 {
		fill(b, 1)
		if n := b.End() - logbuffer.InFiles(b); b.End() > 40 && n > 4 {
			t.Fatalf("of %d batches %d are in memory only", b.End(), n)
		}
	}
}

// TestLargeBatches are written past the gathering buffer, between small ones.
func TestLargeBatches(t *testing.T) {
	t.Parallel()
	b, folder, _ := newBuffer(t)
	var want []logbuffer.Encoded
	for i := range 12 {
		e := batchOf("", 1, []int{10, 300 << 10, 256<<10 - 40, 1 << 20}[i%4]+i)
		want = append(want, e)
		b.Append(e, true)
	}
	must(t, b.Seal())
	b, _, err := logbuffer.RestoreBuffer("in", folder, small(), b.AppendManifest(nil))
	must(t, err)
	for i, e := range want {
		got, err := b.Locate("all", uint64(i), 1).Load()
		if err != nil || len(got) != 1 || !bytes.Equal(got[0].Data, e) {
			t.Fatalf("batch %d: %d read, %v", i, len(got), err)
		}
	}
	if n, err := drain(b, "all"); n != 12 || err != nil {
		t.Errorf("%d tuples, %v", n, err)
	}
}

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

// sealed returns a sealed buffer of a few segments, its manifest, and the files it names.
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

// damages reads a restored buffer whose files were damaged: by a reader, by a new reader, and by a floor.
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

// checkDamageIsFound flips bits of a sealed segment and returns an error for the first that nobody finds.
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

// hashes asks for the hash at every offset of a restored buffer.
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
	if _, err := drain(b, "all"); !errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), names[1]) {
		t.Errorf("short while it is read: %v", err)
	}
	delete(disk.files, names[1])
	if _, err := b.Locate("all", b.Cursors().Readers[0].Acked, 1<<20).Load(); !errors.Is(err, logbuffer.ErrCorrupt) ||
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

// checkManifestsLast takes snapshots, goes on, and returns an error if an earlier manifest cannot be restored any more.
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

// TestTrimBetweenLocateAndLoad: the file of a located slice goes away.
func TestTrimBetweenLocateAndLoad(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 60)
	fromFile := b.Locate("all", 3, 1)
	fromTail := b.Locate("all", b.End()-1, 1)
	across := b.Locate("all", 3, 1<<20)
	must(t, b.Ack("all", b.End()))
	if _, err := fromFile.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("from a file: %v", err)
	}
	if _, err := across.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("across: %v", err)
	}
	if got, err := fromTail.Load(); err != nil || len(got) != 1 || got[0].Data.Check() != nil {
		t.Errorf("from the tail: %v", err)
	}
	fill(b, 60)
	open := b.Locate("all", 60, 1)
	must(t, b.Close())
	if _, err := open.Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestReadsAndAcksThatCannotBe(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 3)
	must(t, b.Ack("all", 2))
	for name, err := range map[string]error{
		"ack beyond the end":  b.Ack("all", 4),
		"ack by nobody":       b.Ack("nobody", 1),
		"read beyond the end": func() error { _, err := b.Locate("all", 4, 1).Load(); return err }(),
		"read by nobody":      func() error { _, err := b.Locate("nobody", 0, 1).Load(); return err }(),
	} {
		if !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Locate("all", 1, 1).Load(); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("read below trimmed: %v", err)
	}
	must(t, b.Ack("all", 1))
	if c, _ := b.Reader("all"); c.Acked != 2 || c.PendingTuples != 1 {
		t.Errorf("an ack went back: %+v", c)
	}
	if _, ok := b.Reader("nobody"); ok {
		t.Error("there is a reader nobody")
	}
	for name, f := range map[string]func(){
		"append of nothing":    func() { b.Append(nil, false) },
		"append without tuple": func() { b.Append(logbuffer.AppendBatch(nil, &logbuffer.Batch{}), false) },
		"a floor that is gone": func() { _ = b.SetNeeded(1) },
		"unsealed manifest":    func() { b.AppendManifest(nil) },
	} {
		if !panics(f) {
			t.Errorf("%s does not panic", name)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

// TestReaderWithoutPending: it does not hold trimming, its confirmed offset and hash stay, and it reads on from there.
func TestReaderWithoutPending(t *testing.T) {
	t.Parallel()
	b, folder, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}, {Name: "k", Sinks: []string{"k"}}}))
	b.Append(batchOf("k", 2, 10), true)
	_, confirmed := b.Append(batchOf("k", 1, 10), true)
	must(t, b.Ack("k", confirmed))
	hash, ok, err := b.HashAt(confirmed)
	if !ok || err != nil {
		t.Fatal(err)
	}
	for range 50 {
		_, last := b.Append(batchOf("h", 1, 100), true)
		must(t, b.Ack("all", last))
	}
	c := b.Cursors()
	if c.Trimmed != c.End {
		t.Fatalf("a reader without a tuple holds trimming: %+v", c)
	}
	first, _ := b.Append(batchOf("k", 1, 10), false)
	b.Append(batchOf("h", 1, 10), true)
	must(t, b.Seal())
	b, _, err = logbuffer.RestoreBuffer("in", folder, small(), b.AppendManifest(nil))
	must(t, err)
	if r, _ := b.Reader("k"); r.Acked != confirmed || r.Hash != hash || r.PendingTuples != 1 || !r.EverAcked {
		t.Errorf("%+v", r)
	}
	if got, ok, err := b.HashAt(confirmed); !ok || err != nil || got != hash {
		t.Errorf("the hash at the confirmed offset is gone: %v", err)
	}
	got, err := b.Locate("k", confirmed, 1000).Load()
	if err != nil || len(got) != 1 || got[0].First != first || !got[0].Boundary {
		t.Errorf("read after the confirmed offset: %v, %v", got, err)
	}
}

func TestUnreadSinkHoldsTrimming(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a"}}}))
	b.Append(batchOf("a", 1, 10), true)
	b.Append(batchOf("typo", 3, 10), true)
	b.Append(batchOf("a", 1, 10), true)
	must(t, b.Ack("a", 5))
	if c := b.Cursors(); c.Trimmed != 1 || c.Unread != 3 {
		t.Fatalf("%+v", c)
	}
	err := b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a", "typo"}}})
	if !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Fatalf("a reader that is beyond took over what waits: %v", err)
	}
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "a", Sinks: []string{"a"}}, {Name: "b", Sinks: []string{"typo"}}}))
	if c := b.Cursors(); c.Unread != 0 || c.Readers[1].PendingTuples != 3 {
		t.Fatalf("%+v", c)
	}
	if n, err := drain(b, "b"); n != 3 || err != nil || b.Cursors().Trimmed != 5 {
		t.Errorf("%d tuples, %v, %+v", n, err, b.Cursors())
	}
}

func TestSetReadersRefuses(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 3)
	before := b.Cursors()
	for name, rs := range map[string][]logbuffer.Reader{
		"removed with tuples pending": {},
		"changed with tuples pending": {{Name: "all", Sinks: []string{"x"}}},
		"a name twice":                {{Name: "all"}, {Name: "all"}},
		"no name":                     {{Name: "all"}, {}},
	} {
		if err := b.SetReaders(rs); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if after := b.Cursors(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: something changed: %+v", name, after)
		}
	}
	must(t, b.Ack("all", 3))
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "other"}}))
	fill(b, 1)
	if c := b.Cursors(); c.Readers[0].Acked != 3 || c.Readers[0].PendingTuples != 1 || c.Readers[0].EverAcked {
		t.Errorf("%+v", c)
	}
}

func TestNeededHoldsTrimming(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	fill(b, 100)
	must(t, b.SetNeeded(40))
	must(t, b.Ack("all", 90))
	c := b.Cursors()
	if c.Trimmed != 40 || c.Held != 50*c.Bytes/60 {
		t.Fatalf("%+v", c)
	}
	got, err := b.Locate("all", 40, 1).Load() // a replay for an operator's state
	if err != nil || got[0].First != 41 {
		t.Fatalf("%v, %v", got, err)
	}
	must(t, b.SetNeeded(math.MaxUint64))
	if c := b.Cursors(); c.Trimmed != 90 || c.Held != 0 {
		t.Fatalf("%+v", c)
	}
}

// TestNoSpace: the write that fails panics with the cause, and nothing is written afterwards.
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

// TestConcurrentLoads reads outside the lock while the owner appends, acknowledges and seals.
func TestConcurrentLoads(t *testing.T) {
	t.Parallel()
	b, _, _ := newBuffer(t)
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}, {Name: "k", Sinks: []string{"k"}}}))
	var mu sync.Mutex
	var wg sync.WaitGroup
	const total = 3000
	read := func(name string) {
		at := uint64(0)
		for at < total {
			mu.Lock()
			s := b.Locate(name, at, 1500)
			mu.Unlock()
			got, err := s.Load()
			if err != nil {
				t.Errorf("%s after %d: %v", name, at, err)
				return
			}
			if len(got) == 0 {
				runtime.Gosched()
				continue
			}
			at = got[len(got)-1].Last
			mu.Lock()
			err = b.Ack(name, at)
			mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
		}
	}
	wg.Go(func() { read("all") })
	wg.Go(func() { read("k") })
	for i := range total {
		mu.Lock()
		b.Append(batchOf([]string{"k", "h", ""}[i%3], 1, 50), i%2 == 0)
		if i%100 == 99 {
			if err := b.Seal(); err != nil {
				t.Error(err)
			}
		}
		mu.Unlock()
		if i%500 == 499 {
			runtime.Gosched()
		}
	}
	wg.Wait()
	if c := b.Cursors(); c.Trimmed != total && !t.Failed() {
		t.Errorf("%+v", c)
	}
}

// TestSameCursorsWhateverTheFiles: replicas with other sizes and other snapshots agree.
func TestSameCursorsWhateverTheFiles(t *testing.T) {
	t.Parallel()
	one := newSim(t, 7)
	must(t, one.run(300))
	other := logbuffer.NewBuffer("in", openFolder(t, newSimDisk(newRand(2))), logbuffer.Options{TailBytes: 1})
	s := &sim{t: t, b: other}
	for _, o := range one.log {
		must(t, s.apply(o, nil))
	}
	if got, want := fmt.Sprint(other.Cursors()), fmt.Sprint(one.b.Cursors()); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestSinksForgotten(t *testing.T) {
	t.Parallel()
	b, folder, _ := newBuffer(t)
	for i := range 300 {
		_, last := b.Append(batchOf(fmt.Sprint("sink", i), 1, 10), true)
		must(t, b.Ack("all", last))
	}
	must(t, b.Seal())
	if n := logbuffer.Labels(b); n != 0 {
		t.Errorf("%d sinks are remembered", n)
	}
	if n := len(b.AppendManifest(nil)); n > 300 {
		t.Errorf("the manifest takes %d bytes", n)
	}
	if n := logbuffer.OpenFiles(folder); n != 0 {
		t.Errorf("%d files are open", n)
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

// TestOnDisk runs the buffer on the operating system's files.
func TestOnDisk(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	must(t, err)
	defer func() { must(t, root.Close()) }()
	files := logbuffer.OSFolder(root)
	folder := openFolder(t, files)
	b := logbuffer.NewBuffer("in", folder, small())
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}}))
	fill(b, 100)
	must(t, b.Seal())
	names := b.SegmentNames()
	folder.Pin(names...)
	must(t, folder.Sync(names...))
	manifest := b.AppendManifest(nil)
	fill(b, 50) // lost

	must(t, os.WriteFile(root.Name()+"/foreign", nil, 0o600))
	folder = openFolder(t, files)
	b, _, err = logbuffer.RestoreBuffer("in", folder, small(), manifest)
	must(t, err)
	must(t, folder.Sweep())
	got, err := files.List()
	must(t, err)
	slices.Sort(got)
	if want := append([]string{"foreign"}, names...); !slices.Equal(got, want) {
		t.Errorf("files %v; want %v", got, want)
	}
	if n, err := drain(b, "all"); n != 100 || err != nil {
		t.Errorf("%d tuples, %v", n, err)
	}
	if got, _ := files.List(); len(got) != 1 {
		t.Errorf("drained, but there are %v", got)
	}
	if _, err := files.Open("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of nothing: %v", err)
	}
	if _, err := files.Create("foreign"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a file: %v", err)
	}
	if _, err := files.Create("../outside"); err == nil {
		t.Error("created a file outside")
	}
}

// TestHashesTellOrder: the running hash depends on order, contents and grouping.
func TestHashesTellOrder(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	one, two := batchOf("", 1, 10), batchOf("", 2, 10)
	for name, es := range map[string][]logbuffer.Encoded{
		"": nil, "1": {one}, "2": {two}, "12": {one, two}, "21": {two, one}, "11": {one, one}, "111": {one, one, one},
	} {
		b, _, _ := newBuffer(t)
		for _, e := range es {
			b.Append(e, true)
		}
		h := b.Cursors().EndHash
		if other, ok := seen[h]; ok {
			t.Errorf("%q and %q have one hash", name, other)
		}
		seen[h] = name
	}
	if sum := binary.LittleEndian.Uint32(one[4:]); sum == 0 {
		t.Error("no checksum")
	}
}
