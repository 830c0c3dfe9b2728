package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is one run of the measurements.
type bench struct {
	dir, binary string
	seconds     time.Duration
	backlog     int64 // bytes
	kills       int
	election    time.Duration
	kafka       string // path of kafka.sh
	rows        [][2]string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	var b bench
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := f.String("only", "throughput,kafka,disk,backlog,cpu,snapshots,gap", "what to measure")
	dir := f.String("dir", os.TempDir(), "where data may be written; the disk is part of what is measured")
	seconds := f.Int("seconds", 10, "length of each measurement of a rate")
	f.Int64Var(&b.backlog, "backlog", 4<<30, "bytes of backlog")
	f.IntVar(&b.kills, "kills", 20, "kills of the leader")
	f.DurationVar(&b.election, "election", 500*time.Millisecond, "election timeout of the replicas whose leader is killed")
	f.StringVar(&b.kafka, "kafka", "integration/kafka.sh", "the script that starts Kafka")
	if err = f.Parse(args); err != nil {
		return err
	}
	b.seconds = time.Duration(*seconds) * time.Second
	if b.dir, err = os.MkdirTemp(*dir, "ftproxy-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.binary = filepath.Join(b.dir, "ftproxy")
	build := exec.CommandContext(ctx, "go", "build", "-o", b.binary, "ftproxy/cmd/ftproxy")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	known := map[string]func(context.Context) error{
		"throughput": b.measureThroughput, "kafka": b.measureKafka, "disk": b.measureDisk, "backlog": b.measureBacklog,
		"cpu": b.measureCPU, "snapshots": b.measureSnapshots, "gap": b.measureGaps,
	}
	for name := range strings.SplitSeq(*only, ",") {
		measure, ok := known[name]
		if !ok {
			return fmt.Errorf("-only: %q is unknown", name)
		}
		if err := measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.print()
}

// row notes a figure for the table, and says it at once.
func (b *bench) row(name, format string, args ...any) {
	value := fmt.Sprintf(format, args...)
	b.rows = append(b.rows, [2]string{name, value})
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", name, value)
}

func (b *bench) print() error {
	width := 0
	for _, row := range b.rows {
		width = max(width, len(row[0]))
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| %-*s | figure |\n|%s|--------|\n", width, "measured", strings.Repeat("-", width+2))
	for _, row := range b.rows {
		fmt.Fprintf(&table, "| %-*s | %s |\n", width, row[0], row[1])
	}
	_, err := os.Stdout.WriteString(table.String())
	return err
}

// percentile returns the value below which p of 100 values lie.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

func megabytes(bytes int64, took time.Duration) float64 { return float64(bytes) / took.Seconds() / 1e6 }
