package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ftproxy/integration/fleet"
)

const (
	cpuTuples = 500 // of 100 bytes in one request
	cpuRounds = 9
	cpuPushes = 40 // requests a round and node: few, so that the smallest backlog stays in memory
)

// measureCPU fills one node each to backlogs of 1 k, 1 M and 10 M tuples, then pushes to them in turn, round after
// round, and compares what a tuple costs each.
func (b *bench) measureCPU(ctx context.Context) error {
	body := bytes.Repeat(append(bytes.Repeat([]byte("1"), 99), '\n'), cpuTuples)
	backlogs := []int64{1_000, 1_000_000, 10_000_000}
	var nodes []*fleet.Fleet
	defer func() {
		for _, f := range nodes {
			f.Kill()
		}
	}()
	for _, n := range backlogs {
		f, err := b.start(ctx, fmt.Sprintf("cpu-%d", n), 1, nobody, map[string]string{"BUFFER_MAX_BYTES": "64GiB"})
		if err != nil {
			return err
		}
		nodes = append(nodes, f)
		if _, err := pushTuples(ctx, f, body, n/cpuTuples); err != nil {
			return err
		}
	}
	costs := make([][]time.Duration, len(nodes))
	for range cpuRounds {
		for i, f := range nodes {
			cost, err := pushTuples(ctx, f, body, cpuPushes)
			if err != nil {
				return err
			}
			costs[i] = append(costs[i], cost)
		}
	}
	least := percentile(costs[0], 50)
	for i, n := range backlogs {
		median := percentile(costs[i], 50)
		b.row(fmt.Sprintf("CPU per tuple of 100 B taken in, backlog %d and more", n), "%v (%.2f of the first; %v to %v)",
			median, float64(median)/float64(least), slices.Min(costs[i]), slices.Max(costs[i]))
	}
	return nil
}

// pushTuples pushes requests and returns the CPU time that the node used per tuple.
func pushTuples(ctx context.Context, f *fleet.Fleet, body []byte, requests int64) (time.Duration, error) {
	r := f.Replicas[0]
	before, err := cpuTime(r)
	if err != nil {
		return 0, err
	}
	p, err := push(ctx, sourceURL(r), "application/x-ndjson", body, time.Hour, requests)
	if err != nil {
		return 0, err
	}
	after, err := cpuTime(r)
	return (after - before) / time.Duration(p.requests*cpuTuples), err
}

// cpuTime is the time that the threads of a replica have run (the first field of schedstat, in nanoseconds).
func cpuTime(r *fleet.Replica) (time.Duration, error) {
	names, err := filepath.Glob("/proc/" + strconv.Itoa(r.Process().PID()) + "/task/*/schedstat")
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n)
	}
	return total, nil
}
