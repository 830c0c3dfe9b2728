package httpio

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// delivery is one run of a sink. Its goroutines: the reader, the acker, one a batch of tuples under delivery, and the
// one that calls run, which owns the lanes.
type delivery struct {
	sink    *Sink
	out     proxy.Outlet
	tracker *tracker
	acker   *acker

	incoming chan []item   // from the reader
	finished chan result   // from deliveries
	slots    chan struct{} // a POST in flight holds one
	acked    chan struct{} // signals that the span has shrunk

	// Owned by run.
	lanes *lanes
	held  int   // tuples not yet delivered
	bytes int64 // memory of the batches that they stand in
}

func newDelivery(s *Sink, out proxy.Outlet) *delivery {
	d := &delivery{
		sink: s, out: out, tracker: newTracker(s.mutant.ackOutOfOrder), lanes: newLanes(),
		incoming: make(chan []item), finished: make(chan result),
		slots: make(chan struct{}, s.cfg.Concurrency), acked: make(chan struct{}, 1),
	}
	d.acker = &acker{
		tracker: d.tracker, out: out, every: s.cfg.AckEvery, waits: s.waits,
		acked: func() { s.blocked.Store(nil); signal(d.acked) },
	}
	return d
}

// result is what became of items that were under delivery.
type result struct {
	items []item
	again bool // not delivered together: deliver each alone
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run reads, delivers and acknowledges. When ctx ends, POSTs at work may end within the grace, and what they delivered
// is acknowledged if the log still takes it.
func (d *delivery) run(ctx context.Context) error {
	cursor, err := d.out.Cursor(ctx)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers, posts sync.WaitGroup
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	workers.Go(func() { fail(d.read(inner, cursor.Acked)) })
	workers.Go(func() { fail(d.acker.run(inner)) })
	d.dispatch(inner, &posts)
	failure := context.Cause(inner)
	workers.Wait()
	posts.Wait()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	return ended(ctx, errors.Join(failure, d.acker.flush(last)))
}

// ended is nil if ctx ended, since then nothing that failed matters but damage; the next leader goes on.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil || errors.Is(err, logbuffer.ErrCorrupt) {
		return err
	}
	return nil
}

// read takes batches in, one ahead of what the window admits.
func (d *delivery) read(ctx context.Context, after uint64) error {
	for {
		batches, err := d.out.Read(ctx, after, 1<<20)
		if err != nil {
			return err
		}
		for i := range batches {
			items, err := itemsOf(&batches[i], after)
			if err != nil {
				return err
			}
			after = batches[i].Last
			select {
			case d.incoming <- items:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// itemsOf decodes what a stored batch holds above after.
func itemsOf(stored *logbuffer.Stored, after uint64) ([]item, error) {
	batch, err := stored.Decode()
	if err != nil {
		return nil, err
	}
	held := &heldBatch{Batch: &batch, size: int64(len(stored.Data) + 200*len(batch.Tuples))}
	items := make([]item, 0, len(batch.Tuples))
	for i := range batch.Tuples {
		offset, t := stored.First+uint64(i), &batch.Tuples[i]
		if offset <= after {
			continue
		}
		size := int64(len(t.Key) + len(t.Value))
		items = append(items, item{offset: offset, lane: laneOf(t), size: size, tuple: t, batch: held})
	}
	held.left = len(items)
	return items, nil
}

// dispatch owns the lanes until ctx ends.
func (d *delivery) dispatch(ctx context.Context, posts *sync.WaitGroup) {
	cfg := &d.sink.cfg
	for {
		var incoming chan []item
		if d.held < cfg.Window && d.bytes < cfg.WindowBytes && d.tracker.span() < cfg.Span {
			incoming = d.incoming
		}
		var slots chan struct{}
		if len(d.lanes.ready) > 0 {
			slots = d.slots
		}
		select {
		case items := <-incoming:
			d.admit(items)
		case slots <- struct{}{}:
			items := d.lanes.take(cfg.Batch)
			if d.sink.mutant.manyPerKey {
				d.lanes.release(items)
			}
			posts.Go(func() { d.deliver(ctx, items) })
		case done := <-d.finished:
			d.settle(done)
		case <-d.acked:
		case <-ctx.Done():
			return
		}
	}
}

func (d *delivery) admit(items []item) {
	lines := d.sink.cfg.Batch > 1 && d.sink.cfg.Format == "ndjson"
	for _, it := range items {
		it.alone = lines && !json.Valid(it.tuple.Value)
		d.tracker.add(it.offset)
		d.lanes.put(it)
	}
	d.held += len(items)
	if len(items) > 0 {
		d.bytes += items[0].batch.size
	}
}

func (d *delivery) settle(done result) {
	if done.again {
		d.lanes.putBack(done.items)
		return
	}
	d.lanes.release(done.items)
	for _, it := range done.items {
		d.held--
		if it.batch.left--; it.batch.left == 0 {
			d.bytes -= it.batch.size
		}
	}
}

// deliver brings the items, which hold a slot, to an end and hands them back, unless ctx ends before. Several that
// failed together go back to be delivered one by one: only a single tuple gets a final verdict, and one that cannot be
// delivered stops its own key only.
func (d *delivery) deliver(ctx context.Context, items []item) {
	defer func() { <-d.slots }()
	end, reason, attempts := d.attempts(ctx, items)
	switch end {
	case endStopped:
		return
	case endDelivered:
		for i := range items {
			d.tracker.finish(items[i].offset, nil)
		}
		d.sink.stats.delivered.Add(uint64(len(items)))
	case endSplit:
	case endDead:
		it := &items[0]
		d.sink.stats.deadLetters.Add(1)
		d.tracker.finish(it.offset, &logbuffer.Letter{
			From: it.offset, Reader: d.out.Reader(), Reason: reason, Attempts: attempts, Source: it.batch.Source,
			Partition: it.batch.Partition, Sink: it.batch.Sink, Tuple: *it.tuple,
		})
	}
	select {
	case d.finished <- result{items: items, again: end == endSplit}:
	case <-ctx.Done():
	}
}
