package kafkaio

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// Keys of the group's offsets: partitions of `_ftproxy.<name>`.
const (
	markerKey   = int32(0)
	sentinelKey = int32(1)
)

// owner is a settled ownership: a producer epoch of our own, and where to go on.
type owner struct {
	who   producer
	after uint64 // the log's offset up to which all is written and acknowledged
	hash  uint64
}

// txnID names the transactional id: a new lineage is another writer, and the marker tells it what was before.
func (r *run) txnID() string { return "ftproxy." + r.cfg.Name + "." + r.out.Lineage() }

// takeOver makes this process the only writer and finds out where the former one stopped:
//
//	(1) barrier: we lead, and have applied all that was committed
//	(2) bare InitProducerId: fences the former owner, and settles its open transaction
//	(3) sentinel: a nonce written to the group, which a coordinator that was replaced cannot accept
//	(4) stable fetch of sentinel and marker on the same connection: no transaction undecided, no stale answer
//	(5) the marker is judged against the log
func (r *run) takeOver(ctx context.Context) (*owner, error) {
	r.s.stats.takeOvers.Add(1)
	r.cl.forgetCoordinators()
	if err := r.out.Barrier(ctx); err != nil {
		return nil, stepDownError{err}
	}
	who, err := r.initBare(ctx)
	if err != nil {
		return nil, err
	}
	text, absent, err := r.readMarker(ctx)
	if err != nil {
		return nil, err
	}
	m, acked, err := r.decide(ctx, text, absent)
	if err != nil {
		return nil, err
	}
	if m.n > acked {
		if err := r.confirm(ctx, m, acked); err != nil {
			return nil, err
		}
	}
	r.log.InfoContext(ctx, "kafka sink took over", slog.Uint64("offset", m.n), slog.Int64("producer_id", who.id),
		slog.Int("producer_epoch", int(who.epoch)))
	return &owner{who: who, after: m.n, hash: m.hash}, nil
}

// initBare repeats step (2) until it succeeds. An undecided transaction of the former owner answers with 51 until its
// markers are written, which can take as long as a broker takes to be replaced.
func (r *run) initBare(ctx context.Context) (producer, error) {
	waits := proxy.Backoff{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond}
	for {
		who, err := r.initProducer(ctx, producer{id: -1, epoch: -1})
		if err == nil || !busy(err) {
			return who, err
		}
		r.cl.forgetCoordinators()
		r.s.stats.retries.Add(1)
		r.s.stats.trouble.set(ctx, r.log, "kafka sink cannot become the only writer yet", err)
		if err := waits.Wait(ctx); err != nil {
			return producer{}, err
		}
		// An InitProducerId of one who no longer owns would abort the new owner's transaction.
		if err := r.out.Barrier(ctx); err != nil {
			return producer{}, stepDownError{err}
		}
	}
}

// initProducer asks once for a producer epoch: bare, or the one after who's.
func (r *run) initProducer(ctx context.Context, who producer) (producer, error) {
	id := r.txnID()
	cn, err := r.cl.coordinatorConn(ctx, id, txnKind)
	if err != nil {
		return producer{}, err
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID = 4, &id
	req.TransactionTimeoutMillis = int32(r.cfg.TxnTimeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = who.id, who.epoch
	resp, err := ask[*kmsg.InitProducerIDResponse](ctx, cn, req)
	if err != nil {
		return producer{}, err
	}
	if err := codeError(resp.ErrorCode, nil, "InitProducerId of %s", id); err != nil {
		return producer{}, err
	}
	return producer{id: resp.ProducerID, epoch: resp.ProducerEpoch, transactional: true}, nil
}

// readMarker repeats steps (3) and (4) until both succeed on one connection.
func (r *run) readMarker(ctx context.Context) (text string, absent bool, err error) {
	waits := proxy.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for {
		text, absent, err = r.readMarkerOnce(ctx)
		if err == nil || oneOf(err, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed) {
			return text, absent, err
		}
		r.s.stats.retries.Add(1)
		r.s.stats.trouble.set(ctx, r.log, "kafka sink cannot read its marker yet", err)
		if err := waits.Wait(ctx); err != nil {
			return "", false, err
		}
		if err := r.out.Barrier(ctx); err != nil {
			return "", false, stepDownError{err}
		}
	}
}

func (r *run) readMarkerOnce(ctx context.Context) (text string, absent bool, err error) {
	group := ownTopic(r.cfg.Name)
	id, err := r.cl.coordinator(ctx, group, groupKind)
	if err != nil {
		return "", false, err
	}
	cn, err := r.cl.dial(ctx, id)
	if err != nil {
		return "", false, err
	}
	defer cn.close()
	nonce := rand.Text()
	if !r.s.mutant.noSentinel {
		if err := commitOffset(ctx, cn, group, place{group, sentinelKey}, 0, nonce); err != nil {
			return "", false, fmt.Errorf("sentinel: %w", err)
		}
	}
	waits := proxy.Backoff{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond}
	for {
		got, err := fetchOffsets(ctx, cn, group, group, []int32{markerKey, sentinelKey})
		switch {
		case errors.Is(err, kerr.UnstableOffsetCommit) && r.s.mutant.unstableAbsent:
			return "", true, nil
		case errors.Is(err, kerr.UnstableOffsetCommit): // undecided: never to be taken for absent
			r.s.stats.trouble.set(ctx, r.log, "kafka sink waits for a transaction to be decided", err)
			if ended := waits.Wait(ctx); ended != nil {
				return "", false, ended
			}
			continue
		case err != nil:
			return "", false, fmt.Errorf("marker: %w", err)
		case got[sentinelKey].metadata != nonce && !r.s.mutant.noSentinel:
			return "", false, errors.New("the group's coordinator does not know the sentinel that it took: it was replaced")
		}
		return got[markerKey].metadata, got[markerKey].offset < 0, nil
	}
}

// committed is one offset of a group.
type committed struct {
	offset   int64 // -1: none
	metadata string
}

// commitOffset commits one offset of a group without members, outside of any transaction.
func commitOffset(ctx context.Context, cn *conn, group string, at place, offset int64, metadata string) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 8, group, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = at.topic
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = at.partition, offset, -1, &metadata
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.OffsetCommitResponse](ctx, cn, req)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.Partition == at.partition && t.Topic == at.topic {
				return codeError(p.ErrorCode, nil, "committing an offset of group %s", group)
			}
		}
	}
	return fmt.Errorf("%w: no answer to an offset commit of group %s", errLink, group)
}

// fetchOffsets reads offsets of a group that no open transaction is about to change.
func fetchOffsets(ctx context.Context, cn *conn, group, topic string, partitions []int32) (map[int32]committed, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.RequireStable = 8, true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.Partitions = topic, partitions
	g.Topics = append(g.Topics, t)
	req.Groups = append(req.Groups, g)
	resp, err := ask[*kmsg.OffsetFetchResponse](ctx, cn, req)
	if err != nil {
		return nil, err
	}
	if len(resp.Groups) != 1 {
		return nil, fmt.Errorf("%w: an offset fetch of one group answers for %d", errLink, len(resp.Groups))
	}
	if err := codeError(resp.Groups[0].ErrorCode, nil, "reading the offsets of group %s", group); err != nil {
		return nil, err
	}
	got := map[int32]committed{}
	for _, t := range resp.Groups[0].Topics {
		for _, p := range t.Partitions {
			if err := codeError(p.ErrorCode, nil, "reading an offset of group %s", group); err != nil {
				return nil, err
			}
			c := committed{offset: p.Offset}
			if p.Metadata != nil {
				c.metadata = *p.Metadata
			}
			got[p.Partition] = c
		}
	}
	if len(got) != len(partitions) {
		return nil, fmt.Errorf("%w: %d of %d offsets of group %s", errLink, len(got), len(partitions), group)
	}
	return got, nil
}

// decide is step (5). What does not fit is looked at again behind a barrier before it stops the sink.
func (r *run) decide(ctx context.Context, text string, absent bool) (m marker, acked uint64, err error) {
	for attempt := range 2 {
		if attempt > 0 {
			if err = r.out.Barrier(ctx); err != nil {
				return m, 0, stepDownError{err}
			}
		}
		p := placed{
			lineage: r.out.Lineage(), buffer: r.out.Buffer(), reader: r.out.Reader(), found: text, absent: absent,
		}
		if p.cursor, err = r.out.Cursor(ctx); err != nil {
			return m, 0, stepDownError{err}
		}
		if !absent {
			if found, bad := parseMarker(text); bad == nil {
				if p.hash, p.stored, err = r.out.HashAt(ctx, found.n); err != nil {
					return m, 0, stepDownError{err}
				}
			}
		}
		if m, err = p.judge(); err == nil {
			return m, p.cursor.Acked, nil
		}
		acked = p.cursor.Acked
		if attempt > 0 && r.cfg.Resume == "confirmed" {
			r.log.WarnContext(ctx, "kafka sink ignores its marker as configured, what followed is written again",
				slog.String("reason", err.Error()), slog.Uint64("offset", acked))
			return marker{n: acked, hash: p.cursor.Hash}, acked, nil
		}
	}
	return m, 0, &proxy.Halt{Cause: fmt.Errorf("the Kafka sink does not know what it wrote: %w. Nothing was written. "+
		"Check that this is the right cluster and name; to go on from the confirmed offset %d, whatever follows it in the "+
		"topics already (this may repeat tuples), set the sink's option resume=confirmed for the next start", err, acked)}
}

// confirm acknowledges what a former owner wrote but could not acknowledge, with the dead letters it meant to write.
func (r *run) confirm(ctx context.Context, m marker, acked uint64) error {
	var letters []logbuffer.Letter
	for after := acked; len(m.refused) > 0 && !r.s.mutant.noLetters && after < m.n; {
		items, err := r.out.Read(ctx, after, r.cfg.TxnBytes)
		if err != nil {
			return stepDownError{err}
		}
		for i := range items {
			if items[i].First > m.n {
				break
			}
			b, err := items[i].Decode()
			if err != nil {
				return err
			}
			letters = append(letters, r.lettersOf(&b, items[i].First, acked, m.refused)...)
		}
		after = items[len(items)-1].Last
	}
	return r.acknowledge(ctx, m.n, letters)
}

// maxLetterBytes bounds the dead letters in one acknowledgement, unless those of one tuple are larger.
const maxLetterBytes = 256 << 10

// acknowledge confirms all up to an offset with its dead letters, in as many entries of the log as these need.
func (r *run) acknowledge(ctx context.Context, upTo uint64, letters []logbuffer.Letter) error {
	slices.SortStableFunc(letters, func(a, b logbuffer.Letter) int { return cmp.Compare(a.From, b.From) })
	for {
		n, bytes := 0, 0
		for ; n < len(letters); n++ {
			bytes += recordBound(&letters[n].Tuple, 0)
			if n > 0 && bytes > maxLetterBytes && letters[n].From > letters[n-1].From {
				break
			}
		}
		ack := logbuffer.Ack{UpTo: upTo, Dead: letters[:n]}
		if n < len(letters) {
			ack.UpTo = letters[n-1].From
		}
		if err := r.out.Ack(ctx, ack); err != nil {
			return fmt.Errorf("acknowledging offset %d: %w", ack.UpTo, err)
		}
		r.s.stats.dead.Add(uint64(n))
		if letters = letters[n:]; len(letters) == 0 {
			return nil
		}
	}
}

// lettersOf makes the dead letters of a batch from the runs of refused offsets.
func (r *run) lettersOf(b *logbuffer.Batch, first, acked uint64, refused []refusal) (letters []logbuffer.Letter) {
	for i := range b.Tuples {
		offset := first + uint64(i)
		for _, f := range refused {
			if offset > acked && offset >= f.first && offset <= f.last && (b.Sink == "" || b.Sink == f.label) {
				letters = append(letters, r.letter(b, i, cut{f.label, offset}, f.reason))
			}
		}
	}
	return letters
}
