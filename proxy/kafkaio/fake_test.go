package kafkaio_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy/kafkaio"
)

// fake is a scripted Kafka of several nodes that share one state: one topic "t", one group, transactions. What a script
// does not answer is answered as a healthy Kafka would.
type fake struct {
	addrs []string // by node id
	// script may answer in place of the fake (nil: it does not), after may cut the connection instead of answering.
	script func(node int32, req kmsg.Request) kmsg.Response
	after  func(node int32, req kmsg.Request) (cut bool)

	mu         sync.Mutex
	partitions int32
	records    [][]*kgo.Record // committed, by partition
	pending    [][]*kgo.Record // of the open transaction
	offset     map[int32]offset
	pendingAt  *offset
	markers    []uint64 // committed, in order
	id         int64
	epoch      int16
	next       map[string]int32 // sequences, by producer and partition
	inits      int
	produced   []int32 // the partitions of every batch that arrived, in order
}

type offset struct {
	at       int64
	metadata string
}

func newFake(t *testing.T, nodes int, partitions int32) *fake {
	t.Helper()
	f := &fake{
		partitions: partitions, records: make([][]*kgo.Record, partitions), pending: make([][]*kgo.Record, partitions),
		offset: map[int32]offset{}, epoch: -1, id: 7, next: map[string]int32{},
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for node := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.addrs = append(f.addrs, l.Addr().String())
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				stop := make(chan struct{})
				wg.Go(func() { f.serve(int32(node), c); close(stop) })
				wg.Go(func() {
					select {
					case <-stop:
					case <-t.Context().Done():
					}
					_ = c.Close()
				})
			}
		})
		t.Cleanup(func() { _ = l.Close() }) // before wg.Wait
	}
	return f
}

func (f *fake) serve(node int32, c net.Conn) {
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		r := kbin.Reader{Src: body}
		key, version, id := r.Int16(), r.Int16(), r.Int32()
		r.NullableString()
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.IsFlexible() {
			r.Int8()
		}
		if err := req.ReadFrom(r.Src); err != nil {
			return
		}
		var resp kmsg.Response
		if f.script != nil {
			resp = f.script(node, req)
		}
		if resp == nil {
			resp = f.answer(node, req)
		}
		if f.after != nil && f.after(node, req) {
			return
		}
		resp.SetVersion(version)
		out := kbin.AppendInt32(make([]byte, 4), id)
		if req.IsFlexible() && key != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// answer is what a healthy Kafka says.
func (f *fake) answer(node int32, req kmsg.Request) kmsg.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := req.ResponseKind().(*kmsg.ApiVersionsResponse) //nolint:errcheck // kmsg's own pair
		for key := range int16(62) {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MaxVersion = key, 16
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
		return resp
	case *kmsg.MetadataRequest:
		return f.metadata(req)
	case *kmsg.DescribeConfigsRequest:
		return req.ResponseKind()
	case *kmsg.FindCoordinatorRequest:
		resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse) //nolint:errcheck // kmsg's own pair
		resp.NodeID = 0
		resp.Host, resp.Port = split(f.addrs[0])
		return resp
	case *kmsg.InitProducerIDRequest:
		return f.initProducer(req)
	case *kmsg.AddPartitionsToTxnRequest:
		resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse) //nolint:errcheck // kmsg's own pair
		for _, t := range req.Topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p, f.owner(req.ProducerID, req.ProducerEpoch)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.AddOffsetsToTxnRequest:
		resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse) //nolint:errcheck // kmsg's own pair
		resp.ErrorCode = f.owner(req.ProducerID, req.ProducerEpoch)
		return resp
	case *kmsg.ProduceRequest:
		return f.produce(req)
	case *kmsg.TxnOffsetCommitRequest:
		code := f.owner(req.ProducerID, req.ProducerEpoch)
		if p := req.Topics[0].Partitions[0]; code == 0 {
			f.pendingAt = &offset{p.Offset, *p.Metadata}
		}
		return txnOffsetCommitted(req, code)
	case *kmsg.EndTxnRequest:
		return f.endTxn(req)
	case *kmsg.OffsetCommitRequest:
		p := req.Topics[0].Partitions[0]
		f.offset[p.Partition] = offset{p.Offset, *p.Metadata}
		return offsetCommitted(req, 0)
	case *kmsg.OffsetFetchRequest:
		return offsetsFetched(req, func(p int32) (int64, string, int16) {
			if o, ok := f.offset[p]; ok {
				return o.at, o.metadata, 0
			}
			return -1, "", 0
		})
	}
	_ = node
	return req.ResponseKind()
}

func (f *fake) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse) //nolint:errcheck // kmsg's own pair
	for node, addr := range f.addrs {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID = int32(node)
		b.Host, b.Port = split(addr)
		resp.Brokers = append(resp.Brokers, b)
	}
	for _, t := range req.Topics {
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic = t.Topic
		n := f.partitions
		if *t.Topic != "t" {
			n = 3
		}
		for p := range n {
			rp := kmsg.NewMetadataResponseTopicPartition()
			rp.Partition, rp.Replicas = p, []int32{0}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// owner is the error for one who is not, or no longer, the producer.
func (f *fake) owner(id int64, epoch int16) int16 {
	if id != f.id || epoch != f.epoch {
		return kerr.ProducerFenced.Code
	}
	return 0
}

func (f *fake) initProducer(req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse) //nolint:errcheck // kmsg's own pair
	f.inits++
	if req.TransactionalID == nil {
		f.id++
		resp.ProducerID = f.id
		return resp
	}
	f.pending, f.pendingAt = make([][]*kgo.Record, f.partitions), nil // aborted
	if req.ProducerID >= 0 {
		if resp.ErrorCode = f.owner(req.ProducerID, req.ProducerEpoch); resp.ErrorCode != 0 {
			return resp
		}
	}
	f.epoch++
	resp.ProducerID, resp.ProducerEpoch = f.id, f.epoch
	return resp
}

func (f *fake) endTxn(req *kmsg.EndTxnRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.EndTxnResponse) //nolint:errcheck // kmsg's own pair
	if resp.ErrorCode = f.owner(req.ProducerID, req.ProducerEpoch); resp.ErrorCode != 0 {
		return resp
	}
	if req.Commit {
		for p := range f.pending {
			f.records[p] = append(f.records[p], f.pending[p]...)
		}
		if f.pendingAt != nil {
			f.offset[0] = *f.pendingAt
			f.markers = append(f.markers, uint64(f.pendingAt.at))
		}
	}
	f.pending, f.pendingAt = make([][]*kgo.Record, f.partitions), nil
	return resp
}

// produce takes batches whose sequence is due and answers repeats of the last one as the first time.
func (f *fake) produce(req *kmsg.ProduceRequest) kmsg.Response {
	return produced(req, func(p int32, data []byte) int16 {
		f.produced = append(f.produced, p)
		id := string(binary.BigEndian.AppendUint32(data[43:53:53], uint32(p))) // producer and epoch
		first := int32(binary.BigEndian.Uint32(data[53:]))
		n := int32(binary.BigEndian.Uint32(data[57:]))
		switch due := f.next[id]; {
		case first+n == due:
			return kerr.DuplicateSequenceNumber.Code
		case first != due:
			return kerr.OutOfOrderSequenceNumber.Code
		}
		f.next[id] = first + n
		rp := &kmsg.FetchResponseTopicPartition{Partition: p, RecordBatches: data}
		got, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Topic: "t", Partition: p}, rp,
			kgo.DefaultDecompressor(), nil)
		if got.Err != nil || len(got.Records) != int(n) {
			return kerr.CorruptMessage.Code
		}
		if req.TransactionID != nil {
			f.pending[p] = append(f.pending[p], got.Records...)
		} else {
			f.records[p] = append(f.records[p], got.Records...)
		}
		return 0
	})
}

func produced(req *kmsg.ProduceRequest, each func(p int32, data []byte) int16) *kmsg.ProduceResponse {
	resp := req.ResponseKind().(*kmsg.ProduceResponse) //nolint:errcheck // kmsg's own pair
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, each(p.Partition, p.Records)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func txnOffsetCommitted(req *kmsg.TxnOffsetCommitRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse) //nolint:errcheck // kmsg's own pair
	rt := kmsg.NewTxnOffsetCommitResponseTopic()
	rt.Topic = req.Topics[0].Topic
	rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
	rp.Partition, rp.ErrorCode = req.Topics[0].Partitions[0].Partition, code
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}

func offsetCommitted(req *kmsg.OffsetCommitRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse) //nolint:errcheck // kmsg's own pair
	rt := kmsg.NewOffsetCommitResponseTopic()
	rt.Topic = req.Topics[0].Topic
	rp := kmsg.NewOffsetCommitResponseTopicPartition()
	rp.Partition, rp.ErrorCode = req.Topics[0].Partitions[0].Partition, code
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}

func offsetsFetched(req *kmsg.OffsetFetchRequest, each func(p int32) (int64, string, int16)) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse) //nolint:errcheck // kmsg's own pair
	g := kmsg.NewOffsetFetchResponseGroup()
	g.Group = req.Groups[0].Group
	for _, t := range req.Groups[0].Topics {
		rt := kmsg.NewOffsetFetchResponseGroupTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			var metadata string
			rp.Partition = p
			rp.Offset, metadata, rp.ErrorCode = each(p)
			rp.Metadata = &metadata
			rt.Partitions = append(rt.Partitions, rp)
		}
		g.Topics = append(g.Topics, rt)
	}
	resp.Groups = append(resp.Groups, g)
	return resp
}

func split(addr string) (host string, port int32) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return "", 0
	}
	return a.IP.String(), int32(a.Port)
}

func (f *fake) committed() [][]*kgo.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([][]*kgo.Record(nil), f.records...)
}

func (f *fake) sink(t *testing.T, m kafkaio.Mutant, change ...func(*kafkaio.SinkConfig)) *kafkaio.Sink {
	t.Helper()
	s := newSink(t, &broker{addr: f.addrs[0]}, "t", change...)
	s.Mutate(m)
	return s
}
