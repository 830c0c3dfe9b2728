package kafkaio

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sourceKey is the partition of `_ftproxy.<name>` that is the key of the source's notes in the group of that name.
const sourceKey = int32(2)

// memory is what the source notes in the group `_ftproxy.<name>`, since the log's positions do not tell it:
//
//	(_ftproxy.<name>, 2)   v1 <lineage> <topic>=<topic id>,…     a topic that is made anew is recognised by it
//	(<topic>, partition)   v1 <lineage> <topic id>               the offset at which "latest" was begun, so that a
//	                                                             change of leaders before the first tuple skips nothing
//
// If the Kafka user may not use the group, the source works without, and says what that costs.
type memory struct {
	usable  bool
	lineage string // of the log: another log's notes are not ours
	topics  map[string][16]byte
	stored  map[string][16]byte // as read at the start
	existed map[[16]byte]int    // partitions that a topic had when it was first seen
	remade  map[string]bool     // topics that were made anew, and are read by decision
	changed bool
	written time.Time
}

func topicID(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

func deniedBy(err error) bool {
	return oneOf(err, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed)
}

// recall reads the notes.
func (r *reading) recall(ctx context.Context) (*memory, error) {
	m := &memory{
		lineage: r.in.Lineage(), topics: map[string][16]byte{}, stored: map[string][16]byte{}, remade: map[string]bool{},
		existed: map[[16]byte]int{},
	}
	text, err := r.readNotes(ctx)
	if deniedBy(err) {
		r.log.WarnContext(ctx, "kafka source keeps no notes: a topic made anew while ftproxy is down is not recognised",
			slog.String("group", ownTopic(r.cfg.Name)), slog.String("error", err.Error()))
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the source's notes in group %s: %w", ownTopic(r.cfg.Name), err)
	}
	m.usable = true
	m.topics = parseNotes(text, m.lineage)
	m.stored = maps.Clone(m.topics)
	return m, nil
}

func (r *reading) readNotes(ctx context.Context) (string, error) {
	own := ownTopic(r.cfg.Name)
	if err := r.cl.ensureOwnTopic(ctx, r.cfg.Name, r.cfg.Replication); err != nil {
		return "", err
	}
	cn, err := r.cl.coordinatorConn(ctx, own, groupKind)
	if err != nil {
		return "", err
	}
	got, err := fetchOffsets(ctx, cn, own, own, []int32{sourceKey})
	return got[sourceKey].metadata, err
}

// parseNotes reads the notes of the log with that lineage; those of another one are not ours.
func parseNotes(text, lineage string) map[string][16]byte {
	topics := map[string][16]byte{}
	f := strings.Split(text, " ")
	if len(f) != 3 || f[0] != "v1" || f[1] != lineage {
		return topics
	}
	for item := range strings.SplitSeq(f[2], ",") {
		name, text, _ := strings.Cut(item, "=")
		var id [16]byte
		if b, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(b) == len(id) {
			copy(id[:], b)
			topics[name] = id
		}
	}
	return topics
}

func (m *memory) String() string {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(m.topics)) {
		items = append(items, name+"="+topicID(m.topics[name]))
	}
	return "v1 " + m.lineage + " " + strings.Join(items, ",")
}

// note writes the notes if they changed, and once a day.
func (r *reading) note(ctx context.Context) error {
	m := r.memo
	if !m.usable || len(m.topics) == 0 || (!m.changed && time.Since(m.written) < refreshEvery) {
		return nil
	}
	own := ownTopic(r.cfg.Name)
	cn, err := r.cl.coordinatorConn(ctx, own, groupKind)
	var got map[int32]committed
	if err == nil {
		got, err = fetchOffsets(ctx, cn, own, own, []int32{sourceKey})
	}
	if err != nil {
		r.cl.forgetCoordinators()
		return fmt.Errorf("the source's notes in group %s: %w", own, err)
	}
	for name, id := range parseNotes(got[sourceKey].metadata, m.lineage) { // other sources of this name note there too
		if !slices.Contains(r.cfg.Topics, name) {
			m.topics[name] = id
		}
	}
	text := m.String()
	if len(text) > maxMarker {
		m.usable = false
		r.log.WarnContext(ctx, "kafka source has too many topics to note them all: one that is made anew while ftproxy is "+
			"down is not recognised", slog.Int("topics", len(m.topics)))
		return nil
	}
	err = commitOffset(ctx, cn, own, place{own, sourceKey}, 0, text)
	if err == nil && !m.changed {
		err = r.refreshStarts(ctx, cn)
	}
	if err != nil {
		r.cl.forgetCoordinators()
		return fmt.Errorf("noting the topics: %w", err)
	}
	m.changed, m.written = false, time.Now()
	return nil
}

// refreshStarts keeps the noted starts of partitions that brought nothing yet from being forgotten by the brokers.
func (r *reading) refreshStarts(ctx context.Context, cn *conn) error {
	if !r.s.start.latest {
		return nil
	}
	r.mu.Lock()
	parts := slices.Clone(r.parts)
	r.mu.Unlock()
	own := ownTopic(r.cfg.Name)
	for _, p := range parts {
		if p.admitted.Load() != p.begun {
			continue
		}
		mine := "v1 " + r.memo.lineage + " " + topicID(p.id)
		if err := commitOffset(ctx, cn, own, place{p.topic, p.partition}, p.begun, mine); err != nil {
			return err
		}
	}
	return nil
}

// startLatest is the end of a partition when it was first looked at.
func (m *memory) startLatest(ctx context.Context, r *reading, p *part) (int64, error) {
	own, mine := ownTopic(r.cfg.Name), "v1 "+m.lineage+" "+topicID(p.id)
	if !m.usable {
		return r.cl.offsetAt(ctx, p, latestOffset, 1)
	}
	cn, err := r.cl.coordinatorConn(ctx, own, groupKind)
	if err != nil {
		return 0, err
	}
	got, err := fetchOffsets(ctx, cn, own, p.topic, []int32{p.partition})
	if err != nil {
		r.cl.forgetCoordinators()
		return 0, err
	}
	if c := got[p.partition]; c.offset >= 0 && c.metadata == mine {
		return c.offset, nil
	}
	at := latestOffset
	if m.stored[p.topic] == p.id || int(p.partition) >= m.existed[p.id] {
		at = earliestOffset // the topic was read before this partition was added to it
	}
	offset, err := r.cl.offsetAt(ctx, p, at, 1)
	if err != nil {
		return 0, err
	}
	if err := commitOffset(ctx, cn, own, place{p.topic, p.partition}, offset, mine); err != nil {
		r.cl.forgetCoordinators()
		return 0, fmt.Errorf("noting the start of partition %d of %s: %w", p.partition, p.topic, err)
	}
	return offset, nil
}

// commitGroup lets a group's offsets follow what is in the log, for ordinary tools. It is only ever informative.
func (r *reading) commitGroup(ctx context.Context) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 8, r.cfg.Group, -1
	r.mu.Lock()
	parts := slices.Clone(r.parts)
	r.mu.Unlock()
	sent := map[*part]int64{}
	for _, p := range parts {
		at := p.admitted.Load()
		if at == p.grouped {
			continue
		}
		sent[p] = at
		i := slices.IndexFunc(req.Topics, func(t kmsg.OffsetCommitRequestTopic) bool { return t.Topic == p.topic })
		if i < 0 {
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = p.topic
			req.Topics, i = append(req.Topics, t), len(req.Topics)
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = p.partition, at, -1
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	if len(sent) == 0 {
		return
	}
	if err := r.sendGroup(ctx, req); err != nil {
		r.cl.forgetCoordinators()
		r.s.stats.groupTrouble.set(ctx, r.log, "kafka group offsets for tools cannot be written", err)
		return
	}
	r.s.stats.groupTrouble.clear(ctx, r.log, "kafka group offsets for tools are written again")
	for p, at := range sent {
		p.grouped = at
	}
}

func (r *reading) sendGroup(ctx context.Context, req *kmsg.OffsetCommitRequest) error {
	cn, err := r.cl.coordinatorConn(ctx, r.cfg.Group, groupKind)
	if err != nil {
		return err
	}
	resp, err := ask[*kmsg.OffsetCommitResponse](ctx, cn, req)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := codeError(p.ErrorCode, nil, "partition %d of %s", p.Partition, t.Topic); err != nil {
				return err
			}
		}
	}
	return nil
}
