package kafkaio

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
)

// plain writes at least once: an idempotent producer keeps retries within one producer's life from writing twice, and
// the buffer's acknowledgement follows the brokers'.
func (r *run) plain(ctx context.Context) error {
	if err := r.out.Barrier(ctx); err != nil {
		return stepDownError{err}
	}
	cursor, err := r.out.Cursor(ctx)
	if err != nil {
		return stepDownError{err}
	}
	who, err := r.initIdempotent(ctx)
	if err != nil {
		return err
	}
	f := r.startFeed(ctx, cursor.Acked)
	defer f.close()
	w := &writer{r: r, who: who, next: map[place]int32{}}
	for after := cursor.Acked; ; {
		items, err := f.next(ctx, cuts{limit: r.cfg.TxnBytes, linger: r.cfg.Linger}, nil)
		if err != nil {
			return err
		}
		if time.Since(r.loaded) > reload {
			if err := r.loadTopics(ctx); err != nil {
				return err
			}
		}
		if err := r.writePlain(ctx, w, items, after); err != nil {
			return err
		}
		after = items[len(items)-1].Last
		r.s.stats.trouble.clear(ctx, r.log, "kafka sink writes again")
	}
}

// writePlain writes a range and acknowledges it. What Kafka refuses for good becomes dead letters; a producer that the
// brokers no longer follow is replaced, and what was not acknowledged is written again, and nothing else.
func (r *run) writePlain(ctx context.Context, w *writer, items []logbuffer.Stored, after uint64) error {
	p, err := r.planRange(items, after, nil)
	if err != nil {
		return err
	}
	for {
		err := w.write(ctx, p)
		if err == nil {
			break
		}
		f, ok := errors.AsType[*failure](err)
		if !ok {
			return err
		}
		if oneOf(f.err, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
			kerr.InvalidProducerIDMapping, kerr.ProducerFenced, kerr.InvalidTxnState) {
			if err := r.rebuild(ctx, w, p, f); err != nil {
				return err
			}
			continue
		}
		if err := r.rest(w, p, f, items, after); err != nil {
			return err
		}
	}
	if err := r.acknowledge(ctx, p.last, p.letters); err != nil {
		return err
	}
	clear(r.refused)
	return nil
}

// rebuild replaces the producer; the batches that are left are numbered anew.
func (r *run) rebuild(ctx context.Context, w *writer, p *plan, cause error) error {
	r.s.stats.resets.Add(1)
	r.s.stats.trouble.set(ctx, r.log, "kafka producer is given up, a new one writes what is not acknowledged", cause)
	who, err := r.initIdempotent(ctx)
	if err != nil {
		return err
	}
	w.who, w.next = who, map[place]int32{}
	for _, queue := range p.batches {
		for _, b := range queue {
			b.numbered = false
		}
	}
	return nil
}

// rest plans a partition again from the batch that was refused for good; nothing of it is under way. Other partitions
// keep their batches, since those may have been written.
func (r *run) rest(w *writer, p *plan, f *failure, items []logbuffer.Stored, after uint64) error {
	cause := r.learn(f)
	if !oneOf(f.err, kerr.TopicAuthorizationFailed, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord,
		kerr.InvalidTimestamp) {
		return cause
	}
	for _, t := range r.topics {
		if t.name != f.at.topic {
			continue
		}
		if n, ok := r.shrunk[t.name]; ok {
			t.batchBytes = min(t.batchBytes, n)
		}
		_, refused := r.denied[t.name]
		t.denied = t.denied || refused
	}
	left := map[cut]bool{}
	for _, b := range p.batches[f.at] {
		for _, c := range b.cuts {
			left[c] = true
		}
	}
	again, err := r.planRange(items, after, left)
	if err != nil {
		return err
	}
	w.next[f.at] = f.batch.sequence // it was not written, so its number is still due
	p.letters = append(p.letters, again.letters...)
	if p.batches[f.at] = again.batches[f.at]; len(again.batches[f.at]) == 0 {
		delete(p.batches, f.at)
	}
	return nil
}

// initIdempotent gets a producer id that belongs to no transaction.
func (r *run) initIdempotent(ctx context.Context) (producer, error) {
	cn, err := r.cl.node(ctx, anyNode)
	if err != nil {
		return producer{}, err
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.ProducerID, req.ProducerEpoch = 4, -1, -1
	resp, err := ask[*kmsg.InitProducerIDResponse](ctx, cn, req)
	if err != nil {
		return producer{}, err
	}
	if err := codeError(resp.ErrorCode, nil, "InitProducerId"); err != nil {
		return producer{}, err
	}
	return producer{id: resp.ProducerID, epoch: resp.ProducerEpoch}, nil
}
