package kafkaio

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Check reaches the brokers and says in words what the sink will find: topics, rights, durability, its marker. It
// changes nothing, and may be called while the sink runs.
func (s *Sink) Check(ctx context.Context) ([]string, error) {
	quiet := slog.New(slog.DiscardHandler)
	r := &run{
		s: s, cfg: &s.cfg, cl: newCluster(s.cfg.Connection, quiet), log: quiet, denied: map[string]time.Time{},
		shrunk: map[string]int{}, warned: true,
	}
	defer r.cl.close()
	if err := r.loadTopics(ctx); err != nil {
		return nil, err
	}
	lines := []string{"kafka sink: " + s.Guarantee()}
	for _, label := range s.labels {
		t := r.topics[label]
		line := fmt.Sprintf("topic %s: %d partitions, batches up to %d bytes", t.name, len(t.leaders), t.maxBytes)
		if t.denied {
			line = fmt.Sprintf("topic %s: the Kafka user may not write to it, its tuples would become dead letters", t.name)
		}
		lines = append(lines, line)
	}
	names := []string{}
	for _, name := range s.cfg.Routes {
		names = append(names, name)
	}
	if s.cfg.Transactional { // transactions and markers are as durable as these
		names = append(names, "__transaction_state", "__consumer_offsets")
	}
	warned, err := r.cl.checkDurability(ctx, names)
	if err != nil {
		return lines, err
	}
	lines = append(lines, warned...)
	if !s.cfg.Transactional {
		return lines, nil
	}
	line, err := r.checkMarker(ctx)
	return append(lines, line), err
}

func (r *run) checkMarker(ctx context.Context) (string, error) {
	own := ownTopic(r.cfg.Name)
	m, err := r.cl.metadata(ctx, []string{own})
	if err != nil {
		return "", err
	}
	if len(m.Topics) != 1 || m.Topics[0].ErrorCode == kerr.UnknownTopicOrPartition.Code {
		return fmt.Sprintf("marker: the topic %s does not exist yet and will be created", own), nil
	}
	if err = codeError(m.Topics[0].ErrorCode, nil, "topic %s", own); err != nil {
		return "", err
	}
	cn, err := r.cl.coordinatorConn(ctx, own, groupKind)
	if err != nil {
		return "", err
	}
	got, err := fetchOffsets(ctx, cn, own, own, []int32{markerKey})
	switch {
	case oneOf(err, kerr.UnstableOffsetCommit):
		return "marker: a transaction is under way, a sink of that name is running", nil
	case err != nil:
		return "", err
	case got[markerKey].offset < 0:
		return "marker: none yet", nil
	}
	found, err := parseMarker(got[markerKey].metadata)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("marker: offset %d of the log %s", found.n, found.lineage), nil
}

// checkDurability says what weakens topics, in lines.
func (c *cluster) checkDurability(ctx context.Context, names []string) ([]string, error) {
	names = sorted(names)
	m, err := c.metadata(ctx, names)
	if err != nil {
		return nil, err
	}
	configs, err := c.topicConfigs(ctx, names)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, name := range names {
		for _, w := range durability(name, configs[name], replicas(m, name), len(m.Brokers)) {
			lines = append(lines, "warning: topic "+w.topic+": "+w.text)
		}
	}
	return lines, nil
}

// Check reaches the brokers and says in words what the source will find. It changes nothing, and may be called while
// the source runs.
func (s *Source) Check(ctx context.Context) ([]string, error) {
	cl := newCluster(s.cfg.Connection, slog.New(slog.DiscardHandler))
	defer cl.close()
	m, err := cl.metadata(ctx, s.cfg.Topics)
	if err != nil {
		return nil, err
	}
	lines := []string{"kafka source: " + s.Guarantee()}
	const mayRead = 1 << 3
	for i := range m.Topics {
		t := &m.Topics[i]
		if t.Topic == nil || !slices.Contains(s.cfg.Topics, *t.Topic) {
			continue
		}
		if err := codeError(t.ErrorCode, nil, "topic %s", *t.Topic); err != nil {
			return lines, err
		}
		if t.AuthorizedOperations != unknownRights && t.AuthorizedOperations&mayRead == 0 {
			return lines, fmt.Errorf("the Kafka user may not read the topic %s: grant it Read: %w", *t.Topic,
				kerr.TopicAuthorizationFailed)
		}
		lines = append(lines, fmt.Sprintf("topic %s: %d partitions, id %s", *t.Topic, len(t.Partitions), topicID(t.TopicID)))
	}
	return lines, nil
}
