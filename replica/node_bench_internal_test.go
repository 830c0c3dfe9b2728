package replica

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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
			sent := pour(b, n, 64<<10, 128) // 8 MiB in flight keep the disk busy while verdicts return
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

// drain delivers to nowhere, and acknowledges what it delivered last while it goes on reading, as sinks do.
func drain(ctx context.Context, n *Node) {
	_ = n.Lead(ctx, func(ctx context.Context, t *Tenure) error {
		o := t.Outlet("out")
		after, _, _, _, err := o.Cursor(ctx)
		if err != nil {
			return err
		}
		var delivered atomic.Uint64
		due := make(chan struct{}, 1)
		var acks sync.WaitGroup
		defer acks.Wait()
		defer close(due)
		acks.Go(func() {
			for range due {
				_ = o.Ack(ctx, logbuffer.Ack{UpTo: delivered.Load()}) // the tenure's end ends the reading too
			}
		})
		for {
			batches, err := o.Read(ctx, after, 4<<20)
			if err != nil {
				return err
			}
			after = batches[len(batches)-1].Last
			delivered.Store(after)
			select {
			case due <- struct{}{}:
			default: // one is waiting already
			}
		}
	})
}

// benchGroup is three nodes on loopback sockets, and the one that leads.
func benchGroup(b *testing.B, timeout time.Duration) ([]*Node, *Node) {
	b.Helper()
	dir := benchDir(b)
	links := &tcpNet{host: map[string]string{}, at: map[string]string{}}
	peers := map[string]string{"a": "a:1", "b": "b:1", "c": "c:1"}
	var nodes []*Node
	for name := range peers {
		n, err := Open(b.Context(), Config{
			Name: "op", Node: name, Peers: peers, Insecure: true, DataDir: filepath.Join(dir, name), ElectionTimeout: timeout,
			Readers: []logbuffer.Reader{{Name: "out"}}, Limits: Limits{BufferBytes: 64 << 30},
			hooks: &hooks{listen: links.listen, dial: func(ctx context.Context, addr string) (net.Conn, error) {
				return links.dial(ctx, "", addr)
			}},
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = n.Shutdown(context.WithoutCancel(b.Context())) })
		nodes = append(nodes, n)
	}
	for {
		for _, n := range nodes {
			if n.committer() != nil && n.Ready() == nil {
				return nodes, n
			}
		}
		wait(b.Context(), 10*time.Millisecond)
	}
}

// BenchmarkLinks measures what three nodes take and the bytes on their links per byte of input, with clients at the
// leader that send 1,000 tuples at once.
func BenchmarkLinks(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("tuple=%d", size), func(b *testing.B) {
			nodes, leader := benchGroup(b, 500*time.Millisecond)
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			wg.Go(func() { drain(ctx, leader) })
			before := linkBytes(nodes)
			began := time.Now()
			count := max(1, min(1000, 400<<10/size))
			var next atomic.Int64
			var clients sync.WaitGroup
			b.ResetTimer()
			for c := range 8 {
				clients.Go(func() {
					for at := 0; next.Add(1) <= int64(b.N); at += count {
						batch := logbuffer.Batch{Source: fmt.Sprintf("c%d", c), Rule: logbuffer.RuleDense}
						for i := range count {
							value := make([]byte, size)
							batch.Tuples = append(batch.Tuples, logbuffer.Tuple{Value: value, Position: int64(at + i + 1)})
						}
						if _, err := leader.Append(b.Context(), batch); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			clients.Wait()
			b.StopTimer()
			tuples := float64(b.N * count)
			b.ReportMetric(tuples/time.Since(began).Seconds(), "tuples/s")
			b.ReportMetric(float64(linkBytes(nodes)-before)/(tuples*float64(size)), "link-bytes/byte")
		})
	}
}

func linkBytes(nodes []*Node) int64 {
	var sum int64
	for _, n := range nodes {
		sum += n.Status().Links.SentBytes
	}
	return sum
}

// BenchmarkTakeOver measures the time from the death of a leader to the first acknowledgement under the next.
func BenchmarkTakeOver(b *testing.B) {
	for _, timeout := range []time.Duration{500 * time.Millisecond, 250 * time.Millisecond} {
		b.Run(timeout.String(), func(b *testing.B) {
			var gaps []time.Duration
			for b.Loop() {
				gaps = append(gaps, takeOver(b, timeout))
			}
			slices.Sort(gaps)
			b.ReportMetric(float64(gaps[len(gaps)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(gaps[len(gaps)-1].Milliseconds()), "max-ms")
		})
	}
}

func takeOver(b *testing.B, timeout time.Duration) time.Duration {
	b.Helper()
	nodes, leader := benchGroup(b, timeout)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	acked := make(chan *Node, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, n := range nodes {
		wg.Go(func() {
			_ = n.Lead(ctx, func(ctx context.Context, t *Tenure) error {
				if err := t.Outlet("out").Ack(ctx, logbuffer.Ack{}); err == nil {
					acked <- n
				}
				<-ctx.Done()
				return nil
			})
		})
	}
	for n := range acked {
		if n == leader {
			break
		}
	}
	began := time.Now()
	leader.fail(errKilled)
	for n := range acked {
		if n != leader {
			break
		}
	}
	gap := time.Since(began)
	for _, n := range nodes {
		n.fail(errKilled)
		<-n.Done()
	}
	return gap
}
