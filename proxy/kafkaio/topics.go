package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy"
)

const (
	// reload is how often partitions, limits and rights are looked at again.
	reload = 5 * time.Minute
	// defaultMaxMessage is Kafka's default of max.message.bytes, taken where the topic's cannot be read.
	defaultMaxMessage = 1048588
	// batchTarget is how large a record batch is meant to become, in bytes before compression.
	batchTarget = 512 << 10
	// markerPartitions is how many partitions `_ftproxy.<name>` has: the keys of marker, sentinel and source.
	markerPartitions = 3
	// mayWrite is the bit of Write in authorized operations, unknownRights their value when brokers do not tell.
	mayWrite      = 1 << 4
	unknownRights = -2147483648
)

// topic is what the sink has to know of one of its topics.
type topic struct {
	name    string
	leaders []int32 // by partition, -1: none now
	// maxBytes is the largest batch that the topic takes, batchBytes the size that batches are made.
	maxBytes, batchBytes int
	// denied is set if records may not be written.
	denied bool
}

// loadTopics learns the topics of all routes, or says which is missing.
func (r *run) loadTopics(ctx context.Context) error {
	names := make([]string, 0, len(r.cfg.Routes))
	for _, name := range r.cfg.Routes {
		names = append(names, name)
	}
	resp, err := r.cl.metadata(ctx, names)
	if err != nil {
		return err
	}
	byName := map[string]*topic{}
	denied := 0
	for i := range resp.Topics {
		t, failed := r.learnTopic(&resp.Topics[i])
		if failed != nil {
			return failed
		}
		byName[t.name] = t
		if t.denied {
			denied++
		}
	}
	if denied == len(byName) {
		return fmt.Errorf("the Kafka user may not write to any of the topics %v: grant it Write: %w", names,
			kerr.TopicAuthorizationFailed)
	}
	warnings, err := r.learnLimits(ctx, byName, resp)
	if err != nil {
		return err
	}
	if !r.warned {
		r.warned = true
		for _, w := range warnings {
			r.log.WarnContext(ctx, "kafka topic is less durable than it could be", slog.String("topic", w.topic),
				slog.String("problem", w.text))
		}
	}
	r.topics = make(map[string]*topic, len(r.cfg.Routes))
	for label, name := range r.cfg.Routes {
		if r.topics[label] = byName[name]; byName[name] == nil {
			return fmt.Errorf("the brokers say nothing about the topic %s", name)
		}
	}
	r.loaded = time.Now()
	return nil
}

func (r *run) learnTopic(rt *kmsg.MetadataResponseTopic) (*topic, error) {
	if rt.Topic == nil {
		return nil, errors.New("metadata names a topic by its id only")
	}
	t := &topic{name: *rt.Topic, maxBytes: defaultMaxMessage}
	rights := rt.AuthorizedOperations
	since, refused := r.denied[t.name]
	t.denied = (rights != unknownRights && rights&mayWrite == 0) || (refused && time.Since(since) < reload)
	switch err := kerr.ErrorForCode(rt.ErrorCode); {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		t.denied = true
		return t, nil
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil, fmt.Errorf("the Kafka topic %s does not exist: create it (ftproxy goes on by itself then): %w", t.name,
			err)
	case err != nil:
		return nil, fmt.Errorf("topic %s: %w", t.name, err)
	}
	t.leaders = make([]int32, len(rt.Partitions))
	for i := range rt.Partitions {
		p := &rt.Partitions[i]
		if p.Partition < 0 || int(p.Partition) >= len(t.leaders) {
			return nil, fmt.Errorf("topic %s: partition %d of %d", t.name, p.Partition, len(t.leaders))
		}
		t.leaders[p.Partition] = p.Leader
	}
	if len(t.leaders) == 0 {
		return nil, fmt.Errorf("the Kafka topic %s has no partitions", t.name)
	}
	return t, nil
}

// refreshLeaders learns who leads the partitions now.
func (r *run) refreshLeaders(ctx context.Context) error {
	var names []string
	for _, t := range r.topics {
		names = append(names, t.name)
	}
	resp, err := r.cl.metadata(ctx, names)
	if err != nil {
		return err
	}
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		for _, t := range r.topics {
			if rt.Topic == nil || *rt.Topic != t.name {
				continue
			}
			for _, p := range rt.Partitions {
				if p.Partition >= 0 && int(p.Partition) < len(t.leaders) {
					t.leaders[p.Partition] = p.Leader
				}
			}
		}
	}
	return nil
}

// warning is something about a topic that weakens what ftproxy promises.
type warning struct{ topic, text string }

// learnLimits reads max.message.bytes and judges durability. Where the settings may not be read, defaults are taken.
func (r *run) learnLimits(ctx context.Context, topics map[string]*topic, m *kmsg.MetadataResponse) ([]warning, error) {
	var names []string
	for name, t := range topics {
		if !t.denied {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	configs, err := r.cl.topicConfigs(ctx, names)
	if err != nil {
		return nil, err
	}
	var warnings []warning
	for _, name := range names {
		t, conf := topics[name], configs[name]
		if conf == nil {
			warnings = append(warnings, warning{name, "its settings may not be read: grant DescribeConfigs; " +
				"max.message.bytes is taken for " + strconv.Itoa(defaultMaxMessage)})
		} else if n, err := strconv.Atoi(conf["max.message.bytes"]); err == nil && n > 0 {
			t.maxBytes = n
		}
		t.batchBytes = min(t.maxBytes, batchTarget)
		if n, ok := r.shrunk[name]; ok {
			t.batchBytes = min(t.batchBytes, n)
		}
		warnings = append(warnings, durability(name, conf, replicas(m, name), len(m.Brokers))...)
	}
	return warnings, nil
}

// replicas is the smallest number of replicas of a topic's partitions.
func replicas(m *kmsg.MetadataResponse, name string) int {
	least := 0
	for i := range m.Topics {
		if m.Topics[i].Topic == nil || *m.Topics[i].Topic != name {
			continue
		}
		for _, p := range m.Topics[i].Partitions {
			if n := len(p.Replicas); least == 0 || n < least {
				least = n
			}
		}
	}
	return least
}

// durability names what makes a topic lose acknowledged records.
func durability(name string, conf map[string]string, replicas, brokers int) (w []warning) {
	if replicas > 0 && replicas < 3 {
		w = append(w, warning{name, fmt.Sprintf("replication factor %d (of %d brokers): "+
			"the loss of that many brokers loses acknowledged records; 3 is usual", replicas, brokers)})
	}
	if n, err := strconv.Atoi(conf["min.insync.replicas"]); err == nil && n < 2 {
		w = append(w, warning{name, fmt.Sprintf("min.insync.replicas %d: one broker alone may acknowledge; 2 is usual", n)})
	}
	if conf["unclean.leader.election.enable"] == "true" {
		w = append(w, warning{name, "unclean.leader.election.enable: a broker that misses records may become leader"})
	}
	return w
}

// topicConfigs reads settings of topics; a topic whose settings may not be read is left out.
func (c *cluster) topicConfigs(ctx context.Context, names []string) (map[string]map[string]string, error) {
	out := make(map[string]map[string]string, len(names))
	if len(names) == 0 {
		return out, nil
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	for _, name := range names {
		res := kmsg.NewDescribeConfigsRequestResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, name
		res.ConfigNames = []string{"max.message.bytes", "min.insync.replicas", "unclean.leader.election.enable"}
		req.Resources = append(req.Resources, res)
	}
	cn, err := c.node(ctx, anyNode)
	if err != nil {
		return nil, err
	}
	resp, err := ask[*kmsg.DescribeConfigsResponse](ctx, cn, req)
	if err != nil {
		return nil, err
	}
	for _, res := range resp.Resources {
		if res.ErrorCode != 0 {
			continue
		}
		conf := make(map[string]string, len(res.Configs))
		for _, e := range res.Configs {
			if e.Value != nil {
				conf[e.Name] = *e.Value
			}
		}
		out[res.ResourceName] = conf
	}
	return out, nil
}

// ownTopic names the small topic, and the group, of an operator.
func ownTopic(name string) string { return "_ftproxy." + name }

func (r *run) ensureMarkerTopic(ctx context.Context) error {
	return r.cl.ensureOwnTopic(ctx, r.cfg.Name, r.cfg.Replication)
}

// ensureOwnTopic creates `_ftproxy.<name>` if it is not there. No records are ever written to it: its partitions are
// the keys of group offsets.
func (c *cluster) ensureOwnTopic(ctx context.Context, name string, replication int) error {
	topicName := ownTopic(name)
	waits := proxy.Backoff{}
	for created := false; ; {
		m, err := c.metadata(ctx, []string{topicName})
		if err != nil {
			return err
		}
		if len(m.Topics) != 1 {
			return fmt.Errorf("the brokers say nothing about the topic %s", topicName)
		}
		switch err := kerr.ErrorForCode(m.Topics[0].ErrorCode); {
		case err == nil && len(m.Topics[0].Partitions) < markerPartitions:
			return &proxy.Halt{Cause: fmt.Errorf("the topic %s has %d partitions, ftproxy needs %d: add partitions to it",
				topicName, len(m.Topics[0].Partitions), markerPartitions)}
		case err == nil:
			return nil
		case !errors.Is(err, kerr.UnknownTopicOrPartition):
			return fmt.Errorf("topic %s: %w", topicName, err)
		case !created:
			if err := c.createOwnTopic(ctx, topicName, replication, len(m.Brokers)); err != nil {
				return err
			}
			created = true
		default: // brokers learn of it a moment later
			if err := waits.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

func (c *cluster) createOwnTopic(ctx context.Context, name string, replication, brokers int) error {
	if replication <= 0 {
		replication = 3
	}
	if replication > brokers {
		c.log.WarnContext(ctx, "kafka topic cannot have that many replicas, it is created with one a broker",
			slog.String("topic", name), slog.Int("replicas", replication), slog.Int("brokers", brokers))
		replication = brokers
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 10_000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, markerPartitions, int16(replication)
	conf := kmsg.NewCreateTopicsRequestTopicConfig()
	conf.Name, conf.Value = "min.insync.replicas", new(strconv.Itoa(max(1, replication-1)))
	t.Configs = append(t.Configs, conf)
	req.Topics = append(req.Topics, t)
	cn, err := c.node(ctx, anyNode)
	if err != nil {
		return err
	}
	resp, err := ask[*kmsg.CreateTopicsResponse](ctx, cn, req)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		err := codeError(t.ErrorCode, t.ErrorMessage, "creating the topic %s (%d partitions, replication factor %d)",
			name, markerPartitions, replication)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("%w: create it by hand, or grant Create", err)
		}
	}
	return nil
}
