package kafkaio_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// drive runs a sink until the outlet's offset n is acknowledged, or the sink stops by itself: then it says why.
func drive(t *testing.T, s *kafkaio.Sink, out proxy.Outlet, inner *proxytest.Outlet, n uint64) (problems []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(proxytest.Within(t, 20*time.Second))
	defer cancel()
	ended, acked := make(chan error, 1), make(chan error, 1)
	go func() { ended <- s.Run(ctx, out) }()
	go func() { acked <- inner.WaitAcked(ctx, n) }()
	select {
	case err := <-ended:
		return []string{"the sink stopped: " + err.Error()}
	case err := <-acked:
		cancel()
		if stopped := <-ended; !errors.Is(stopped, ctx.Err()) {
			problems = append(problems, "the sink ends with "+stopped.Error())
		}
		if err != nil {
			return []string{"not all is acknowledged: " + err.Error() + ": " + s.Stats().LastError}
		}
	}
	return problems
}

// feed20 is the end of a log with 20 tuples in 4 batches.
func feed20() *proxytest.Outlet {
	log := proxytest.NewLog("lin")
	for i := range 4 {
		log.Feed(numbered(i*5, 5, 4))
	}
	return log.Outlet("sink")
}

func expect(t *testing.T, f *fake, problems []string) {
	t.Helper()
	for _, p := range append(problems, verdict(f.committed(), 20, "lin")...) {
		t.Error(p)
	}
}

func mutantShows(t *testing.T, f *fake, problems []string) {
	t.Helper()
	problems = append(problems, verdict(f.committed(), 20, "lin")...)
	if len(problems) == 0 {
		t.Error("without the protection all is well: the test cannot fail")
	}
	t.Log(problems)
}

// crashBeforeAck lets a first owner write all, but acknowledge nothing.
func crashBeforeAck(t *testing.T, f *fake, out *proxytest.Outlet, limit int) {
	t.Helper()
	first := &tenure{Outlet: out}
	ctx, cancel := context.WithCancel(proxytest.Within(t, 20*time.Second))
	out.HoldAcks(true)
	ended := make(chan error, 1)
	s := f.sink(t, kafkaio.Mutant{}, func(c *kafkaio.SinkConfig) { c.TxnBytes = limit })
	go func() { ended <- s.Run(ctx, first) }()
	proxytest.Until(t, 20*time.Second, "a transaction to be committed", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.markers) > 0
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	out.HoldAcks(false)
}

// A coordinator that was replaced still answers, stale: it has the marker of before the first transaction.
func staleCoordinator(t *testing.T, m kafkaio.Mutant) (*fake, []string) {
	t.Helper()
	f := newFake(t, 2, 1)
	out := feed20()
	crashBeforeAck(t, f, out, 1<<20)
	var lookups atomic.Int32
	f.script = func(node int32, req kmsg.Request) kmsg.Response {
		switch req := req.(type) {
		case *kmsg.FindCoordinatorRequest:
			if req.CoordinatorType == 0 && lookups.Add(1) == 1 {
				resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse) //nolint:errcheck // kmsg's own pair
				resp.NodeID = 1
				resp.Host, resp.Port = split(f.addrs[1])
				return resp
			}
		case *kmsg.OffsetCommitRequest:
			if node == 1 {
				return offsetCommitted(req, kerr.NotCoordinator.Code)
			}
		case *kmsg.OffsetFetchRequest:
			if node == 1 {
				return offsetsFetched(req, func(int32) (int64, string, int16) { return -1, "", 0 })
			}
		}
		return nil
	}
	return f, drive(t, f.sink(t, m), out, out, 20)
}

func TestStaleCoordinatorIsNotBelieved(t *testing.T) {
	f, problems := staleCoordinator(t, kafkaio.Mutant{})
	expect(t, f, problems)
}

func TestMutantNoSentinel(t *testing.T) {
	f, problems := staleCoordinator(t, kafkaio.NoSentinel())
	mutantShows(t, f, problems)
}

// An undecided transaction answers 88 with offset -1: it does not mean that there is no marker.
func undecided(t *testing.T, m kafkaio.Mutant) (*fake, []string) {
	t.Helper()
	f := newFake(t, 1, 1)
	out := feed20()
	crashBeforeAck(t, f, out, 1<<20)
	var asked atomic.Int32
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		if req, ok := req.(*kmsg.OffsetFetchRequest); ok && asked.Add(1) <= 5 {
			return offsetsFetched(req, func(int32) (int64, string, int16) { return -1, "", kerr.UnstableOffsetCommit.Code })
		}
		return nil
	}
	return f, drive(t, f.sink(t, m), out, out, 20)
}

func TestUndecidedIsNotAbsent(t *testing.T) {
	f, problems := undecided(t, kafkaio.Mutant{})
	expect(t, f, problems)
}

func TestMutantUndecidedTakenForAbsent(t *testing.T) {
	f, problems := undecided(t, kafkaio.UnstableAbsent())
	mutantShows(t, f, problems)
}

// The connection breaks at EndTxn, before or after the coordinator decided.
func unknownEnd(t *testing.T, m kafkaio.Mutant, decided bool) (*fake, []string) {
	t.Helper()
	f := newFake(t, 1, 3)
	out := feed20()
	var ends atomic.Int32
	dropped := make(chan struct{})
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		if end, ok := req.(*kmsg.EndTxnRequest); ok && !decided && ends.Load() == 0 {
			return end.ResponseKind() // never sent, see after
		}
		return nil
	}
	f.after = func(_ int32, req kmsg.Request) bool {
		_, ok := req.(*kmsg.EndTxnRequest)
		if ok && ends.Add(1) == 1 {
			close(dropped)
			return true
		}
		return false
	}
	problems := drive(t, f.sink(t, m, func(c *kafkaio.SinkConfig) { c.TxnBytes = 1 }), out, out, 20)
	<-dropped
	return f, problems
}

func TestUnknownEndIsSettledByTheMarker(t *testing.T) {
	for _, decided := range []bool{false, true} {
		f, problems := unknownEnd(t, kafkaio.Mutant{}, decided)
		expect(t, f, problems)
	}
}

func TestMutantUnknownEndTakenForCommit(t *testing.T) {
	f, problems := unknownEnd(t, kafkaio.TrustUnknown(), false)
	mutantShows(t, f, problems)
}

// Codes that lead back to the take-over, and codes that are only repeated.
func TestTransactionCodes(t *testing.T) {
	t.Parallel()
	type answer = func(kmsg.Request) kmsg.Response
	refuse := func(times int32, match answer) func(int32, kmsg.Request) kmsg.Response {
		var n atomic.Int32
		return func(_ int32, req kmsg.Request) kmsg.Response {
			resp := match(req)
			if resp == nil || n.Add(1) > times {
				return nil
			}
			return resp
		}
	}
	addPartitions := func(code int16) answer {
		return func(req kmsg.Request) kmsg.Response {
			add, ok := req.(*kmsg.AddPartitionsToTxnRequest)
			if !ok {
				return nil
			}
			resp := add.ResponseKind().(*kmsg.AddPartitionsToTxnResponse) //nolint:errcheck // kmsg's own pair
			for _, topic := range add.Topics {
				rt := kmsg.NewAddPartitionsToTxnResponseTopic()
				rt.Topic = topic.Topic
				for _, p := range topic.Partitions {
					rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
					rp.Partition, rp.ErrorCode = p, code
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp
		}
	}
	initID := func(code int16) answer {
		return func(req kmsg.Request) kmsg.Response {
			if req, ok := req.(*kmsg.InitProducerIDRequest); ok {
				resp := req.ResponseKind().(*kmsg.InitProducerIDResponse) //nolint:errcheck // kmsg's own pair
				resp.ErrorCode = code
				return resp
			}
			return nil
		}
	}
	endTxn := func(code int16) answer {
		return func(req kmsg.Request) kmsg.Response {
			if req, ok := req.(*kmsg.EndTxnRequest); ok {
				resp := req.ResponseKind().(*kmsg.EndTxnResponse) //nolint:errcheck // kmsg's own pair
				resp.ErrorCode = code
				return resp
			}
			return nil
		}
	}
	marker := func(code int16) answer {
		return func(req kmsg.Request) kmsg.Response {
			if req, ok := req.(*kmsg.TxnOffsetCommitRequest); ok {
				return txnOffsetCommitted(req, code)
			}
			return nil
		}
	}
	produce := func(code int16) answer {
		return func(req kmsg.Request) kmsg.Response {
			if req, ok := req.(*kmsg.ProduceRequest); ok {
				return produced(req, func(int32, []byte) int16 { return code })
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		match     answer
		takeOvers uint64
	}{
		"51 in the take-over":       {initID(51), 1},
		"14 in the take-over":       {initID(14), 1},
		"51 for partitions":         {addPartitions(51), 1},
		"16 for partitions":         {addPartitions(16), 1},
		"90 for partitions":         {addPartitions(90), 4},
		"47 for partitions":         {addPartitions(47), 4},
		"48 at the end":             {endTxn(48), 4},
		"49 at the end":             {endTxn(49), 4},
		"90 at the end, sole owner": {endTxn(90), 4},
		"16 at the end":             {endTxn(16), 1},
		"14 for the marker":         {marker(14), 1},
		"47 for the marker":         {marker(47), 4},
		"6 for records":             {produce(6), 1},
		"19 for records":            {produce(19), 1},
		"46 is as good as done":     {nil, 1},
		"45 for records":            {produce(45), 4},
		"47 for records":            {produce(47), 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 1, 3)
			if c.match != nil {
				f.script = refuse(3, c.match)
			}
			out := feed20()
			s := f.sink(t, kafkaio.Mutant{})
			expect(t, f, drive(t, s, out, out, 20))
			if got := s.Stats().TakeOvers; got != c.takeOvers {
				t.Errorf("%d take-overs, due are %d", got, c.takeOvers)
			}
		})
	}
}

// wide is an outlet whose odd batches end where no Commit ended.
type wide struct{ *proxytest.Outlet }

func (w wide) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	got, err := w.Outlet.Read(ctx, after, maxBytes)
	got = slices.Clone(got)
	for i := range got {
		got[i].Boundary = got[i].Last%10 == 0
	}
	return got, err
}

func boundaries(t *testing.T, m kafkaio.Mutant) (problems []string) {
	t.Helper()
	f := newFake(t, 1, 3)
	out := feed20()
	problems = drive(t, f.sink(t, m, func(c *kafkaio.SinkConfig) { c.TxnBytes = 1 }), wide{out}, out, 20)
	for _, n := range f.markers {
		if n%10 != 0 {
			problems = append(problems, "a transaction ends in the middle of a Commit")
		}
	}
	return append(problems, verdict(f.committed(), 20, "lin")...)
}

func TestTransactionsEndWhereCommitsEnd(t *testing.T) {
	for _, p := range boundaries(t, kafkaio.Mutant{}) {
		t.Error(p)
	}
}

func TestMutantTornRange(t *testing.T) {
	if problems := boundaries(t, kafkaio.TornRange()); len(problems) == 0 {
		t.Error("without the protection all is well: the test cannot fail")
	}
}

// Markers that do not fit stop the sink with the reason, and the option lets it go on.
func TestForeignMarkerStops(t *testing.T) {
	f := newFake(t, 1, 1)
	out := feed20()
	f.offset[0] = offset{7, kafkaio.NewMarker("other", "in", 7, 0).String()}
	err := f.sink(t, kafkaio.Mutant{}).Run(proxytest.Within(t, 20*time.Second), out)
	if _, ok := errors.AsType[*proxy.Halt](err); !ok || !strings.Contains(err.Error(), "lineage other") ||
		!strings.Contains(err.Error(), "resume=confirmed") {
		t.Fatalf("a foreign marker: %v", err)
	}
	if len(f.produced) > 0 {
		t.Fatal("something was written all the same")
	}
	s := f.sink(t, kafkaio.Mutant{}, func(c *kafkaio.SinkConfig) { c.Resume = "confirmed" })
	expect(t, f, drive(t, s, out, out, 20))
}

// A leader that lost its tenure steps down without a word about markers.
func TestFormerLeaderStepsDownQuietly(t *testing.T) {
	f := newFake(t, 1, 1)
	inner := feed20()
	out := &tenure{Outlet: inner}
	f.offset[0] = offset{7, kafkaio.NewMarker("other", "in", 7, 0).String()}
	f.after = func(_ int32, req kmsg.Request) bool {
		if _, ok := req.(*kmsg.OffsetFetchRequest); ok {
			out.over.Store(true)
		}
		return false
	}
	err := f.sink(t, kafkaio.Mutant{}).Run(proxytest.Within(t, 20*time.Second), out)
	if _, halted := errors.AsType[*proxy.Halt](err); halted || !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Fatalf("a former leader says %v", err)
	}
}

// Acknowledgements fail in every way that the contract allows.
func TestAcksFail(t *testing.T) {
	f := newFake(t, 1, 3)
	out := feed20()
	out.FailAck(proxytest.FaultUnknownWritten, proxytest.FaultUnknownLost, proxytest.FaultUnavailable)
	s := f.sink(t, kafkaio.Mutant{}, func(c *kafkaio.SinkConfig) { c.TxnBytes = 1 })
	expect(t, f, drive(t, s, out, out, 20))
}

// A marker is written again while nothing flows, so that brokers do not forget it.
func TestMarkerIsRefreshed(t *testing.T) {
	f := newFake(t, 1, 1)
	out := feed20()
	s := f.sink(t, kafkaio.Mutant{})
	s.Refresh(20 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, out) }()
	proxytest.Until(t, 20*time.Second, "five markers", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.markers) > 5
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if last := f.markers[len(f.markers)-1]; last != 20 {
		t.Errorf("the marker stands at %d", last)
	}
	expect(t, f, drive(t, f.sink(t, kafkaio.Mutant{}), out, out, 20))
}

func TestOldBrokerIsRefused(t *testing.T) {
	f := newFake(t, 1, 1)
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		if req, ok := req.(*kmsg.ApiVersionsRequest); ok {
			resp := req.ResponseKind().(*kmsg.ApiVersionsResponse) //nolint:errcheck // kmsg's own pair
			for key := range int16(62) {
				k := kmsg.NewApiVersionsResponseApiKey()
				k.ApiKey, k.MaxVersion = key, 9
				resp.ApiKeys = append(resp.ApiKeys, k)
			}
			return resp
		}
		return nil
	}
	_, err := f.sink(t, kafkaio.Mutant{}).Check(proxytest.Within(t, 10*time.Second))
	if err == nil || !strings.Contains(err.Error(), "older than Kafka 3.7") {
		t.Error(err)
	}
}

func TestUnreachableBrokerIsNamed(t *testing.T) {
	out := feed20()
	s := newSink(t, &broker{addr: "127.0.0.1:1"}, "t")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, out) }()
	proxytest.Until(t, 20*time.Second, "the broker is named", func() bool {
		return strings.Contains(s.Stats().LastError, "127.0.0.1:1") && s.Stats().Retries > 2
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
