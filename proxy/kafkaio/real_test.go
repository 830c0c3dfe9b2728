package kafkaio_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// broker is a real Kafka of one node on loopback.
type broker struct {
	addr, dir string
	client    *kgo.Client
}

const script = "../../integration/kafka.sh"

//nolint:gochecknoglobals // one broker for all tests: the first that needs it starts it, TestMain ends it
var shared struct {
	once sync.Once
	b    *broker
	err  error
}

//nolint:gochecknoglobals // a flag
var existing = flag.String("broker", "", "host:port of a running Kafka to use instead of starting one")

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if shared.b != nil && shared.b.dir != "" {
		shared.b.kill()
		_ = os.RemoveAll(filepath.Dir(shared.b.dir))
	}
	os.Exit(code)
}

// realKafka returns the shared broker.
func realKafka(t *testing.T) *broker {
	t.Helper()
	if testing.Short() {
		t.Skip("a real Kafka is left out because of -short")
	}
	shared.once.Do(func() {
		if *existing != "" {
			shared.b = &broker{addr: *existing}
			shared.err = shared.b.connect()
			return
		}
		dir, err := os.MkdirTemp("", "ftproxy-kafkaio-") //nolint:usetesting // it outlives the test that starts it
		if err != nil {
			shared.err = err
			return
		}
		shared.b, shared.err = startBroker(filepath.Join(dir, "kafka"), "transaction.state.log.load.buffer.size=5242880\n")
	})
	if shared.err != nil {
		t.Fatalf("a real Kafka needs java (17 or later) and mvn; run with -short to leave it out: %v", shared.err)
	}
	return shared.b
}

// startBroker runs a broker with further properties on free ports.
func startBroker(dir, properties string) (*broker, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	b := &broker{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "extra.properties")
	properties = "auto.create.topics.enable=false\n" + strings.NewReplacer("@port@", strconv.Itoa(port),
		"@controller@", strconv.Itoa(port+10000)).Replace(properties)
	if err := os.WriteFile(conf, []byte(properties), 0o644); err != nil {
		return nil, err
	}
	if err := b.start(conf); err != nil {
		return nil, err
	}
	return b, b.connect()
}

func (b *broker) connect() (err error) {
	b.client, err = kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	return err
}

func (b *broker) start(conf string) error {
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		return err
	}
	cmd := exec.Command(script, "start", b.dir, port)
	cmd.Env = append(os.Environ(), "KAFKA_CONF="+conf, "KAFKA_HEAP=512m")
	var out bytes.Buffer
	cmd.Stderr = &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 0 {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

// kill ends the broker with SIGKILL.
func (b *broker) kill() {
	_ = exec.Command(script, "kill", b.dir).Run()
}

// freePort finds a port that is free together with the one 10000 above it.
func freePort() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		_, text, err := net.SplitHostPort(l.Addr().String())
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return 0, err
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		port = 20000 + port%20000
		free := true
		for _, p := range []int{port, port + 10000} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if err != nil {
				free = false
				continue
			}
			_ = l.Close()
		}
		if free {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free pair of ports")
}

// topic creates a topic; settings are name, value pairs.
func (b *broker) topic(t *testing.T, name string, partitions int32) string {
	t.Helper()
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	b.create(t, name, partitions)
	return name
}

func (b *broker) create(t *testing.T, name string, partitions int32, settings ...string) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, 1
	for i := 0; i < len(settings); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = settings[i], &settings[i+1]
		rt.Configs = append(rt.Configs, c)
	}
	req.Topics = append(req.Topics, rt)
	proxytest.Until(t, 20*time.Second, "topic "+name+" is created", func() bool {
		resp, err := req.RequestWith(t.Context(), b.client)
		if err != nil {
			t.Fatalf("create %s: %v", name, err)
		}
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		if err != nil && !kerr.IsRetriable(err) && resp.Topics[0].ErrorCode != kerr.TopicAlreadyExists.Code {
			t.Fatalf("create %s: %v", name, err)
		}
		return err == nil
	})
}

func (b *broker) remove(t *testing.T, name string) {
	t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{name}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = &name
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), b.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
}

// ends returns the end offset of each partition.
func (b *broker) ends(ctx context.Context, t *testing.T, topic string, partitions int32) []int64 {
	t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for p := range partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	ends := make([]int64, partitions)
	proxytest.Until(t, 30*time.Second, "the ends of "+topic, func() bool {
		resp, err := req.RequestWith(ctx, b.client)
		if err != nil {
			t.Fatalf("ends of %s: %v", topic, err)
		}
		answered := int32(0)
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				if rp.ErrorCode == 0 && rp.Offset >= 0 {
					ends[rp.Partition] = rp.Offset
					answered++
				}
			}
		}
		t.Logf("ends of %s: %d of %d partitions, %v", topic, answered, partitions, ends)
		return answered == partitions
	})
	return ends
}

// consume reads all committed records of a topic, by partition, once nothing of it is undecided.
func (b *broker) consume(t *testing.T, topic string, partitions int32) [][]*kgo.Record {
	t.Helper()
	ctx := proxytest.Within(t, time.Minute)
	ends := b.ends(ctx, t, topic, partitions)
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[p] = kgo.NewOffset().AtStart()
	}
	c, err := kgo.NewClient(
		kgo.SeedBrokers(b.addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := make([][]*kgo.Record, partitions)
	at := make([]int64, partitions)
	decided := map[string]int{}
	done := func() bool {
		for p := range partitions {
			if at[p] < ends[p] {
				return false
			}
		}
		return true
	}
	for !done() {
		fetches := c.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			t.Fatalf("reading %s/%d, at %v of %v: %v", e.Topic, e.Partition, at, ends, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at[r.Partition] = r.Offset + 1
			if r.Attrs.IsControl() {
				decided[string(r.Key)]++
			} else {
				got[r.Partition] = append(got[r.Partition], r)
			}
		})
	}
	t.Logf("%s: markers of transactions that were aborted %d, committed %d", topic, decided["\x00\x00\x00\x00"],
		decided["\x00\x00\x00\x01"])
	return got
}

// logger writes to the test's output.
func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// numbered makes a batch of n tuples with values "first", "first+1", … spread over keys.
func numbered(first, n, keys int) logbuffer.Batch {
	b := logbuffer.Batch{Source: "test", Partition: int32(first % 3)}
	for i := range n {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{
			Key: []byte("k" + strconv.Itoa((first+i)%keys)), Value: []byte(strconv.Itoa(first + i)), Time: 1_700_000_000_000,
			Position: int64(first + i),
		})
	}
	return b
}

func newSink(t *testing.T, b *broker, topic string, change ...func(*kafkaio.SinkConfig)) *kafkaio.Sink {
	t.Helper()
	cfg := kafkaio.SinkConfig{
		Connection: kafkaio.Connection{Brokers: []string{b.addr}}, Name: "op-" + topic, Routes: map[string]string{"": topic},
		Transactional: true, Logger: logger(t),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := kafkaio.NewSink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// judge checks that values 0 to n-1 are there exactly once, in order for each key, with headers that fit.
func judge(t *testing.T, got [][]*kgo.Record, n int, lineage string) {
	t.Helper()
	for _, p := range verdict(got, n, lineage) {
		t.Error(p)
	}
}

// verdict says what is wrong with what is in a topic.
func verdict(got [][]*kgo.Record, n int, lineage string) (problems []string) {
	note := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	seen := make([]int, n)
	last := map[string]int{}
	for p := range got {
		var before uint64
		for _, r := range got[p] {
			v, err := strconv.Atoi(string(r.Value))
			if err != nil || v < 0 || v >= n {
				note("partition %d offset %d: value %q", p, r.Offset, r.Value)
				continue
			}
			seen[v]++
			if l, ok := last[string(r.Key)]; ok && v <= l {
				note("reordered: key %s has %d after %d", r.Key, v, l)
			}
			last[string(r.Key)] = v
			h := map[string]string{}
			for _, x := range r.Headers {
				h[x.Key] = string(x.Value)
			}
			offset, err := strconv.ParseUint(h[kafkaio.HeaderOffset], 10, 64)
			if err != nil || offset != uint64(v)+1 || h[kafkaio.HeaderLineage] != lineage || offset <= before {
				note("headers %v of value %d (offset before: %d)", h, v, before)
			}
			before = offset
		}
	}
	lost, duplicated := 0, 0
	for _, c := range seen {
		if c == 0 {
			lost++
		}
		duplicated += max(0, c-1)
	}
	if lost+duplicated > 0 {
		note("of %d: lost %d, duplicated %d", n, lost, duplicated)
	}
	return problems
}
