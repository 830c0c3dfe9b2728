package kafkaio_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// crowded is a log that knows as many sources as its settings allow, for a while.
type crowded struct {
	*proxytest.Log
	refusals atomic.Int32
}

func (c *crowded) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	if c.refusals.Add(-1) >= 0 {
		return []logbuffer.Receipt{{Code: logbuffer.CodeFull}}, nil
	}
	return c.Log.Append(ctx, batches...)
}

func TestSourceWaitsWhileTheLogKnowsTooManySources(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "crowded", 1)
	b.put(t, topic, values(0, 1, 0)...)
	log := &crowded{Log: proxytest.NewLog("lin")}
	log.refusals.Store(1 << 20)
	r := read(t, b, topic, log)
	proxytest.Until(t, 20*time.Second, "the reason is named", func() bool {
		return strings.Contains(r.source.Stats().LastError, "as many sources as its settings allow")
	})
	log.refusals.Store(0)
	waitEnd(t, log.Log, 1, r)
}

// Two brokers may be asked for the same offset while leadership of a partition moves.
func TestStaleAnswerIsLeftAside(t *testing.T) {
	if next := kafkaio.StaleAnswer(5, 3); next != 5 {
		t.Errorf("an answer for offset 3 moves the partition from 5 to %d", next)
	}
}
