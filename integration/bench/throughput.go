package main

import (
	"context"
	"errors"
	"fmt"

	"ftproxy/integration/checker"
	"ftproxy/integration/fleet"
)

const perRequest = 500 // tuples of NDJSON

// measureThroughput measures accepted tuples a second, with clients at the leader and a downstream that takes all.
func (b *bench) measureThroughput(ctx context.Context) error {
	for _, replicas := range []int{1, 3} {
		for _, size := range []int{100, 1024} {
			if err := b.throughput(ctx, replicas, size); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) throughput(ctx context.Context, replicas, size int) (err error) {
	sink, err := newCounter(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	folder := fmt.Sprintf("throughput-%d-%d", replicas, size)
	f, err := b.start(ctx, folder, replicas, sinkURL(sink, "?batch=500&format=ndjson"), nil)
	if err != nil {
		return err
	}
	defer f.Kill()
	leader, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	var body []byte
	for n := range int64(perRequest) {
		body = append(checker.AppendPayload(body, "t", n+1, size-1), '\n')
	}
	before, err := linkBytes(ctx, f)
	if err != nil {
		return err
	}
	p, err := push(ctx, sourceURL(leader), "application/x-ndjson", body, b.seconds, 0)
	if err != nil {
		return err
	}
	after, err := linkBytes(ctx, f)
	if err != nil {
		return err
	}
	input := p.requests * int64(len(body))
	name := fmt.Sprintf("HTTP NDJSON, %d B, %d node(s)", size, replicas)
	b.row(name, "%.0f tuples/s (%.1f MB/s)", float64(p.requests*perRequest)/p.took.Seconds(), megabytes(input, p.took))
	if replicas > 1 {
		b.row(name+", bytes on links per input byte", "%.2f", float64(after-before)/float64(input))
	}
	return end(f)
}

// linkBytes is what the replicas sent to each other so far.
func linkBytes(ctx context.Context, f *fleet.Fleet) (int64, error) {
	var sum int64
	for _, r := range f.Replicas {
		status, err := r.Status(ctx)
		if err != nil {
			return 0, err
		}
		sum += status.Links.SentBytes
	}
	return sum, nil
}
