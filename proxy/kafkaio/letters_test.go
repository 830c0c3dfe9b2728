package kafkaio_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// denied lets a fake's clients write to the topic "t" only.
func denied(f *fake) {
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		m, ok := req.(*kmsg.MetadataRequest)
		if !ok {
			return nil
		}
		resp := f.metadata(m).(*kmsg.MetadataResponse) //nolint:errcheck // the fake's own
		for i := range resp.Topics {
			resp.Topics[i].AuthorizedOperations = 1 << 3
			if name := *resp.Topics[i].Topic; name == "t" || strings.HasPrefix(name, "_") {
				resp.Topics[i].AuthorizedOperations |= 1 << 4
			}
		}
		return resp
	}
}

func routes(c *kafkaio.SinkConfig) { c.Routes = map[string]string{"a": "t", "b": "no", "c": "never"} }

// Tuples for topics that may not be written to alternate with others, so that a marker can name few of them.
func TestManyRefusalsDoNotStopTheSink(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string][]string{"labelled": {"a", "b"}, "for all": {""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 1, 1)
			denied(f)
			log := proxytest.NewLog("lin")
			const n = 3000
			for i := range n {
				b := numbered(i, 1, 1)
				b.Sink = labels[i%len(labels)]
				log.Feed(b)
			}
			out := log.Outlet("sink")
			for _, p := range drive(t, f.sink(t, kafkaio.Mutant{}, routes), out, out, n) {
				t.Error(p)
			}
			written, letters := n, 2*n // for all: each tuple is refused by two topics
			if len(labels) > 1 {
				written, letters = n/2, n/2
			}
			if got := len(f.committed()[0]); got != written {
				t.Errorf("%d records, due are %d", got, written)
			}
			if got := len(out.Letters()); got != letters {
				t.Errorf("%d dead letters, due are %d", got, letters)
			}
		})
	}
}

// Dead letters come in acknowledgements that the replicated log takes well.
func TestDeadLettersAreAcknowledgedInPieces(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{true, false} {
		f := newFake(t, 1, 1)
		denied(f)
		log := proxytest.NewLog("lin")
		const n = 64
		for i := range n {
			log.Feed(logbuffer.Batch{Source: "x", Sink: "b", Tuples: []logbuffer.Tuple{
				{Value: make([]byte, 50<<10), Position: int64(i)},
			}})
		}
		out := log.Outlet("sink")
		s := f.sink(t, kafkaio.Mutant{}, routes, func(c *kafkaio.SinkConfig) { c.Transactional = transactional })
		for _, p := range drive(t, s, out, out, n) {
			t.Error(p)
		}
		if got := out.Letters(); len(got) != n || got[n-1].From != n {
			t.Errorf("%d dead letters, due are %d", len(got), n)
		}
		for _, ack := range out.Acks() {
			if last := len(ack.Dead) - 1; last > 5 || last >= 0 && ack.Dead[last].From != ack.UpTo {
				t.Errorf("an acknowledgement up to %d with %d dead letters", ack.UpTo, last+1)
			}
		}
	}
}

// lostWhileBusy lets the tenure end while InitProducerId is answered "busy", and counts how often it is asked then.
func lostWhileBusy(t *testing.T, m kafkaio.Mutant) (asked int32) {
	t.Helper()
	f := newFake(t, 1, 1)
	out := &tenure{Outlet: feed20()}
	var count atomic.Int32
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		init, ok := req.(*kmsg.InitProducerIDRequest)
		if !ok || init.ProducerID < 0 {
			return nil
		}
		out.over.Store(true)
		if count.Add(1) > 3 {
			return nil
		}
		resp := init.ResponseKind().(*kmsg.InitProducerIDResponse) //nolint:errcheck // kmsg's own pair
		resp.ErrorCode = kerr.ConcurrentTransactions.Code
		return resp
	}
	s := f.sink(t, m, func(c *kafkaio.SinkConfig) { c.TxnBytes = 1 })
	err := s.Run(proxytest.Within(t, 20*time.Second), out)
	if !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Error(fmt.Errorf("a former leader says %w", err))
	}
	return count.Load()
}

func TestFormerLeaderAsksForNoEpoch(t *testing.T) {
	t.Parallel()
	if asked := lostWhileBusy(t, kafkaio.Mutant{}); asked != 1 {
		t.Errorf("InitProducerId was asked %d times, once while it led", asked)
	}
}

func TestMutantInitUnchecked(t *testing.T) {
	t.Parallel()
	if asked := lostWhileBusy(t, kafkaio.InitUnchecked()); asked == 1 {
		t.Error("without the protection all is well: the test cannot fail")
	}
}
