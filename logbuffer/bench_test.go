package logbuffer_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"ftproxy/logbuffer"
)

//nolint:gochecknoglobals // a flag of the test binary
var backlogFlag = flag.Uint64("backlog", 200, "size of the large backlog in MiB")

// diskBuffer returns a buffer with default options on the operating system's files.
func diskBuffer(tb testing.TB) (*logbuffer.Buffer, *logbuffer.Folder) {
	tb.Helper()
	root, err := os.OpenRoot(tb.TempDir())
	must(tb, err)
	tb.Cleanup(func() { must(tb, root.Close()) })
	folder := openFolder(tb, logbuffer.OSFolder(root))
	b := logbuffer.NewBuffer("in", folder, logbuffer.Options{})
	must(tb, b.SetReaders([]logbuffer.Reader{{Name: "all"}}))
	return b, folder
}

// BenchmarkAppendAck appends a tuple and acknowledges the oldest, over a standing backlog.
func BenchmarkAppendAck(b *testing.B) {
	for _, backlog := range []uint64{0, 1_000, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("backlog=%d", backlog), func(b *testing.B) {
			buf, _ := diskBuffer(b)
			e := batchOf("", 1, 100)
			for range backlog {
				buf.Append(e, true)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			b.ResetTimer()
			start := cpu(b)
			for n := uint64(1); b.Loop(); n++ {
				buf.Append(e, true)
				if err := buf.Ack("all", n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkAppendGrowing appends to a backlog that nobody reads, in small and in large batches.
func BenchmarkAppendGrowing(b *testing.B) {
	for _, size := range []int{100, 512 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			buf, _ := diskBuffer(b)
			e := batchOf("", 1, size)
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			for b.Loop() {
				buf.Append(e, true)
				if buf.Bytes() > 4<<30 {
					if err := buf.Ack("all", buf.End()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkRead reads a backlog in portions of 1 MiB, from files and from the tail, acknowledging as it goes.
func BenchmarkRead(b *testing.B) {
	for _, tuples := range []int{100_000, 3_000_000} {
		b.Run(fmt.Sprintf("backlog=%d", tuples), func(b *testing.B) {
			buf, _ := diskBuffer(b)
			e := batchOf("", 1, 100)
			at := uint64(0)
			read := 0
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			for read < b.N {
				b.StopTimer()
				for buf.End()-at < uint64(tuples) {
					buf.Append(e, true)
				}
				b.StartTimer()
				for read < b.N && buf.End() > at {
					got, err := buf.Locate("all", at, 1<<20).Load()
					if err != nil {
						b.Fatal(err)
					}
					at = got[len(got)-1].Last
					read += len(got)
					if err := buf.Ack("all", at); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// TestLargeBacklog holds memory and restart time against their bounds: one-tuple batches, 4 GiB of
// them with -backlog=4096.
func TestLargeBacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("writes hundreds of MiB")
	}
	folder, manifest, end := largeBacklog(t)

	before := heap()
	again, _, err := logbuffer.RestoreBuffer("in", folder, logbuffer.Options{}, manifest)
	must(t, err)
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("restored, %d segments take %d KiB", len(again.SegmentNames()), grown>>10)
	}
	must(t, again.Ack("all", end/2))
	got, err := again.Locate("all", end/2, 1<<20).Load()
	if err != nil || got[0].First != end/2+1 || len(got) < 5000 {
		t.Errorf("read in the middle: %d batches, %v", len(got), err)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("after a read %d KiB are in use", grown>>10)
	}
	runtime.KeepAlive(again)
}

// largeBacklog fills a buffer, checks the memory it takes, and seals it.
func largeBacklog(t *testing.T) (folder *logbuffer.Folder, manifest []byte, end uint64) {
	t.Helper()
	b, folder := diskBuffer(t)
	e := batchOf("", 1, 100)
	before := heap()
	for b.Bytes() < *backlogFlag<<20 {
		b.Append(e, true)
	}
	if grown := heap() - before; grown > 40<<20 {
		t.Errorf("a backlog of %d tuples takes %d MiB of memory", b.End(), grown>>20)
	}
	must(t, b.Seal())
	manifest = b.AppendManifest(nil)
	if len(manifest) > 32<<10 {
		t.Errorf("the manifest takes %d bytes", len(manifest))
	}
	return folder, manifest, b.End()
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpu returns the processor time that the process used so far: unlike the wall clock it does not count the disk.
func cpu(tb testing.TB) int64 {
	tb.Helper()
	var use syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return use.Utime.Nano() + use.Stime.Nano()
}
