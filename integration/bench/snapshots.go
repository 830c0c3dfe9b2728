package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"time"

	"ftproxy/integration/fleet"
)

const (
	snapshotsWanted = 20
	nearSnapshot    = time.Second
)

// sample is one request: when it was answered, and after how long.
type sample struct {
	at   time.Time
	took time.Duration
}

// measureSnapshots compares requests within a second of a snapshot with all others, on three nodes at full load whose
// downstream is away, so that the backlog grows from where it is.
func (b *bench) measureSnapshots(ctx context.Context) error {
	f, err := b.start(ctx, "snapshots", 3, nobody, map[string]string{"BUFFER_MAX_BYTES": "64GiB"})
	if err != nil {
		return err
	}
	defer f.Kill()
	leader, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	body := make([]byte, 64<<10)
	rand.Read(body)
	url := sourceURL(leader)
	fill := b.backlog / int64(len(body))
	if _, err = push(ctx, url, "application/octet-stream", body, time.Hour, fill); err != nil {
		return err
	}
	term, err := termOf(ctx, leader)
	if err != nil {
		return err
	}

	loading, stop := context.WithCancel(ctx)
	defer stop()
	samples := make([][]sample, clients)
	var wait sync.WaitGroup
	for i := range clients {
		wait.Go(func() { samples[i] = sampleRequests(loading, url, body) })
	}
	snapshots, err := watchSnapshots(ctx, leader)
	stop()
	wait.Wait()
	if err != nil {
		return err
	}
	after, err := termOf(ctx, leader)
	if err != nil {
		return err
	}
	near, far := splitSamples(samples, snapshots)
	b.row(fmt.Sprintf("%d snapshots at full load, backlog from %.1f GiB", len(snapshots), float64(b.backlog)/(1<<30)),
		"p99 of a request %.0f ms within 1 s of one, %.0f ms outside; %d elections",
		milliseconds(percentile(near, 99)), milliseconds(percentile(far, 99)), after-term)
	return end(f)
}

func termOf(ctx context.Context, r *fleet.Replica) (uint64, error) {
	status, err := r.Status(ctx)
	if err != nil {
		return 0, err
	}
	return status.Term, nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// sampleRequests posts until ctx ends.
func sampleRequests(ctx context.Context, url string, body []byte) (all []sample) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		began := time.Now()
		if post(ctx, client, url, "application/octet-stream", body) != nil {
			return all
		}
		all = append(all, sample{time.Now(), time.Since(began)})
	}
}

// watchSnapshots waits for some snapshots and returns when they were done.
func watchSnapshots(ctx context.Context, r *fleet.Replica) (times []time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	var last uint64
	err = fleet.Poll(ctx, "snapshots", 20*time.Millisecond, func() bool {
		status, statusErr := r.Status(ctx)
		if statusErr != nil {
			return false
		}
		if now := status.Raft.Snapshots; now > last {
			if last > 0 {
				times = append(times, time.Now())
			}
			last = now
		}
		return len(times) >= snapshotsWanted
	})
	return times, err
}

// splitSamples tells requests near a snapshot from the others.
func splitSamples(samples [][]sample, snapshots []time.Time) (near, far []time.Duration) {
	for _, some := range samples {
		for _, s := range some {
			isNear := false
			for _, at := range snapshots {
				isNear = isNear || at.Sub(s.at).Abs() < nearSnapshot
			}
			if isNear {
				near = append(near, s.took)
			} else {
				far = append(far, s.took)
			}
		}
	}
	return near, far
}
