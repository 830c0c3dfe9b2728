package replica

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

// benchDir is a folder on a real disk.
func benchDir(b *testing.B) string {
	b.Helper()
	if dir := os.Getenv("FTPROXY_BENCH_DIR"); dir != "" {
		sub, err := os.MkdirTemp(dir, "bench-") //nolint:usetesting // on the disk that is to be measured
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = os.RemoveAll(sub) })
		return sub
	}
	return b.TempDir()
}

// fdatasyncRate is what the disk takes: appends of an entry's size, each made durable, for a second.
func fdatasyncRate(b *testing.B, dir string, size int) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "baseline"))
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it goes with the folder
	defer f.Close()           //nolint:errcheck // nothing of it is kept
	block := make([]byte, size)
	for i := range block {
		block[i] = byte(i * 7)
	}
	began, written := time.Now(), 0
	for time.Since(began) < time.Second {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		written += size
	}
	return float64(written) / time.Since(began).Seconds()
}

// BenchmarkAppend measures accepted bytes on one node, in requests of 64 KiB from 32 clients, as a share of what the
// disk takes in synced appends of 512 KiB; with a reader that keeps up, and with none.
func BenchmarkAppend(b *testing.B) {
	for _, drained := range []bool{true, false} {
		b.Run(fmt.Sprintf("drained=%v", drained), func(b *testing.B) {
			dir := benchDir(b)
			n, err := Open(b.Context(), Config{
				Name: "op", Node: "a", DataDir: filepath.Join(dir, "data"), Readers: []logbuffer.Reader{{Name: "out"}},
				Limits: Limits{BufferBytes: 64 << 30},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer n.Shutdown(context.WithoutCancel(b.Context())) //nolint:errcheck // measured is measured
			for n.Ready() != nil {
				wait(b.Context(), 10*time.Millisecond)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			if drained {
				wg.Go(func() { drain(ctx, n) })
			}
			before := fdatasyncRate(b, dir, entryBytes)
			began := time.Now()
			sent := pour(b, n, 64<<10, 32)
			rate := float64(sent) / time.Since(began).Seconds()
			disk := (before + fdatasyncRate(b, dir, entryBytes)) / 2
			b.ReportMetric(rate/1e6, "MB/s")
			b.ReportMetric(rate/disk, "of-disk")
			b.ReportMetric(float64(n.Status().Disk.SyncP999)/1e3, "p99.9-sync-ms")
		})
	}
}

// pour appends b.N requests from several clients and returns the bytes.
func pour(b *testing.B, n *Node, size, clients int) int64 {
	b.Helper()
	var left, sent atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range clients {
		wg.Go(func() {
			value := make([]byte, size)
			for i := range value {
				value[i] = byte(i * (c + 3))
			}
			for at := int64(1); left.Add(-1) >= 0; at++ {
				batch := logbuffer.Batch{Source: fmt.Sprintf("c%d", c), Rule: logbuffer.RuleDense, Tuples: []logbuffer.Tuple{
					{Value: value, Position: at},
				}}
				if _, err := n.Append(b.Context(), batch); err != nil {
					b.Error(err)
					return
				}
				sent.Add(int64(size))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	return sent.Load()
}

// drain delivers to nowhere.
func drain(ctx context.Context, n *Node) {
	_ = n.Lead(ctx, func(ctx context.Context, t *Tenure) error {
		o := t.Outlet("out")
		after, _, _, _, err := o.Cursor(ctx)
		for err == nil {
			var batches []logbuffer.Stored
			if batches, err = o.Read(ctx, after, 1<<20); err != nil {
				break
			}
			after = batches[len(batches)-1].Last
			err = o.Ack(ctx, logbuffer.Ack{UpTo: after})
		}
		return err
	})
}
