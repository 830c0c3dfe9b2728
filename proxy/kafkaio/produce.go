package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy"
)

// writer writes the batches of a plan, one in flight a partition, so that a partition that fails is retried alone and
// in order. The others go on.
type writer struct {
	r     *run
	who   producer
	txnID *string         // nil: no transaction
	next  map[place]int32 // the sequence number due in each partition
}

// failure is a batch that brokers refuse for good.
type failure struct {
	at    place
	batch *batch
	err   error
	bad   []int32 // the records at fault, by index in the batch; none: not told
}

func (f *failure) Error() string {
	return fmt.Sprintf("writing to partition %d of %s: %v", f.at.partition, f.at.topic, f.err)
}

func (f *failure) Unwrap() error { return f.err }

// write returns once every batch is acknowledged by all in-sync replicas. After an error some are and some are not;
// acknowledged ones have left the plan.
func (w *writer) write(ctx context.Context, p *plan) error {
	waits := proxy.Backoff{Min: 2 * time.Millisecond, Max: time.Second}
	for len(p.batches) > 0 {
		progress, err := w.round(ctx, p)
		if _, final := errors.AsType[*failure](err); final {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if progress {
			waits.Reset()
		}
		if err == nil {
			continue
		}
		w.r.s.stats.retries.Add(1)
		w.r.s.stats.trouble.set(ctx, w.r.log, "kafka refuses for the moment, trying again", err)
		if err := waits.Wait(ctx); err != nil {
			return err
		}
		if err := w.r.refreshLeaders(ctx); err != nil && ctx.Err() == nil {
			w.r.s.stats.trouble.set(ctx, w.r.log, "kafka metadata not to be had, trying again", err)
		}
	}
	w.r.s.stats.trouble.clear(ctx, w.r.log, "kafka takes records again")
	return nil
}

// sent is one request on its way.
type sent struct {
	call   *call
	places []place
}

// round sends the first batch of every partition, one request a leader, and takes the answers.
func (w *writer) round(ctx context.Context, p *plan) (progress bool, err error) {
	byLeader := map[int32][]place{}
	var errs []error
	for _, at := range p.places() {
		leader := w.r.leaderOf(at)
		if leader < 0 {
			errs = append(errs, fmt.Errorf("partition %d of %s has no leader", at.partition, at.topic))
			continue
		}
		byLeader[leader] = append(byLeader[leader], at)
	}
	var flights []sent
	for leader, places := range byLeader {
		cn, err := w.r.cl.node(ctx, leader)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		flights = append(flights, sent{cn.start(ctx, w.request(p, places)), places})
	}
	for _, f := range flights {
		ok, err := w.take(ctx, p, f)
		progress = progress || ok
		if err != nil {
			errs = append(errs, err)
		}
	}
	return progress, errors.Join(errs...)
}

func (r *run) leaderOf(at place) int32 {
	for _, t := range r.topics {
		if t.name == at.topic && int(at.partition) < len(t.leaders) {
			return t.leaders[at.partition]
		}
	}
	return -1
}

// request numbers the first batch of each place, once, and puts them into one request.
func (w *writer) request(p *plan, places []place) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TransactionID = 9, -1, w.txnID
	req.TimeoutMillis = int32(w.r.cfg.Connection.RequestTimeout.Milliseconds() / 2)
	for _, at := range places {
		b := p.batches[at][0]
		if !b.numbered || w.r.s.mutant.freshSequences {
			b.sequence, b.numbered = w.next[at], true
			w.next[at] = nextSequence(b.sequence, b.count)
		}
		w.who.number(b.data, b.sequence)
		i := slices.IndexFunc(req.Topics, func(t kmsg.ProduceRequestTopic) bool { return t.Topic == at.topic })
		if i < 0 {
			t := kmsg.NewProduceRequestTopic()
			t.Topic = at.topic
			req.Topics, i = append(req.Topics, t), len(req.Topics)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = at.partition, b.data
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	return req
}

// take removes what was acknowledged from the plan. A *failure is final; other errors are to be tried again.
func (w *writer) take(ctx context.Context, p *plan, f sent) (progress bool, err error) {
	resp, err := answer[*kmsg.ProduceResponse](ctx, f.call)
	if err != nil {
		return false, err
	}
	var errs []error
	waiting := slices.Clone(f.places)
	for _, t := range resp.Topics {
		for i := range t.Partitions {
			at := place{t.Topic, t.Partitions[i].Partition}
			n := slices.Index(waiting, at)
			if n < 0 {
				return progress, fmt.Errorf("%w: an answer for partition %d of %s, which was not sent", errLink,
					at.partition, at.topic)
			}
			waiting = slices.Delete(waiting, n, n+1)
			if err := w.settle(p, at, &t.Partitions[i]); err != nil {
				errs = append(errs, err)
				continue
			}
			progress = true
		}
	}
	if len(waiting) > 0 {
		errs = append(errs, fmt.Errorf("%w: no answer for %d of %d partitions", errLink, len(waiting), len(f.places)))
	}
	return progress, errors.Join(errs...)
}

// settle judges the answer for one partition.
func (w *writer) settle(p *plan, at place, rp *kmsg.ProduceResponseTopicPartition) error {
	b := p.batches[at][0]
	err := codeError(rp.ErrorCode, rp.ErrorMessage, "partition %d of %s", at.partition, at.topic)
	if err == nil || errors.Is(err, kerr.DuplicateSequenceNumber) { // 46: it was written by an earlier attempt
		w.r.s.stats.records.Add(uint64(b.count))
		if p.batches[at] = p.batches[at][1:]; len(p.batches[at]) == 0 {
			delete(p.batches, at)
		}
		return nil
	}
	if kerr.IsRetriable(err) && !oneOf(err, kerr.UnknownProducerID) || oneOf(err, kerr.ConcurrentTransactions) {
		return err
	}
	f := &failure{at: at, batch: b, err: err}
	for _, e := range rp.ErrorRecords {
		f.bad = append(f.bad, e.RelativeOffset)
	}
	return f
}

// learn draws the consequence of a final refusal: what other batches can cure is noted for the next plan.
func (r *run) learn(f *failure) error {
	switch {
	case oneOf(f.err, kerr.TopicAuthorizationFailed):
		r.denied[f.at.topic] = time.Now()
	case oneOf(f.err, kerr.MessageTooLarge, kerr.RecordListTooLarge) && f.batch.count > 1:
		r.shrunk[f.at.topic] = max(1, len(f.batch.data)/2)
	case oneOf(f.err, kerr.MessageTooLarge, kerr.RecordListTooLarge):
		r.refused[f.batch.cuts[0]] = tooLarge
	case oneOf(f.err, kerr.InvalidRecord, kerr.InvalidTimestamp) && f.batch.count == 1:
		r.refused[f.batch.cuts[0]] = invalid
	case oneOf(f.err, kerr.InvalidRecord, kerr.InvalidTimestamp) && len(f.bad) > 0:
		for _, i := range f.bad {
			if i >= 0 && int(i) < len(f.batch.cuts) {
				r.refused[f.batch.cuts[i]] = invalid
			}
		}
	case oneOf(f.err, kerr.InvalidRecord, kerr.InvalidTimestamp):
		r.shrunk[f.at.topic] = max(1, len(f.batch.data)/2)
	}
	return f
}
