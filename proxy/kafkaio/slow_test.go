package kafkaio_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// A broker takes 1 KiB in time, but not what is read at once.
func slowBroker(t *testing.T, m kafkaio.Mutant) (s *kafkaio.Sink, problems []string) {
	t.Helper()
	f := newFake(t, 1, 1)
	f.script = func(_ int32, req kmsg.Request) kmsg.Response {
		if p, ok := req.(*kmsg.ProduceRequest); ok && len(p.Topics[0].Partitions[0].Records) > 1<<10 {
			<-t.Context().Done()
		}
		return nil
	}
	out := feed20()
	s = f.sink(t, m, func(c *kafkaio.SinkConfig) { c.TxnTimeout = 200 * time.Millisecond })
	ctx, cancel := context.WithCancel(proxytest.Within(t, 20*time.Second))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, out) }()
	waiting, stop := context.WithTimeout(ctx, 4*time.Second)
	if err := out.WaitAcked(waiting, 20); err != nil {
		problems = append(problems, err.Error())
	}
	stop()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	return s, append(problems, verdict(f.committed(), 20, "lin")...)
}

func TestSlowBrokerGetsSmallerTransactions(t *testing.T) {
	t.Parallel()
	s, problems := slowBroker(t, kafkaio.Mutant{})
	for _, p := range problems {
		t.Error(p)
	}
	if s.Stats().TakeOvers < 2 {
		t.Error("no transaction took too long: the test cannot fail")
	}
}

func TestMutantSteadyRanges(t *testing.T) {
	t.Parallel()
	if _, problems := slowBroker(t, kafkaio.SteadyRanges()); len(problems) == 0 {
		t.Error("without the protection all is well: the test cannot fail")
	}
}
