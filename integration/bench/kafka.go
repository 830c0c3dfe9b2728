package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"ftproxy/integration/fleet"
	"ftproxy/integration/topic"
)

const (
	kafkaPartitions = 3
	kafkaTuples     = 500_000 // a partition
)

// measureKafka lets one node and three read a topic that is full already.
func (b *bench) measureKafka(ctx context.Context) error {
	broker, err := fleet.NewBroker(ctx, b.kafka, filepath.Join(b.dir, "kafka"))
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, 5*patience)
	defer cancel()
	if err := broker.Start(starting); err != nil {
		return err
	}
	defer broker.Kill()
	brokers := []string{broker.Addr}
	if err := topic.Create(ctx, brokers, kafkaPartitions, "in"); err != nil {
		return err
	}
	u := &topic.Upstream{
		Brokers: brokers, Topic: "in", Partitions: kafkaPartitions, Total: kafkaTuples, Size: 100, Rate: 1 << 30,
	}
	if err := u.Run(ctx); err != nil {
		return err
	}
	for _, replicas := range []int{1, 3} {
		if err := b.fromKafka(ctx, broker, replicas, kafkaPartitions*kafkaTuples+u.Repeated()); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) fromKafka(ctx context.Context, broker *fleet.Broker, replicas int, total int64) (err error) {
	sink, err := newCounter(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	folder, source := fmt.Sprintf("from-kafka-%d", replicas), "kafka://"+broker.Addr+"/in"
	f, err := b.startFrom(ctx, folder, replicas, source, sinkURL(sink, "?batch=500&format=ndjson"), nil)
	if err != nil {
		return err
	}
	defer f.Kill()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	leader, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	var first, last int64
	var began time.Time
	err = fleet.Poll(ctx, "all tuples to be taken", 20*time.Millisecond, func() bool {
		status, statusErr := leader.Status(ctx)
		if statusErr != nil {
			return false
		}
		if last = status.Received(); began.IsZero() && last > 0 {
			first, began = last, time.Now()
		}
		return last >= total
	})
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("from Kafka, 100 B, %d node(s)", replicas), "%.0f tuples/s",
		float64(last-first)/time.Since(began).Seconds())
	return end(f)
}
