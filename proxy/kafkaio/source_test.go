package kafkaio_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// reader is a source that runs into a log.
type reader struct {
	source *kafkaio.Source
	cancel context.CancelFunc
	ended  chan error
}

func newSource(t *testing.T, b *broker, topic string, change ...func(*kafkaio.SourceConfig)) *kafkaio.Source {
	t.Helper()
	cfg := kafkaio.SourceConfig{
		Connection: kafkaio.Connection{Brokers: []string{b.addr}}, Name: "src-" + topic, Topics: []string{topic},
		DiscoverEvery: 200 * time.Millisecond, Logger: logger(t),
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := kafkaio.NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, b *broker, topic string, log proxy.Intake, change ...func(*kafkaio.SourceConfig)) *reader {
	t.Helper()
	r := &reader{source: newSource(t, b, topic, change...), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.ended <- r.source.Run(ctx, log) }()
	t.Cleanup(func() {
		if err := r.stop(t); err == nil {
			t.Error("a source ends without a reason")
		}
	})
	return r
}

// stop ends the source and returns what it says.
func (r *reader) stop(t *testing.T) error {
	t.Helper()
	r.cancel()
	return r.wait(t)
}

// wait waits until the source ends by itself.
func (r *reader) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(30 * time.Second):
		t.Fatalf("the source does not end: %+v", r.source.Stats())
		return nil
	}
}

// halts waits until the source stops for a human, and checks what it says.
func (r *reader) halts(t *testing.T, words ...string) {
	t.Helper()
	err := r.wait(t)
	if _, ok := errors.AsType[*proxy.Halt](err); !ok {
		t.Fatalf("the source ends with %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// put writes records to partitions and waits for the broker.
func (b *broker) put(t *testing.T, topic string, records ...*kgo.Record) {
	t.Helper()
	for _, r := range records {
		r.Topic = topic
	}
	if err := b.client.ProduceSync(proxytest.Within(t, 20*time.Second), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func values(first, n int, partition int32) (records []*kgo.Record) {
	for i := range n {
		records = append(records, &kgo.Record{Partition: partition, Value: []byte(strconv.Itoa(first + i))})
	}
	return records
}

// texts are the values in a log, by partition.
func texts(log *proxytest.Log) map[int32][]string {
	out := map[int32][]string{}
	for _, b := range log.Batches() {
		for i := range b.Tuples {
			out[b.Partition] = append(out[b.Partition], string(b.Tuples[i].Value))
		}
	}
	return out
}

func waitEnd(t *testing.T, log *proxytest.Log, n uint64, r *reader) {
	t.Helper()
	if err := log.WaitEnd(proxytest.Within(t, 30*time.Second), n); err != nil {
		t.Fatalf("%d of %d tuples: %+v", log.End(), n, r.source.Stats())
	}
}

func TestSourceReadsCommittedRecordsOnce(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "read", 3)
	aborted, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID("tx-"+topic),
		kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer aborted.Close()
	ctx := proxytest.Within(t, time.Minute)
	want := map[int32][]string{}
	n := 0
	for round := range 20 {
		if err := aborted.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		commit := round%2 == 0
		for p := range int32(3) {
			r := &kgo.Record{Partition: p, Value: fmt.Appendf(nil, "%d/%v", round, commit)}
			if err := aborted.ProduceSync(ctx, r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if commit {
				want[p] = append(want[p], string(r.Value))
				n++
			}
		}
		if err := aborted.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
			t.Fatal(err)
		}
		for p := range int32(3) {
			r := values(round*100, 3, p)
			b.put(t, topic, r...)
			for i := range r {
				want[p] = append(want[p], string(r[i].Value))
				n++
			}
		}
	}
	log := proxytest.NewLog("lin")
	log.FailAppend(proxytest.FaultUnavailable, proxytest.FaultUnknownWritten, proxytest.FaultUnknownLost,
		proxytest.FaultTooLarge)
	for range 3 { // the later runs have nothing to add
		r := read(t, b, topic, log)
		waitEnd(t, log, uint64(n), r)
		if err := r.stop(t); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if got := texts(log); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read\n%v\ndue\n%v", got, want)
	}
}

func TestSourceKeepsWhatTravelsWithARecord(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "travel", 1)
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	long := bytes.Repeat([]byte("ftproxy "), 500)
	for i, codec := range codecs {
		c, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec))
		if err != nil {
			t.Fatal(err)
		}
		at := time.UnixMilli(1_600_000_000_000 + int64(i))
		headers := []kgo.RecordHeader{{Key: "h", Value: []byte("v")}, {Key: "h"}}
		err = c.ProduceSync(proxytest.Within(t, 20*time.Second),
			&kgo.Record{Key: []byte("k"), Value: long, Timestamp: at, Headers: headers},
			&kgo.Record{Key: nil, Value: []byte{}, Timestamp: at},
			&kgo.Record{Key: []byte{}, Value: nil, Timestamp: at}).FirstErr()
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := proxytest.NewLog("lin")
	r := read(t, b, topic, log)
	waitEnd(t, log, uint64(3*len(codecs)), r)
	for i, tu := range log.Tuples() {
		ok := tu.Position == int64(i) && tu.Time == 1_600_000_000_000+int64(i/3)
		switch i % 3 {
		case 0:
			ok = ok && string(tu.Key) == "k" && bytes.Equal(tu.Value, long) && len(tu.Headers) == 2 &&
				tu.Headers[0].Key == "h" && string(tu.Headers[0].Value) == "v" && tu.Headers[1].Value == nil
		case 1:
			ok = ok && tu.Key == nil && tu.Value != nil && len(tu.Value) == 0
		case 2:
			ok = ok && tu.Key != nil && len(tu.Key) == 0 && tu.Value == nil
		}
		if !ok {
			t.Errorf("tuple %d: %+v", i, tu)
		}
	}
	// And out again: what comes to a sink goes into its topic unchanged.
	back := b.topic(t, "back", 1)
	out := log.Outlet("sink")
	s := newSink(t, b, back, func(c *kafkaio.SinkConfig) { c.Compression = "zstd" })
	for _, p := range drive(t, s, out, out, log.End()) {
		t.Fatal(p)
	}
	was, is := b.consume(t, topic, 1)[0], b.consume(t, back, 1)[0]
	for i := range was {
		w, g := was[i], is[i]
		same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
		if len(was) != len(is) || !g.Timestamp.Equal(w.Timestamp) || !same(g.Key, w.Key) || !same(g.Value, w.Value) ||
			len(g.Headers) != len(w.Headers)+3 || fmt.Sprint(g.Headers[:len(w.Headers)]) != fmt.Sprint(w.Headers) {
			t.Errorf("record %d: %+v became %+v", i, w, g)
		}
	}
}

func TestSourceFindsNewPartitions(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "grow", 1)
	log := proxytest.NewLog("lin")
	r := read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.Start = "latest" })
	proxytest.Until(t, 20*time.Second, "one partition", func() bool { return r.source.Stats().Partitions == 1 })
	req := kmsg.NewPtrCreatePartitionsRequest()
	rt := kmsg.NewCreatePartitionsRequestTopic()
	rt.Topic, rt.Count = topic, 2
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), b.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	proxytest.Until(t, 20*time.Second, "the client to know the partition", func() bool {
		b.client.ForceMetadataRefresh()
		rec := &kgo.Record{Topic: topic, Partition: 1, Value: []byte("new")}
		return b.client.ProduceSync(proxytest.Within(t, 5*time.Second), rec).FirstErr() == nil
	})
	waitEnd(t, log, 1, r)
	if got := texts(log)[1]; len(got) != 1 || got[0] != "new" {
		t.Errorf("%v", texts(log))
	}
}

func TestSourceStarts(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "start", 2)
	old := time.Now().Add(-time.Hour)
	records := append(values(0, 3, 0), values(0, 3, 1)...)
	for _, r := range records {
		r.Timestamp = old
	}
	b.put(t, topic, records...)

	log := proxytest.NewLog("by time")
	r := read(t, b, topic, log, func(c *kafkaio.SourceConfig) {
		c.Name, c.Start = "time-"+topic, "timestamp:"+strconv.FormatInt(old.Add(time.Minute).UnixMilli(), 10)
	})
	proxytest.Until(t, 20*time.Second, "two partitions", func() bool { return r.source.Stats().Partitions == 2 })

	// "latest" is where the first leader began, although it brought no tuple of partition 1 before the next one leads.
	latest := proxytest.NewLog("latest")
	begin := func() *reader {
		next := read(t, b, topic, latest, func(c *kafkaio.SourceConfig) { c.Start = "latest" })
		proxytest.Until(t, 20*time.Second, "two partitions", func() bool { return next.source.Stats().Partitions == 2 })
		return next
	}
	first := begin()
	proxytest.Until(t, 20*time.Second, "all read", func() bool { return first.source.Stats().LastError == "" })
	if err := first.stop(t); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.put(t, topic, values(7, 1, 1)...)
	waitEnd(t, latest, 1, begin())
	waitEnd(t, log, 1, r)
	for name, l := range map[string]*proxytest.Log{"latest": latest, "timestamp": log} {
		if got := fmt.Sprint(texts(l)); got != "map[1:[7]]" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// uuid is a topic's id as it stands in source names.
func (b *broker) uuid(t *testing.T, topic string) string {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	var id [16]byte
	proxytest.Until(t, 20*time.Second, "metadata of "+topic, func() bool {
		resp, err := req.RequestWith(t.Context(), b.client)
		if err != nil {
			t.Fatal(err)
		}
		id = resp.Topics[0].TopicID
		return resp.Topics[0].ErrorCode == 0
	})
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func TestSourceWaitsForATopicAndSeesItMadeAnew(t *testing.T) {
	b := realKafka(t)
	topic := fmt.Sprintf("anew-%d", time.Now().UnixNano())
	log := proxytest.NewLog("lin")
	r := read(t, b, topic, log)
	proxytest.Until(t, 20*time.Second, "the missing topic is named", func() bool {
		return strings.Contains(r.source.Stats().LastError, "does not exist")
	})
	b.create(t, topic, 1)
	b.uuid(t, topic)
	b.put(t, topic, values(0, 3, 0)...)
	waitEnd(t, log, 3, r)
	proxytest.Until(t, 20*time.Second, "no trouble", func() bool { return r.source.Stats().LastError == "" })
	b.remove(t, topic)
	proxytest.Until(t, 20*time.Second, "the deleted topic is named", func() bool {
		return strings.Contains(r.source.Stats().LastError, "does not exist")
	})
	b.create(t, topic, 1)
	r.halts(t, "made anew", "on_loss")

	// The next start knows it too: ftproxy was down, so to say, while it happened.
	read(t, b, topic, log).halts(t, "made anew", topic)

	b.client.PurgeTopicsFromClient(topic)
	b.uuid(t, topic)
	b.put(t, topic, values(10, 2, 0)...)
	waitEnd(t, log, 5, read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.OnLoss = "earliest" }))
	if got := fmt.Sprint(texts(log)[0]); got != "[0 1 2 10 11]" {
		t.Error(got)
	}
}

func TestSourceStopsWhenRecordsAreGone(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "gone", 1)
	b.put(t, topic, values(0, 10, 0)...)
	log := proxytest.NewLog("lin")
	source := "kafka/" + b.uuid(t, topic) + "/0"
	admit := func(log *proxytest.Log, position int64) {
		_, err := log.Append(t.Context(), logbuffer.Batch{
			Source: source, Rule: logbuffer.RuleSparse, Tuples: []logbuffer.Tuple{{Value: []byte("before"), Position: position}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	admit(log, 2)
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = topic
	rt.Partitions = append(rt.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Offset: 6})
	req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10000
	if _, err := req.RequestWith(t.Context(), b.client); err != nil {
		t.Fatal(err)
	}
	read(t, b, topic, log).halts(t, "begins at offset 6", "only up to offset 2", "on_loss")
	waitEnd(t, log, 5, read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.OnLoss = "earliest" }))
	if got := fmt.Sprint(texts(log)[0]); got != "[before 6 7 8 9]" {
		t.Error(got)
	}

	// The brokers lost the end of the partition: offsets are given a second time.
	lost := proxytest.NewLog("lin2")
	admit(lost, 12)
	named := func(c *kafkaio.SourceConfig) { c.Name = "lost-" + topic }
	read(t, b, topic, lost, named).halts(t, "ends at offset 10", "up to offset 12", "on_loss")
	latest := func(c *kafkaio.SourceConfig) { c.OnLoss = "latest" }
	r := read(t, b, topic, lost, named, latest)
	proxytest.Until(t, 20*time.Second, "it reads", func() bool { return r.source.Stats().Partitions == 1 })
	b.put(t, topic, values(10, 5, 0)...)
	waitEnd(t, lost, 6, r)
	if err := r.stop(t); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	b.put(t, topic, values(15, 1, 0)...)
	waitEnd(t, lost, 7, read(t, b, topic, lost, named)) // and the next start goes on in the new life
	if got := fmt.Sprint(texts(lost)[0]); got != "[before 10 11 12 13 14 15]" {
		t.Error(got)
	}
}

func TestSourceTellsToolsItsGroup(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "group", 1)
	b.put(t, topic, values(0, 4, 0)...)
	log := proxytest.NewLog("lin")
	read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.Group = "tools-" + topic })
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = "tools-" + topic
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{0}
	req.Topics = append(req.Topics, rt)
	proxytest.Until(t, 30*time.Second, "the group's offset", func() bool {
		resp, err := req.RequestWith(t.Context(), b.client)
		return err == nil && len(resp.Topics) == 1 && resp.Topics[0].Partitions[0].Offset == 4
	})
}

func TestSourceFetchesNoMoreThanTheLogTakes(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "full", 1)
	var records []*kgo.Record
	const n = 60
	for range n {
		records = append(records, &kgo.Record{Value: make([]byte, 200<<10)})
	}
	b.put(t, topic, records...)
	log := proxytest.NewLog("lin")
	log.SetFull(true)
	r := read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.PrefetchBytes = 2 << 20 })
	proxytest.Until(t, 20*time.Second, "something is held", func() bool { return r.source.Held() > 0 })
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		<-tick.C
		if held := r.source.Held(); held > 5<<20 {
			t.Fatalf("%d bytes are held while the log takes nothing", held)
		}
	}
	log.SetFull(false)
	waitEnd(t, log, n, r)
	proxytest.Until(t, 10*time.Second, "nothing is held", func() bool { return r.source.Held() == 0 })
}

func TestSourceNamesATupleThatIsTooLarge(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "large", 1)
	b.put(t, topic, values(0, 1, 0)...)
	log := proxytest.NewLog("lin")
	log.FailAppend(proxytest.FaultTooLarge)
	read(t, b, topic, log).halts(t, "offset 0", topic, "larger than the log takes")
}

func TestSourceGivesIDs(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "ids", 1)
	keyed := func(key string) *kgo.Record { return &kgo.Record{Key: []byte(key)} }
	b.put(t, topic, keyed("a"), keyed("b"), keyed("a"), &kgo.Record{})
	rule, err := proxy.ParseIDRule("key")
	if err != nil {
		t.Fatal(err)
	}
	log := proxytest.NewLog("lin")
	r := read(t, b, topic, log, func(c *kafkaio.SourceConfig) { c.ID, c.Scope = rule, "s" })
	waitEnd(t, log, 3, r)
	proxytest.Until(t, 10*time.Second, "counts", func() bool {
		st := r.source.Stats()
		return st.Tuples == 4 && st.Duplicates == 1 && st.WithoutID == 1 && st.Lag == 0
	})
}
