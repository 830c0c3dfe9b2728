package kafkaio

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"ftproxy/logbuffer"
)

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// batch is one record batch, ready but for its producer and sequence.
type batch struct {
	data  []byte
	count int
	cuts  []cut // which tuples it holds
	// sequence is its first record's number once numbered is set: repeats must have the same.
	sequence int32
	numbered bool
}

// plan is a range of the buffer as what has to be written.
type plan struct {
	last, hash uint64             // where the range ends
	batches    map[place][]*batch // in order
	refused    []refusal
	letters    []logbuffer.Letter
}

// places returns the partitions that are written to, in a fixed order.
func (p *plan) places() []place {
	return slices.SortedFunc(maps.Keys(p.batches), func(a, b place) int {
		if a.topic != b.topic {
			if a.topic < b.topic {
				return -1
			}
			return 1
		}
		return int(a.partition - b.partition)
	})
}

// planner makes a plan of a range.
type planner struct {
	r       *run
	lineage []byte
	after   uint64
	only    map[cut]bool
	now     int64
	plan    *plan
	open    map[place]*opened
	newest  map[string]int // the last run of plan.refused, by label
}

// opened is a batch that still grows.
type opened struct {
	records        []byte
	cuts           []cut
	first, maxTime int64
}

// planRange distributes a range over partitions. Tuples at or below after are done already; only, if given, names those
// that are left.
func (r *run) planRange(items []logbuffer.Stored, after uint64, only map[cut]bool) (*plan, error) {
	end := items[len(items)-1]
	p := &planner{
		r: r, lineage: []byte(r.out.Lineage()), after: after, only: only, now: time.Now().UnixMilli(),
		plan: &plan{last: end.Last, hash: end.Hash, batches: map[place][]*batch{}}, open: map[place]*opened{},
		newest: map[string]int{},
	}
	for i := range items {
		b, err := items[i].Decode()
		if err != nil {
			return nil, err
		}
		for j := range b.Tuples {
			if err := p.add(&b, j, items[i].First); err != nil {
				return nil, err
			}
		}
	}
	for at := range p.open {
		p.seal(at)
	}
	return p.plan, nil
}

// add sends one tuple on all its routes.
func (p *planner) add(b *logbuffer.Batch, index int, first uint64) error {
	offset := first + uint64(index)
	if offset <= p.after {
		return nil
	}
	labels := p.r.s.labels
	if b.Sink != "" {
		if _, ok := p.r.topics[b.Sink]; !ok {
			return fmt.Errorf("%w: offset %d is for the sink %q, which has no topic here", logbuffer.ErrCorrupt, offset, b.Sink)
		}
		labels = []string{b.Sink}
	}
	for _, label := range labels {
		c := cut{label, offset}
		if p.only != nil && !p.only[c] {
			continue
		}
		if why, ok := p.r.refused[c]; ok {
			p.refuse(b, index, c, why)
			continue
		}
		if p.r.topics[label].denied {
			p.refuse(b, index, c, unauthorised)
			continue
		}
		p.write(b, index, c)
	}
	return nil
}

// write puts a tuple into the batch that is open for its partition.
func (p *planner) write(b *logbuffer.Batch, index int, c cut) {
	t, to := &b.Tuples[index], p.r.topics[c.label]
	at := place{to.name, partitionOf(t.Key, b.Partition, len(to.leaders))}
	o := p.open[at]
	estimate := recordBound(t, len(p.lineage))
	if o != nil && atRecords+len(o.records)+estimate > to.batchBytes {
		p.seal(at)
		o = nil
	}
	if o == nil {
		o = &opened{}
		p.open[at] = o
	}
	stampTime := t.Time
	if stampTime == 0 {
		stampTime = p.now
	}
	if len(o.cuts) == 0 {
		o.first, o.maxTime = stampTime, stampTime
	}
	o.maxTime = max(o.maxTime, stampTime)
	o.records = appendRecord(o.records, t, len(o.cuts), stampTime-o.first,
		stamp{p.lineage, c.offset, uint64(index)})
	o.cuts = append(o.cuts, c)
	if atRecords+len(o.records) <= to.maxBytes {
		return
	}
	// Larger than the topic takes, at least before compression; then it is alone in its batch.
	sealed := p.seal(at)
	if len(sealed.data) > to.maxBytes {
		last := len(p.plan.batches[at]) - 1
		p.plan.batches[at] = p.plan.batches[at][:last]
		if last == 0 {
			delete(p.plan.batches, at)
		}
		p.refuse(b, index, c, tooLarge)
	}
}

// seal closes the open batch of a partition and adds it to the plan.
func (p *planner) seal(at place) *batch {
	o := p.open[at]
	delete(p.open, at)
	b := &batch{
		data: sealBatch(o.records, len(o.cuts), o.first, o.maxTime, p.r.s.codec), count: len(o.cuts), cuts: o.cuts,
	}
	p.plan.batches[at] = append(p.plan.batches[at], b)
	return b
}

// refuse leaves a tuple out; offsets come in ascending order.
func (p *planner) refuse(b *logbuffer.Batch, index int, c cut, why reason) {
	i, ok := p.newest[c.label]
	if ok && p.plan.refused[i].reason == why && p.plan.refused[i].last+1 == c.offset {
		p.plan.refused[i].last = c.offset
	} else {
		p.newest[c.label] = len(p.plan.refused)
		p.plan.refused = append(p.plan.refused, refusal{c.label, why, c.offset, c.offset})
	}
	p.plan.letters = append(p.plan.letters, p.r.letter(b, index, c, why))
}

// letter makes the dead letter of a refused tuple. It names the route, so that a requeue goes there only.
func (r *run) letter(b *logbuffer.Batch, index int, c cut, why reason) logbuffer.Letter {
	label := b.Sink
	if label == "" && len(r.s.labels) > 1 {
		label = c.label
	}
	return logbuffer.Letter{
		From: c.offset, Reader: r.out.Reader(), Attempts: 1, Source: b.Source, Partition: b.Partition, Sink: label,
		Reason: fmt.Sprintf("kafka topic %s: %s", r.cfg.Routes[c.label], why), Tuple: b.Tuples[index],
	}
}

// recordBound is an upper bound of a record's encoded size in bytes.
func recordBound(t *logbuffer.Tuple, lineage int) int {
	n := 160 + len(t.Key) + len(t.Value) + lineage
	for i := range t.Headers {
		n += 20 + len(t.Headers[i].Key) + len(t.Headers[i].Value)
	}
	return n
}
