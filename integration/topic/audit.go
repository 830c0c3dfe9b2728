package topic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"ftproxy/integration/checker"
)

// markHeader is in the record with which an auditor marks the end of a partition.
const markHeader = "audit"

// Audit judges what a read_committed consumer sees in a topic.
type Audit struct {
	Brokers    []string
	Topic      string
	Partitions int32
	Total      int64 // tuples sent a partition
	// Patience is how long the audit waits for tuples that are not there yet since the last that came; 0: not at all.
	Patience time.Duration
	// Progress, if set, is called with the number of different tuples seen, now and then.
	Progress func(seen int64)

	check *checker.Checker
	trail *checker.Trail
	marks int32
	own   string // value of this audit's marks
}

// Run reads the topic from its beginning until all is there or patience ends, then on to a mark that it writes at the
// end of each partition, and returns the verdict on tuples and that on their headers.
func (a *Audit) Run(ctx context.Context) (checker.Verdict, *checker.Trail, error) {
	a.check, a.trail = checker.New(), checker.NewTrail()
	a.own = strconv.FormatInt(time.Now().UnixNano(), 36)
	starts := make(map[int32]kgo.Offset)
	for p := range a.Partitions {
		starts[p] = kgo.NewOffset().AtStart()
		a.check.Sent(Stream(p), a.Total)
	}
	c, err := client(a.Brokers, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(500*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.Topic: starts}))
	if err != nil {
		return checker.Verdict{}, nil, err
	}
	defer c.Close()

	seen, since := int64(0), time.Now()
	for seen < a.Total*int64(a.Partitions) && time.Since(since) < a.Patience {
		if err := a.poll(ctx, c); err != nil {
			return checker.Verdict{}, nil, err
		}
		if now := a.check.Delivered(); now > seen {
			seen, since = now, time.Now()
		}
	}
	for p := range a.Partitions {
		mark := &kgo.Record{
			Topic: a.Topic, Partition: p, Headers: []kgo.RecordHeader{{Key: markHeader, Value: []byte(a.own)}},
		}
		if err := c.ProduceSync(ctx, mark).FirstErr(); err != nil {
			return checker.Verdict{}, nil, fmt.Errorf("mark the end of %s/%d: %w", a.Topic, p, err)
		}
	}
	for a.marks < a.Partitions {
		if err := a.poll(ctx, c); err != nil {
			return checker.Verdict{}, nil, err
		}
	}
	return a.check.Verdict(), a.trail, nil
}

// poll takes what has come, waiting for at most a second.
func (a *Audit) poll(ctx context.Context, c *kgo.Client) error {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	fetches := c.PollFetches(short)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	for _, fault := range fetches.Errors() {
		// What can be retried is not reported here, but a poll that ended without records is.
		if !errors.Is(fault.Err, context.DeadlineExceeded) {
			return fmt.Errorf("read %s/%d: %w", fault.Topic, fault.Partition, fault.Err)
		}
	}
	fetches.EachRecord(a.record)
	if a.Progress != nil {
		a.Progress(a.check.Delivered())
	}
	return nil
}

func (a *Audit) record(r *kgo.Record) {
	if mark := header(r, markHeader); mark != "" {
		if mark == a.own {
			a.marks++
		}
		return
	}
	a.check.Seen(r.Value)
	offset, offsetErr := strconv.ParseUint(header(r, "ftproxy-offset"), 10, 64)
	index, indexErr := strconv.ParseUint(header(r, "ftproxy-index"), 10, 64)
	if offsetErr != nil || indexErr != nil {
		offset = 0 // which no record has
	}
	a.trail.Record(r.Partition, header(r, "ftproxy-lineage"), offset, index)
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
