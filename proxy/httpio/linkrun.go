package httpio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// linkRun is one run of a LinkSink.
type linkRun struct {
	sink    *LinkSink
	out     proxy.Outlet
	tracker *tracker
	source  string
	// sent is the offset that the receiver has: the next POST follows on it. next is what is read after: sent, unless
	// what lies between was given up.
	sent, next uint64
	// tracked is the highest offset that is acknowledged or will be.
	tracked uint64
	cursor  proxy.Cursor
	// maxBytes and maxTuples bound a POST; a 413 halves them.
	maxBytes, maxTuples int
}

// Run sends until ctx ends, or until a read or an acknowledgement fails, or the receiver's position cannot be right.
func (s *LinkSink) Run(ctx context.Context, out proxy.Outlet) error {
	defer s.client.CloseIdleConnections()
	defer s.trouble.Store(nil)
	source, err := linkSource(out.Lineage(), out.Buffer(), out.Reader())
	if err != nil {
		return &proxy.Halt{Cause: err}
	}
	run := &linkRun{sink: s, out: out, tracker: newTracker(false), source: source, maxBytes: s.cfg.MaxBytes}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	acks := &acker{
		tracker: run.tracker, out: out, every: s.cfg.AckEvery, acked: func() {}, waits: func(context.Context, error) {},
	}
	var acking sync.WaitGroup
	acking.Go(func() {
		if failure := acks.run(inner); failure != nil {
			cancel(failure)
		}
	})
	err = run.run(inner)
	if failure := context.Cause(inner); failure != nil {
		err = failure
	}
	cancel(err)
	acking.Wait()
	return ended(ctx, err)
}

// run asks where the receiver stands, and sends from there on, one POST at a time.
func (r *linkRun) run(ctx context.Context) error {
	at, err := r.sink.ask(ctx, r.source)
	if err != nil {
		return err
	}
	if err := r.goTo(ctx, at.Position); err != nil {
		return err
	}
	for {
		batches, err := r.read(ctx)
		if err != nil {
			return err
		}
		if err := r.post(ctx, batches); err != nil {
			return err
		}
	}
}

// goTo makes the receiver's position ours. The cursor is read behind a barrier and after the position, so that a
// position beyond our end is no race: this log has lost what it had sent.
func (r *linkRun) goTo(ctx context.Context, position int64) error {
	cursor, err := r.out.Cursor(ctx)
	if err != nil {
		return err
	}
	if r.sink.trustSelf {
		position = min(position, int64(cursor.End))
	}
	if position < 0 || uint64(position) > cursor.End {
		return halt("the receiver has offset %d of lineage %s, but our buffer ends at %d: this log has lost what it "+
			"had sent, and must not go on under the same lineage", position, r.out.Lineage(), cursor.End)
	}
	r.cursor, r.sent, r.next = cursor, uint64(position), uint64(position)
	r.tracked = max(r.tracked, cursor.Acked)
	r.confirm(r.sent) // its answer to an earlier leader, perhaps, was lost
	if r.sink.cfg.AllowLoss {
		r.next = max(r.sent, cursor.Acked) // what lies between was perhaps given up by a policy
	}
	return nil
}

// read returns what comes next. The receiver may stand below what it confirmed once: then it gets all of that again, if
// it is still here.
func (r *linkRun) read(ctx context.Context) ([]logbuffer.Stored, error) {
	batches, err := r.out.Read(ctx, r.next, r.maxBytes)
	if !errors.Is(err, logbuffer.ErrTrimmed) || r.next >= r.cursor.Acked {
		return batches, err
	}
	if r.cursor.EverAcked {
		return nil, halt("the receiver has offset %d only, but had confirmed up to %d, which is no longer here: it has "+
			"lost tuples; to go on without them, allow the loss at this sink", r.sent, r.cursor.Acked)
	}
	r.next = r.cursor.Acked // a reader that is new: what was trimmed before it was never owed
	return r.out.Read(ctx, r.next, r.maxBytes)
}

// post sends the batches, or as many as fit, and concludes from the answer.
func (r *linkRun) post(ctx context.Context, batches []logbuffer.Stored) error {
	body, last, tuples, err := r.bodyOf(batches)
	if err != nil {
		return err
	}
	got, err := r.sink.send(ctx, r.out, r.sent, body)
	if err != nil {
		return err
	}
	switch got.status {
	case http.StatusOK:
		return r.done(got, last, tuples)
	case http.StatusConflict:
		due, err := strconv.ParseInt(got.header.Get("Ftproxy-Expected"), 10, 64)
		if err != nil || due < 0 || uint64(due) >= r.sent {
			return fmt.Errorf("the receiver refuses offset %d but expects %q: is another ftproxy in between?", r.sent,
				got.header.Get("Ftproxy-Expected"))
		}
		return r.goTo(ctx, due)
	case http.StatusRequestEntityTooLarge:
		if tuples == 1 {
			return halt("the receiver refuses the tuple at offset %d as too large: raise its limit (%s)", last,
				reasonOf(got, nil))
		}
		r.maxBytes, r.maxTuples = max(len(body)/2, 1), tuples/2
		return nil
	}
	r.sink.stats.refusals.Add(1)
	return errors.New("the receiver " + reasonOf(got, nil) + "; is the URL that of an ftproxy:// source?")
}

// done takes note of what the receiver has.
func (r *linkRun) done(got reply, last uint64, tuples int) error {
	var answer accepted
	if err := json.Unmarshal(got.body, &answer); err != nil || uint64(answer.Position) != last {
		return errors.New("the receiver does not answer like an ftproxy: is the URL that of an ftproxy:// source?")
	}
	r.sink.trouble.Store(nil)
	r.sink.stats.delivered.Add(uint64(tuples))
	r.sent, r.next = last, last
	r.confirm(last)
	return nil
}

// confirm has everything up to an offset acknowledged, unless that is so.
func (r *linkRun) confirm(offset uint64) {
	if offset > r.tracked {
		r.tracked = offset
		r.tracker.add(offset)
		r.tracker.finish(offset, nil)
	}
}

// bodyOf encodes as many batches as one POST may hold, at least one, or a part of one.
func (r *linkRun) bodyOf(batches []logbuffer.Stored) (body []byte, last uint64, tuples int, err error) {
	for i := range batches {
		stored := &batches[i]
		n := stored.Data.Count()
		if len(body) > 0 && (len(body)+len(stored.Data) > r.maxBytes || r.maxTuples > 0 && tuples+n > r.maxTuples) {
			break
		}
		if err := stored.Data.Check(); err != nil {
			return nil, 0, 0, err
		}
		if r.maxTuples > 0 && n > r.maxTuples || stored.First <= r.next && r.next > r.sent {
			return r.partOf(stored)
		}
		body = appendLink(body, stored.First, stored.Data)
		last, tuples = stored.Last, tuples+n
	}
	return body, last, tuples, nil
}

// partOf encodes the first tuples of a batch above next.
func (r *linkRun) partOf(stored *logbuffer.Stored) (body []byte, last uint64, tuples int, err error) {
	batch, err := stored.Decode()
	if err != nil {
		return nil, 0, 0, err
	}
	skip := uint64(0)
	if r.next >= stored.First {
		skip = r.next - stored.First + 1
	}
	tuples = len(batch.Tuples) - int(skip)
	if r.maxTuples > 0 {
		tuples = min(tuples, r.maxTuples)
	}
	batch.Tuples = batch.Tuples[skip:][:tuples]
	first := stored.First + skip
	return appendLink(nil, first, logbuffer.AppendBatch(nil, &batch)), first + uint64(tuples) - 1, tuples, nil
}

func halt(format string, a ...any) error {
	return &proxy.Halt{Cause: fmt.Errorf(format, a...)}
}
