package logbuffer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

func batchOf(sink string, count, size int) logbuffer.Encoded {
	b := logbuffer.Batch{Source: "test", Sink: sink}
	for i := range count {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: bytes.Repeat([]byte{byte(i)}, size), Position: int64(i)})
	}
	return logbuffer.AppendBatch(nil, &b)
}

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
