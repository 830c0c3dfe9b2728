package topic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"ftproxy/integration/checker"
)

const (
	repeatEach = 400   // tuples of a partition between repetitions
	repeatRun  = 50    // tuples repeated each time
	repeatBack = 4_000 // tuples, at most
)

// Upstream writes the tuples 1 to Total of a stream to each partition of a topic, and about an eighth of them again,
// some later, under the same ids.
type Upstream struct {
	Brokers    []string
	Topic      string
	Partitions int32
	Total      int64 // tuples a partition
	Size       int   // bytes a tuple
	Rate       int64 // tuples a second, over all partitions, repetitions not counted
	Seed       uint64
	// Gate, if set, is asked before every tuple number of the streams and may wait. That time does not count for Rate.
	Gate func(ctx context.Context, n int64) error

	repeated atomic.Int64
}

// Repeated is how many tuples were written again so far.
func (u *Upstream) Repeated() int64 { return u.repeated.Load() }

// Run writes everything and returns once Kafka has acknowledged it, or on the first record that Kafka refused.
func (u *Upstream) Run(ctx context.Context) error {
	c, err := client(u.Brokers)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	random := rand.New(rand.NewPCG(u.Seed, 1))
	began := time.Now()
	for n := int64(1); n <= u.Total; n++ {
		if u.Gate != nil {
			asked := time.Now()
			if err := u.Gate(ctx, n); err != nil {
				return err
			}
			began = began.Add(time.Since(asked))
		}
		due := began.Add(time.Duration(n*int64(u.Partitions)) * time.Second / time.Duration(u.Rate))
		if err := sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		for p := range u.Partitions {
			u.produce(ctx, c, p, n, fail)
			if n%repeatEach != 0 {
				continue
			}
			first := max(1, n-random.Int64N(repeatBack))
			last := min(n, first+repeatRun-1)
			for again := first; again <= last; again++ {
				u.produce(ctx, c, p, again, fail)
			}
			u.repeated.Add(last - first + 1)
		}
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (u *Upstream) produce(ctx context.Context, c *kgo.Client, partition int32, n int64, fail func(error)) {
	stream := Stream(partition)
	record := &kgo.Record{
		Topic:     u.Topic,
		Partition: partition,
		Value:     checker.AppendPayload(nil, stream, n, u.Size),
		Headers:   []kgo.RecordHeader{{Key: IDHeader, Value: []byte(checker.ID(stream, n))}},
	}
	c.Produce(ctx, record, func(_ *kgo.Record, err error) {
		if err != nil {
			fail(fmt.Errorf("write %s: %w", checker.ID(stream, n), err))
		}
	})
}

// sleep waits; short waits are saved up until they are worth a timer.
func sleep(ctx context.Context, d time.Duration) error {
	if d < 5*time.Millisecond {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
