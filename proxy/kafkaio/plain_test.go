package kafkaio_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

func plainly(c *kafkaio.SinkConfig) { c.Transactional = false }

// refuseFirst refuses the first times batches of one partition.
func refuseFirst(partition int32, times int, code int16, f *fake) {
	var mu sync.Mutex
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		p, ok := req.(*kmsg.ProduceRequest)
		if !ok {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		refused := false
		resp := produced(p, func(n int32, _ []byte) int16 {
			if n == partition && times > 0 {
				times--
				refused = true
				return code
			}
			return 0
		})
		if !refused {
			return nil
		}
		// The others are taken as a healthy broker would.
		for i := range p.Topics {
			p.Topics[i].Partitions = slices.DeleteFunc(p.Topics[i].Partitions, func(rp kmsg.ProduceRequestTopicPartition) bool {
				return rp.Partition == partition
			})
		}
		f.answer(0, p)
		return resp
	}
}

func TestOnlyTheFailingPartitionIsRetried(t *testing.T) {
	for _, code := range []int16{kerr.NotLeaderForPartition.Code, kerr.NotEnoughReplicas.Code, kerr.RequestTimedOut.Code} {
		f := newFake(t, 1, 3)
		refuseFirst(1, 3, code, f)
		out := feed20()
		s := f.sink(t, kafkaio.Mutant{}, plainly)
		expect(t, f, drive(t, s, out, out, 20))
		for p := range int32(3) {
			if n := len(slices.DeleteFunc(slices.Clone(f.produced), func(q int32) bool { return q != p })); n != 1 {
				t.Errorf("partition %d got %d batches, due is 1", p, n)
			}
		}
		if s.Stats().Resets != 0 || s.Stats().Retries == 0 {
			t.Errorf("%+v", s.Stats())
		}
	}
}

// lostAnswer lets a broker take the first batches and break the connection instead of answering.
func lostAnswer(t *testing.T, m kafkaio.Mutant) (*fake, []string) {
	t.Helper()
	f := newFake(t, 1, 3)
	var once sync.Once
	f.after = func(_ int32, req kmsg.Request) (cut bool) {
		if _, ok := req.(*kmsg.ProduceRequest); ok {
			once.Do(func() { cut = true })
		}
		return cut
	}
	out := feed20()
	return f, drive(t, f.sink(t, m, plainly), out, out, 20)
}

func TestLostAnswerIsNotWrittenTwice(t *testing.T) {
	f, problems := lostAnswer(t, kafkaio.Mutant{})
	expect(t, f, problems)
}

func TestMutantRetryNumberedAnew(t *testing.T) {
	f, problems := lostAnswer(t, kafkaio.FreshSequences())
	mutantShows(t, f, problems)
}

func TestProducerIsRebuiltAfterASequenceError(t *testing.T) {
	for _, code := range []int16{
		kerr.OutOfOrderSequenceNumber.Code, kerr.UnknownProducerID.Code, kerr.InvalidProducerEpoch.Code,
	} {
		f := newFake(t, 1, 3)
		refuseFirst(2, 1, code, f)
		out := feed20()
		s := f.sink(t, kafkaio.Mutant{}, plainly)
		expect(t, f, drive(t, s, out, out, 20))
		if s.Stats().Resets != 1 {
			t.Errorf("code %d: %+v", code, s.Stats())
		}
	}
}

// What a broker refuses for good becomes a dead letter, and nothing else is held up by it.
func TestRefusedForGood(t *testing.T) {
	for _, transactional := range []bool{true, false} {
		for _, code := range []int16{kerr.InvalidRecord.Code, kerr.InvalidTimestamp.Code, kerr.MessageTooLarge.Code} {
			f := newFake(t, 1, 3)
			f.script = func(_ int32, req kmsg.Request) kmsg.Response {
				p, ok := req.(*kmsg.ProduceRequest)
				if !ok {
					return nil
				}
				bad := int32(-1)
				for _, rp := range p.Topics[0].Partitions {
					if strings.Contains(string(rp.Records), "poison") {
						bad = rp.Partition
					}
				}
				if bad < 0 {
					return nil
				}
				good := *p
				good.Topics = []kmsg.ProduceRequestTopic{{Topic: "t"}}
				for _, rp := range p.Topics[0].Partitions {
					if rp.Partition != bad {
						good.Topics[0].Partitions = append(good.Topics[0].Partitions, rp)
					}
				}
				f.answer(0, &good)
				return produced(p, func(n int32, _ []byte) int16 {
					if n == bad {
						return code
					}
					return 0
				})
			}
			log := proxytest.NewLog("lin")
			log.Feed(numbered(0, 10, 4))
			log.Feed(logbuffer.Batch{Source: "x", Tuples: []logbuffer.Tuple{{Key: []byte("k1"), Value: []byte("poison")}}})
			log.Feed(numbered(11, 9, 4))
			out := log.Outlet("sink")
			s := f.sink(t, kafkaio.Mutant{}, func(c *kafkaio.SinkConfig) { c.Transactional = transactional })
			for _, p := range drive(t, s, out, out, 20) {
				t.Error(p)
			}
			got := verdict(f.committed(), 20, "lin")
			if len(got) != 1 || got[0] != "of 20: lost 1, duplicated 0" {
				t.Errorf("transactional %v, code %d: %v", transactional, code, got)
			}
			letters := out.Letters()
			if len(letters) != 1 || letters[0].From != 11 || string(letters[0].Tuple.Value) != "poison" ||
				!strings.Contains(letters[0].Reason, "topic t") {
				t.Errorf("transactional %v, code %d: letters %+v", transactional, code, letters)
			}
		}
	}
}

// The owner dies between the transaction and the acknowledgement that carries its dead letters.
func lettersOfTheDead(t *testing.T, m kafkaio.Mutant) []logbuffer.Letter {
	t.Helper()
	f := newFake(t, 1, 1)
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		if req, ok := req.(*kmsg.DescribeConfigsRequest); ok {
			resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse) //nolint:errcheck // kmsg's own pair
			limit := "1000"
			res := kmsg.NewDescribeConfigsResponseResource()
			res.ResourceName = "t"
			c := kmsg.NewDescribeConfigsResponseResourceConfig()
			c.Name, c.Value = "max.message.bytes", &limit
			res.Configs = append(res.Configs, c)
			resp.Resources = append(resp.Resources, res)
			return resp
		}
		return nil
	}
	log := proxytest.NewLog("lin")
	big := numbered(0, 3, 1)
	big.Tuples[1].Value = make([]byte, 2000)
	log.Feed(big)
	out := log.Outlet("sink")
	crashBeforeAck(t, f, out, 1<<20)
	for _, p := range drive(t, f.sink(t, m), out, out, 3) {
		t.Error(p)
	}
	if n := len(f.committed()[0]); n != 2 {
		t.Errorf("%d records, due are 2", n)
	}
	return out.Letters()
}

func TestLettersOfADeadOwnerAreWritten(t *testing.T) {
	letters := lettersOfTheDead(t, kafkaio.Mutant{})
	if len(letters) != 1 || letters[0].From != 2 || !strings.Contains(letters[0].Reason, "max.message.bytes") ||
		len(letters[0].Tuple.Value) != 2000 {
		t.Errorf("letters %+v", letters)
	}
}

func TestMutantLettersForgotten(t *testing.T) {
	if letters := lettersOfTheDead(t, kafkaio.NoLetters()); len(letters) != 0 {
		t.Error("without the protection the letters are there: the test cannot fail")
	}
}

func TestPlainSinkOnRealKafka(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "plain", 3)
	log := proxytest.NewLog("lin")
	out := log.Outlet("sink")
	const n = 5000
	for i := 0; i < n; i += 50 {
		log.Feed(numbered(i, 50, 40))
	}
	for _, p := range drive(t, newSink(t, b, topic, plainly), out, out, n) {
		t.Error(p)
	}
	proxytest.Until(t, 5*time.Second, "acknowledged", func() bool { return out.Acked() == n })
	judge(t, b.consume(t, topic, 3), n, "lin")
}
