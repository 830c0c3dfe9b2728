package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy"
)

// assign learns topics, partitions and leaders, and starts to read what is new. settled is false while something of it
// is missing, which is named in the trouble.
func (r *reading) assign(ctx context.Context, first bool) (settled bool, err error) {
	m, err := r.cl.metadata(ctx, r.cfg.Topics)
	if err != nil {
		if ctx.Err() == nil && !first {
			r.s.stats.trouble.set(ctx, r.log, "kafka cannot be reached, reading goes on where it can", err)
			return false, nil
		}
		return false, err
	}
	var missing error
	for i := range m.Topics {
		t := &m.Topics[i]
		if t.Topic == nil {
			continue
		}
		problem, err := r.assignTopic(ctx, t)
		if err != nil {
			return false, err
		}
		missing = errors.Join(missing, problem)
	}
	if missing != nil {
		r.s.stats.trouble.set(ctx, r.log, "kafka source waits", missing)
	}
	if err := r.note(ctx); err != nil {
		if r.memo.changed { // not yet noted at all
			return false, err
		}
		r.s.stats.groupTrouble.set(ctx, r.log, "kafka source cannot refresh its notes", err)
	}
	return missing == nil, nil
}

// assignTopic brings the partitions of one topic up to date. A problem is something to wait for.
func (r *reading) assignTopic(ctx context.Context, t *kmsg.MetadataResponseTopic) (problem, err error) {
	name := *t.Topic
	switch bad := kerr.ErrorForCode(t.ErrorCode); {
	case errors.Is(bad, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("the Kafka topic %s does not exist: create it (reading begins by itself then): %w", name, bad), nil
	case errors.Is(bad, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("the Kafka user may not read the topic %s: grant it Read and Describe: %w", name, bad), nil
	case bad != nil:
		return fmt.Errorf("topic %s: %w", name, bad), nil
	}
	fresh, err := r.recognise(ctx, name, t.TopicID)
	if err != nil {
		return nil, err
	}
	if _, seen := r.memo.existed[t.TopicID]; !seen {
		r.memo.existed[t.TopicID] = len(t.Partitions)
	}
	for i := range t.Partitions {
		rp := &t.Partitions[i]
		p := r.find(t.TopicID, rp.Partition)
		if p == nil && rp.Leader >= 0 {
			p, err = r.begin(ctx, t, rp, fresh)
			if kerr.IsRetriable(err) || errors.Is(err, errLink) {
				problem = errors.Join(problem, err)
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		problem = errors.Join(problem, r.lead(ctx, p, rp, name))
	}
	return problem, nil
}

func (r *reading) find(id [16]byte, partition int32) *part {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.parts {
		if p.id == id && p.partition == partition {
			return p
		}
	}
	return nil
}

// lead tells a partition who leads it. It returns what is wrong with it.
func (r *reading) lead(ctx context.Context, p *part, rp *kmsg.MetadataResponseTopicPartition, topic string) error {
	if p == nil || rp.Leader < 0 {
		return fmt.Errorf("partition %d of %s has no leader", rp.Partition, topic)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.leader = rp.Leader
	r.ensureFetcher(ctx, p.leader)
	return p.sick
}

// recognise compares a topic's id with the one that was read before. fresh tells that a former topic of that name was
// deleted, and that a human decided to read the new one.
func (r *reading) recognise(ctx context.Context, name string, id [16]byte) (fresh bool, err error) {
	known, ok := r.memo.topics[name]
	if !ok || known == id {
		if !ok {
			r.memo.topics[name], r.memo.changed = id, true
		}
		return r.memo.remade[name], nil
	}
	err = r.lost(ctx, fmt.Errorf("the Kafka topic %s was deleted and made anew (its id was %s, now it is %s): records of "+
		"the old one that were not read are gone", name, topicID(known), topicID(id)))
	if err != nil {
		return false, err
	}
	r.memo.topics[name], r.memo.changed, r.memo.remade[name] = id, true, true
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.parts { // the old topic's partitions are read no more
		if p.id == known {
			p.leader = -1
		}
	}
	return true, nil
}

// lost stops the source, unless the configuration says how to go on.
func (r *reading) lost(ctx context.Context, what error) error {
	if r.cfg.OnLoss != "stop" {
		r.log.WarnContext(ctx, "kafka source goes on after a loss as configured", slog.String("loss", what.Error()),
			slog.String("at", r.cfg.OnLoss))
		return nil
	}
	return &proxy.Halt{Cause: fmt.Errorf("%w. Nothing more is read. To go on with what there is now, set "+
		"the source's option on_loss=earliest or on_loss=latest for the next start", what)}
}

// begin starts to read a partition.
func (r *reading) begin(ctx context.Context, t *kmsg.MetadataResponseTopic, rp *kmsg.MetadataResponseTopicPartition,
	fresh bool,
) (*part, error) {
	p := &part{
		topic: *t.Topic, id: t.TopicID, partition: rp.Partition, leader: rp.Leader, queue: make(chan chunk, queuedChunks),
		grouped: -1,
	}
	var err error
	if p.source, p.next, err = r.origin(ctx, p, fresh); err != nil {
		return nil, err
	}
	p.begun = p.next
	p.admitted.Store(p.next)
	p.end.Store(p.next)
	r.log.InfoContext(ctx, "kafka partition is read", slog.String("topic", p.topic),
		slog.Int("partition", int(p.partition)), slog.Int64("offset", p.next), slog.String("source", p.source))
	r.mu.Lock()
	r.parts = append(r.parts, p)
	r.s.show(r.parts)
	r.mu.Unlock()
	r.wg.Go(func() { r.appendPart(ctx, p) })
	return p, nil
}

// origin says under which name, and from which offset, a partition is read.
//
//	kafka/<topic id>/<partition>       the partition's only life, usually
//	kafka/<topic id>/<partition>/<k>   the k-th life after records at its end were lost and a human decided to go on:
//	                                   offsets are given a second time then, and the old positions mean nothing
func (r *reading) origin(ctx context.Context, p *part, fresh bool) (source string, next int64, err error) {
	source = sourceName(p.id, p.partition)
	last, known, err := r.in.Position(ctx, source)
	for life := 1; known && err == nil; life++ {
		name := sourceName(p.id, p.partition) + "/" + strconv.Itoa(life)
		l, ok, e := r.in.Position(ctx, name)
		if e != nil || !ok {
			err = e
			break
		}
		source, last = name, l
	}
	if err != nil {
		return "", 0, fmt.Errorf("the log's position of %s: %w", source, err)
	}
	if !known {
		next, err = r.startOf(ctx, p, fresh)
		return source, next, err
	}
	return r.resume(ctx, p, source, last+1)
}

// resume checks that the partition still holds what was not read yet.
func (r *reading) resume(ctx context.Context, p *part, source string, next int64) (string, int64, error) {
	waits := proxy.Backoff{Min: 200 * time.Millisecond, Max: time.Second}
	for attempt := 0; ; attempt++ {
		first, end, err := r.bounds(ctx, p)
		if err != nil {
			return "", 0, err
		}
		if first <= next && next <= end {
			return source, next, nil
		}
		if attempt < 3 { // a new leader may not know its whole log for a moment
			if err := waits.Wait(ctx); err != nil {
				return "", 0, err
			}
			continue
		}
		what := fmt.Errorf("partition %d of %s begins at offset %d, but the log has it only up to offset %d: the brokers "+
			"deleted records before they were read (retention)", p.partition, p.topic, first, next-1)
		if next > end {
			what = fmt.Errorf("partition %d of %s ends at offset %d, but the log has it up to offset %d: the brokers lost "+
				"records (unclean leader election or a restored backup)", p.partition, p.topic, end, next-1)
		}
		if err := r.lost(ctx, what); err != nil {
			return "", 0, err
		}
		if next > end {
			source = nextLife(source, sourceName(p.id, p.partition))
		}
		if r.cfg.OnLoss == "latest" {
			return source, end, nil
		}
		return source, first, nil
	}
}

// nextLife is the source name after the one that was current.
func nextLife(current, base string) string {
	life := 0
	if len(current) > len(base) {
		life, _ = strconv.Atoi(current[len(base)+1:]) // origin made it of a number
	}
	return base + "/" + strconv.Itoa(life+1)
}

// startOf is where a partition that the log does not know is begun.
func (r *reading) startOf(ctx context.Context, p *part, fresh bool) (int64, error) {
	start := r.s.start
	if fresh {
		start = startAt{latest: r.cfg.OnLoss == "latest", time: -1}
	}
	if !start.latest {
		at := start.time
		if at < 0 {
			at = earliestOffset
		}
		offset, err := r.cl.offsetAt(ctx, p, at, 0)
		if err == nil && offset < 0 { // nothing is that young
			offset, err = r.cl.offsetAt(ctx, p, latestOffset, 1)
		}
		return offset, err
	}
	return r.memo.startLatest(ctx, r, p)
}

// Special times of ListOffsets.
const (
	latestOffset   = int64(-1)
	earliestOffset = int64(-2)
)

// bounds are a partition's first offset and the one after its last, whether committed or not.
func (r *reading) bounds(ctx context.Context, p *part) (first, end int64, err error) {
	if first, err = r.cl.offsetAt(ctx, p, earliestOffset, 0); err != nil {
		return 0, 0, err
	}
	end, err = r.cl.offsetAt(ctx, p, latestOffset, 0)
	return first, end, err
}

// offsetAt asks a partition's leader for the offset of a time; -1: none. isolation 1 looks at committed records only.
func (c *cluster) offsetAt(ctx context.Context, p *part, at int64, isolation int8) (int64, error) {
	cn, err := c.node(ctx, p.leader)
	if err != nil {
		return 0, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel = 6, -1, isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = p.topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p.partition, at, -1
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.ListOffsetsResponse](ctx, cn, req)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("%w: no offsets of partition %d of %s", errLink, p.partition, p.topic)
	}
	got := &resp.Topics[0].Partitions[0]
	return got.Offset, codeError(got.ErrorCode, nil, "offsets of partition %d of %s", p.partition, p.topic)
}
