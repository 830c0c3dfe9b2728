package topic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// IDHeader is the header in which the upstream gives a tuple's id.
const IDHeader = "id"

// Stream is the name of a partition's stream of tuples.
func Stream(partition int32) string { return "p" + strconv.Itoa(int(partition)) }

// client returns a client that chooses partitions by hand and waits for topics and brokers as long as it takes.
func client(brokers []string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.UnknownTopicRetries(-1),
		kgo.ProducerLinger(5 * time.Millisecond),
	}, options...)...)
}

// Create creates topics of one replica; those that exist are left as they are.
func Create(ctx context.Context, brokers []string, partitions int32, names ...string) error {
	c, err := client(brokers)
	if err != nil {
		return err
	}
	defer c.Close()
	request := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
		request.Topics = append(request.Topics, topic)
	}
	response, err := request.RequestWith(ctx, c)
	if err != nil {
		return err
	}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic.Topic, err)
		}
	}
	return nil
}
