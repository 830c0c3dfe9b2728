package kafkaio

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

const (
	// queuedChunks is how many answers of one partition wait at most for the log.
	queuedChunks = 2
	// fetchBytes bounds one answer, partitionBytes what one partition contributes, unless a first batch is larger.
	fetchBytes, partitionBytes = 8 << 20, 1 << 20
	// pollMillis is how long a broker waits for records, hurryMillis while other partitions only wait for the log.
	pollMillis, hurryMillis = 500, 5
	groupEvery              = 5 * time.Second
)

// part is one partition that is read.
type part struct {
	topic     string
	id        [16]byte
	partition int32
	source    string // its name in the log
	queue     chan chunk

	leader int32 // -1: none known
	next   int64 // the offset that is fetched next
	queued int
	sick   error // why its last fetch failed
	begun  int64 // where this run began; never changed

	admitted atomic.Int64 // the offset after the last one in the log
	end      atomic.Int64 // the end of the partition, as last fetched
	grouped  int64        // last committed for tools; only commitGroup touches it
}

// chunk is what one answer brought of one partition.
type chunk struct {
	tuples []logbuffer.Tuple
	bytes  int
}

// sourceName names a partition of one life of a topic.
func sourceName(id [16]byte, partition int32) string {
	return "kafka/" + base64.RawURLEncoding.EncodeToString(id[:]) + "/" + strconv.Itoa(int(partition))
}

// fetcher reads from one broker over a connection of its own.
type fetcher struct {
	r       *reading
	node    int32
	wake    chan struct{}
	inflate *inflater
	turn    int // which partition is asked for first
}

// ensureFetcher starts the fetcher of a broker if there is none. r.mu is held.
func (r *reading) ensureFetcher(ctx context.Context, node int32) {
	f := r.fetchers[node]
	if f == nil {
		f = &fetcher{r: r, node: node, wake: make(chan struct{}, 1), inflate: newInflater(r.cfg.InflateBytes)}
		r.fetchers[node] = f
		r.wg.Go(func() { f.run(ctx) })
	}
	f.nudge()
}

func (f *fetcher) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run fetches until ctx ends or the broker is lost; then its partitions have no leader until metadata says so again.
func (f *fetcher) run(ctx context.Context) {
	defer f.inflate.close()
	cn, err := f.r.cl.dial(ctx, f.node)
	if err == nil {
		err = f.loop(ctx, cn)
		cn.close()
	}
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	delete(f.r.fetchers, f.node)
	for _, p := range f.r.parts {
		if p.leader == f.node {
			p.leader, p.sick = -1, err
		}
	}
	f.r.s.stats.retries.Add(1)
	f.r.refresh()
}

func (f *fetcher) loop(ctx context.Context, cn *conn) error {
	for {
		parts, rest := f.eligible()
		if len(parts) == 0 {
			select {
			case <-f.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		wait := int32(pollMillis)
		if rest {
			wait = hurryMillis
		}
		resp, err := ask[*kmsg.FetchResponse](ctx, cn, fetchRequest(parts, wait))
		if err == nil {
			err = codeError(resp.ErrorCode, nil, "Fetch from %s", cn.addr)
		}
		if err != nil {
			return err
		}
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				rp := &resp.Topics[i].Partitions[j]
				n := slices.IndexFunc(parts, func(w wanted) bool {
					return w.part.id == resp.Topics[i].TopicID && w.part.partition == rp.Partition
				})
				if n < 0 {
					return fmt.Errorf("%w: %s answers for a partition that was not asked for", errLink, cn.addr)
				}
				f.take(parts[n], rp)
			}
		}
	}
}

// wanted is a partition with the offset that is asked for.
type wanted struct {
	part *part
	next int64
}

// eligible returns the partitions of this broker that the log has room for, and whether there are others.
func (f *fetcher) eligible() (parts []wanted, rest bool) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	for _, p := range f.r.parts {
		if p.leader != f.node {
			continue
		}
		if p.queued >= queuedChunks || f.r.s.stats.held.Load() >= int64(f.r.cfg.PrefetchBytes) {
			rest = true
			continue
		}
		parts = append(parts, wanted{p, p.next})
	}
	if n := len(parts); n > 0 { // a batch above partitionBytes, or fetchBytes in all, comes only if it stands first
		f.turn++
		parts = slices.Concat(parts[f.turn%n:], parts[:f.turn%n])
	}
	return parts, rest
}

func fetchRequest(parts []wanted, wait int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 15, -1, wait, 1, fetchBytes
	req.IsolationLevel, req.SessionID, req.SessionEpoch = 1, 0, -1
	for _, w := range parts {
		i := slices.IndexFunc(req.Topics, func(t kmsg.FetchRequestTopic) bool { return t.TopicID == w.part.id })
		if i < 0 {
			t := kmsg.NewFetchRequestTopic()
			t.TopicID = w.part.id
			req.Topics, i = append(req.Topics, t), len(req.Topics)
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = w.part.partition, w.next, partitionBytes
		rp.CurrentLeaderEpoch = -1
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	return req
}

// take judges what a broker answered for one partition.
func (f *fetcher) take(w wanted, rp *kmsg.FetchResponseTopicPartition) {
	p := w.part
	err := codeError(rp.ErrorCode, nil, "fetching offset %d of partition %d of %s", w.next, p.partition, p.topic)
	switch {
	case err == nil:
	case errors.Is(err, kerr.OffsetOutOfRange): // the next life decides what that means
		f.r.fail(err)
		return
	case kerr.IsRetriable(err) || oneOf(err, kerr.TopicAuthorizationFailed, kerr.UnknownTopicID, kerr.InconsistentTopicID):
		f.r.mu.Lock()
		p.leader, p.sick = -1, err
		f.r.mu.Unlock()
		f.r.refresh()
		return
	default:
		f.r.fail(err)
		return
	}
	c, next, err := f.decode(w, rp)
	if err != nil {
		f.r.fail(err)
		return
	}
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if p.next != w.next { // another broker, which leads now, was asked meanwhile and answered before
		return
	}
	p.end.Store(rp.LastStableOffset)
	p.sick, p.next = nil, next
	if len(c.tuples) > 0 {
		p.queued++
		f.r.s.stats.held.Add(int64(c.bytes))
		p.queue <- c // has room for queuedChunks
	} else if next > w.next && p.queued == 0 {
		p.admitted.Store(next) // only control records and aborted ones
	}
}

// decode returns the committed records of an answer, and the offset that follows.
func (f *fetcher) decode(w wanted, rp *kmsg.FetchResponseTopicPartition) (c chunk, next int64, err error) {
	opts := kgo.ProcessFetchPartitionOpts{
		Offset: w.next, IsolationLevel: kgo.ReadCommitted(), Topic: w.part.topic, Partition: w.part.partition,
	}
	got, next := kgo.ProcessFetchPartition(opts, rp, f.inflate, nil)
	if got.Err != nil && len(got.Records) > 0 {
		next = got.Records[len(got.Records)-1].Offset + 1 // what is wrong will come first in the next answer
	} else if tooBig, ok := errors.AsType[*kgo.ErrDecompressTooLarge](got.Err); ok {
		return c, 0, &proxy.Halt{Cause: fmt.Errorf("the record batch at offset %d of partition %d of %s is larger than %d "+
			"bytes after decompression: raise the limit: %w", tooBig.Offset, w.part.partition, w.part.topic,
			f.r.cfg.InflateBytes, tooBig)}
	} else if got.Err != nil {
		return c, 0, fmt.Errorf("what partition %d of %s has at offset %d cannot be read: %w", w.part.partition, w.part.topic,
			w.next, got.Err)
	}
	c.tuples = make([]logbuffer.Tuple, 0, len(got.Records))
	for _, r := range got.Records {
		t := tupleOf(r)
		c.bytes += tupleBytes(&t)
		c.tuples = append(c.tuples, t)
	}
	return c, max(next, w.next), nil
}

// tupleBytes is about what a tuple takes in memory and in the log.
func tupleBytes(t *logbuffer.Tuple) int {
	n := 64 + len(t.Key) + len(t.Value)
	for i := range t.Headers {
		n += 32 + len(t.Headers[i].Key) + len(t.Headers[i].Value)
	}
	return n
}

// appendPart brings one partition's chunks into the log, one entry after the other: sparse positions cannot tell a hole
// from a later entry that came first.
func (r *reading) appendPart(ctx context.Context, p *part) {
	for {
		var c chunk
		select {
		case c = <-p.queue:
		case <-ctx.Done():
			return
		}
		for rest := c.tuples; len(rest) > 0; {
			n, bytes := 1, tupleBytes(&rest[0])
			for n < len(rest) && bytes+tupleBytes(&rest[n]) <= r.cfg.AppendBytes {
				bytes += tupleBytes(&rest[n])
				n++
			}
			if err := r.appendSome(ctx, p, rest[:n]); err != nil {
				r.fail(err)
				return
			}
			rest = rest[n:]
		}
		r.mu.Lock()
		p.queued--
		r.s.stats.held.Add(-int64(c.bytes))
		for _, f := range r.fetchers {
			f.nudge()
		}
		r.mu.Unlock()
	}
}

// appendSome appends tuples as one entry, repeated until the log has said what became of them.
func (r *reading) appendSome(ctx context.Context, p *part, tuples []logbuffer.Tuple) error {
	b := logbuffer.Batch{
		Source: p.source, Partition: p.partition, Rule: logbuffer.RuleSparse, Tuples: tuples, IDs: r.ids(tuples),
	}
	waits := proxy.Backoff{Min: 20 * time.Millisecond, Max: 2 * time.Second}
	for {
		receipts, err := r.in.Append(ctx, b)
		if err == nil && len(receipts) == 1 && receipts[0].Code == logbuffer.CodeFull {
			err = fmt.Errorf("partition %d of %s is new, and the log knows as many sources as its settings allow: raise their "+
				"number", p.partition, p.topic)
		}
		switch {
		case err == nil && (len(receipts) != 1 || receipts[0].Code != logbuffer.CodeDone):
			return fmt.Errorf("%w: the log answers a batch of %s with %v", logbuffer.ErrCorrupt, p.source, receipts)
		case err == nil:
			r.s.stats.tuples.Add(uint64(receipts[0].Admitted + receipts[0].Duplicates))
			r.s.stats.duplicates.Add(uint64(receipts[0].Duplicates))
			p.admitted.Store(tuples[len(tuples)-1].Position + 1)
			return nil
		case errors.Is(err, logbuffer.ErrTooLarge) && len(tuples) > 1:
			half := len(tuples) / 2
			if failed := r.appendSome(ctx, p, tuples[:half]); failed != nil {
				return failed
			}
			return r.appendSome(ctx, p, tuples[half:])
		case errors.Is(err, logbuffer.ErrTooLarge):
			return &proxy.Halt{Cause: fmt.Errorf("the record at offset %d of partition %d of %s is larger than the log takes: "+
				"raise the limit of a tuple's size: %w", tuples[0].Position, p.partition, p.topic, err)}
		case errors.Is(err, logbuffer.ErrCorrupt):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		r.s.stats.retries.Add(1)
		r.s.stats.trouble.set(ctx, r.log, "the log does not take records of kafka now, trying again", err)
		if ended := waits.Wait(ctx); ended != nil {
			return ended
		}
	}
}

// ids are the tuples' ids for deduplication, or nothing if there is no rule.
func (r *reading) ids(tuples []logbuffer.Tuple) []logbuffer.ID {
	if !r.cfg.ID.Wanted() {
		return nil
	}
	ids := make([]logbuffer.ID, len(tuples))
	for i := range tuples {
		id, ok := r.cfg.ID.ID(r.cfg.Scope, &tuples[i])
		if !ok {
			r.s.stats.withoutID.Add(1)
			continue
		}
		ids[i] = id
	}
	return ids
}
