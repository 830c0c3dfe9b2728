package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// refreshEvery is how often what stands in a group is written again, so that brokers do not forget it.
const refreshEvery = 24 * time.Hour

// transactions writes one range after the other until something goes wrong. No transaction is ever aborted from here:
// what is left open is settled by the next take-over.
func (r *run) transactions(ctx context.Context, o *owner) error {
	f := r.startFeed(ctx, o.after)
	defer f.close()
	refresh := time.NewTimer(r.s.refreshFirst)
	defer refresh.Stop()
	for {
		c := cuts{limit: r.cfg.TxnBytes, linger: r.cfg.Linger, anywhere: r.s.mutant.tornRange}
		items, err := f.next(ctx, c, refresh.C)
		if err != nil {
			return err
		}
		if time.Since(r.loaded) > reload {
			if err = r.loadTopics(ctx); err != nil {
				return err
			}
		}
		p := &plan{last: o.after, hash: o.hash, batches: nil}
		if len(items) > 0 {
			items = f.shorten(items, r.limit, r.cfg.TxnBytes)
			if p, err = r.planFitting(f, items, o.after); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := r.transact(ctx, o, p); err != nil {
			if time.Since(began) >= r.cfg.TxnTimeout && !r.s.mutant.steadyRanges { // slow, or throttled by a quota
				r.limit = max(1, min(r.limit, size(items))/2)
			}
			return err
		}
		r.limit = min(2*r.limit, r.cfg.TxnBytes)
		refresh.Reset(r.s.refreshEvery)
	}
}

// planFitting plans a range. It gives back the range's end while the marker cannot name all that Kafka refuses of it.
func (r *run) planFitting(f *feed, items []logbuffer.Stored, after uint64) (*plan, error) {
	for {
		p, err := r.planRange(items, after, nil)
		if err != nil || len(r.markerOf(p).String()) <= maxMarker {
			return p, err
		}
		n := middle(items)
		if n == 0 {
			return nil, &proxy.Halt{Cause: fmt.Errorf("the marker at offset %d would be larger than the %d bytes that Kafka "+
				"takes: too many tuples that were committed together are refused by Kafka: %v…; give their topics larger limits "+
				"or rights", p.last, maxMarker, p.letters[0].Reason)}
		}
		f.giveBack(items[n:])
		items = items[:n]
	}
}

func (r *run) markerOf(p *plan) marker {
	return marker{
		lineage: r.out.Lineage(), buffer: r.out.Buffer(), reader: r.out.Reader(), n: p.last, hash: p.hash, refused: p.refused,
	}
}

// transact writes a plan and its marker as one transaction, acknowledges it, and prepares the next.
func (r *run) transact(ctx context.Context, o *owner, p *plan) error {
	if err := r.commit(ctx, o.who, p); err != nil {
		if f, ok := errors.AsType[*failure](err); ok {
			return r.learn(f)
		}
		return err
	}
	r.s.stats.transactions.Add(1)
	if p.last > o.after {
		if err := r.acknowledge(ctx, p.last, p.letters); err != nil {
			return err
		}
		clear(r.refused)
	} else if err := r.out.Barrier(ctx); err != nil { // like Ack, it tells that we still lead
		return stepDownError{err}
	}
	o.after, o.hash = p.last, p.hash
	who, err := r.nextEpoch(ctx, o.who)
	if err != nil {
		return err
	}
	o.who = who
	r.s.stats.trouble.clear(ctx, r.log, "kafka sink writes again")
	return nil
}

// nextEpoch takes the producer epoch of the next transaction. It names the current one, so that a former owner which
// was paused is refused instead of fencing the new one. 51 is usual right after a commit.
func (r *run) nextEpoch(ctx context.Context, who producer) (producer, error) {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	if r.s.mutant.bareInit {
		who = producer{id: -1, epoch: -1}
	}
	waits := proxy.Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	for {
		next, err := r.initProducer(ctx, who)
		if err == nil || !busy(err) {
			return next, err
		}
		if coordinatorMoved(err) {
			r.cl.forgetCoordinators()
		}
		if err := waits.Wait(ctx); err != nil {
			return producer{}, err
		}
		if r.s.mutant.initUnchecked {
			continue
		}
		// Even one that is refused aborts the open transaction of a new owner.
		if err := r.out.Barrier(ctx); err != nil {
			return producer{}, fmt.Errorf("before another InitProducerId: %w", err)
		}
	}
}

// bounded limits what belongs to one transaction to the time after which brokers abort it anyway.
func (r *run) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.cfg.TxnTimeout,
		fmt.Errorf("%w: the transaction took longer than its timeout of %v", errLink, r.cfg.TxnTimeout))
}

// commit runs one transaction up to the answer to EndTxn. After an error its outcome is unknown.
func (r *run) commit(ctx context.Context, who producer, p *plan) error {
	ctx, cancel := r.bounded(ctx)
	defer cancel()
	text := r.markerOf(p).String()
	id := r.txnID()
	if err := r.addPartitions(ctx, id, who, p); err != nil {
		return err
	}
	w := &writer{r: r, who: who, txnID: &id, next: map[place]int32{}}
	if err := w.write(ctx, p); err != nil {
		return err
	}
	if err := r.retry(ctx, func() error { return r.commitMarker(ctx, id, who, p.last, text) }); err != nil {
		return err
	}
	err := r.retry(ctx, func() error { return r.endTxn(ctx, id, who) })
	if r.s.mutant.trustUnknown && errors.Is(err, errLink) {
		return nil
	}
	return err
}

// retry repeats a step of a transaction while brokers say that they did nothing, and only then.
func (r *run) retry(ctx context.Context, step func() error) error {
	waits := proxy.Backoff{Min: time.Millisecond, Max: 250 * time.Millisecond}
	for {
		err := step()
		again := coordinatorMoved(err) || oneOf(err, kerr.ConcurrentTransactions, kerr.UnknownTopicOrPartition,
			kerr.NetworkException, kerr.OperationNotAttempted)
		if err == nil || !again || fenced(err) || errors.Is(err, errLink) {
			return err
		}
		if coordinatorMoved(err) {
			r.cl.forgetCoordinators()
		}
		r.s.stats.retries.Add(1)
		if waited := waits.Wait(ctx); waited != nil {
			return errors.Join(waited, err)
		}
	}
}

// addPartitions tells the coordinator what the transaction touches: the topics' partitions and the group.
func (r *run) addPartitions(ctx context.Context, id string, who producer, p *plan) error {
	return r.retry(ctx, func() error {
		cn, err := r.cl.coordinatorConn(ctx, id, txnKind)
		if err != nil {
			return err
		}
		var parts *call
		if len(p.batches) > 0 {
			parts = cn.start(ctx, partitionsRequest(id, who, p))
		}
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, id, who.id, who.epoch
		req.Group = ownTopic(r.cfg.Name)
		group := cn.start(ctx, req)
		var first error
		if parts != nil {
			first = partitionsAdded(ctx, parts)
		}
		resp, err := answer[*kmsg.AddOffsetsToTxnResponse](ctx, group)
		if err == nil {
			err = codeError(resp.ErrorCode, nil, "AddOffsetsToTxn")
		}
		if _, final := errors.AsType[*failure](first); final {
			return first
		}
		return errors.Join(first, err)
	})
}

func partitionsRequest(id string, who producer, p *plan) *kmsg.AddPartitionsToTxnRequest {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, id, who.id, who.epoch
	for _, at := range p.places() { // sorted: the partitions of a topic stand together
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != at.topic {
			t := kmsg.NewAddPartitionsToTxnRequestTopic()
			t.Topic = at.topic
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, at.partition)
	}
	return req
}

func partitionsAdded(ctx context.Context, cl *call) error {
	resp, err := answer[*kmsg.AddPartitionsToTxnResponse](ctx, cl)
	if err != nil {
		return err
	}
	var skipped error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			err := codeError(p.ErrorCode, nil, "AddPartitionsToTxn of partition %d of %s", p.Partition, t.Topic)
			switch {
			case err == nil:
			case errors.Is(err, kerr.TopicAuthorizationFailed):
				return &failure{at: place{t.Topic, p.Partition}, err: err}
			case errors.Is(err, kerr.OperationNotAttempted): // another partition tells why
				skipped = err
			default:
				return err
			}
		}
	}
	return skipped
}

// commitMarker commits the marker within the transaction.
func (r *run) commitMarker(ctx context.Context, id string, who producer, n uint64, text string) error {
	group := ownTopic(r.cfg.Name)
	cn, err := r.cl.coordinatorConn(ctx, group, groupKind)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = 3, id, group, who.id, who.epoch
	req.Generation = -1
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic = group
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = markerKey, int64(n), -1, &text
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.TxnOffsetCommitResponse](ctx, cn, req)
	if err != nil {
		return err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return fmt.Errorf("%w: no answer to the marker", errLink)
	}
	return codeError(resp.Topics[0].Partitions[0].ErrorCode, nil, "TxnOffsetCommit of the marker to group %s", group)
}

// endTxn commits the transaction.
func (r *run) endTxn(ctx context.Context, id string, who producer) error {
	cn, err := r.cl.coordinatorConn(ctx, id, txnKind)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, id, who.id, who.epoch
	req.Commit = true
	resp, err := ask[*kmsg.EndTxnResponse](ctx, cn, req)
	if err != nil {
		return err
	}
	return codeError(resp.ErrorCode, nil, "EndTxn")
}
