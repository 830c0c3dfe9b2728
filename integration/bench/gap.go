package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"ftproxy/integration/fleet"
	"ftproxy/integration/traffic"
)

// measureGaps kills the leader of three replicas under load and watches the downstream.
func (b *bench) measureGaps(ctx context.Context) (err error) {
	var gap traffic.Gap
	receiver, err := traffic.OpenReceiver(filepath.Join(b.dir, "gap-tuples"))
	if err != nil {
		return err
	}
	seen := 0
	receiver.Stored = func(all, _ int) {
		if all > seen {
			seen = all
			gap.Delivered()
		}
	}
	server, err := traffic.Serve(ctx, "127.0.0.1:0", receiver)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(), receiver.Close()) }()
	f, err := b.start(ctx, "gap", 3, sinkURL(server, "?batch=100&format=ndjson"), map[string]string{
		"DEDUP": "json:/id", "SINK_IDEMPOTENT": "true", "ELECTION_TIMEOUT": b.election.String(),
	})
	if err != nil {
		return err
	}
	defer f.Kill()

	sending, stop := context.WithCancel(ctx)
	sent := make(chan error, 1)
	sender := &traffic.Sender{
		Stream: "t", Total: 1 << 40, Size: 100, Batch: 50, Rate: 5000,
		Notes: filepath.Join(b.dir, "gap-notes"), NoteEach: 1 << 40,
	}
	for _, r := range f.Replicas {
		sender.Targets = append(sender.Targets, sourceURL(r))
	}
	go func() { sent <- sender.Run(sending) }()
	gaps, err := b.kill(ctx, f, &gap)
	stop()
	if ended := <-sent; !errors.Is(ended, context.Canceled) {
		return ended
	}
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("gap after SIGKILL of the leader, %d kills, %v timers", b.kills, b.election),
		"p50 %.2f s, max %.2f s", percentile(gaps, 50).Seconds(), percentile(gaps, 100).Seconds())
	return end(f)
}

// kill kills the leader again and again and returns the gap after each.
func (b *bench) kill(ctx context.Context, f *fleet.Fleet, gap *traffic.Gap) ([]time.Duration, error) {
	var gaps []time.Duration
	for range b.kills {
		one, err := killOnce(ctx, f, gap)
		if err != nil {
			return nil, err
		}
		gaps = append(gaps, one)
	}
	return gaps, nil
}

func killOnce(ctx context.Context, f *fleet.Fleet, gap *traffic.Gap) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	leader, err := f.Leader(ctx)
	if err != nil {
		return 0, err
	}
	gap.Open()
	leader.Kill()
	settled := func() bool { return gap.Settled(time.Second) }
	if err := fleet.Poll(ctx, "deliveries after a kill", 10*time.Millisecond, settled); err != nil {
		return 0, err
	}
	longest := gap.Close()
	if err := leader.Start(); err != nil {
		return 0, err
	}
	return longest, f.Ready(ctx)
}
