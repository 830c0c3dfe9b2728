package kafkaio_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

func TestSinkWritesOnce(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "once", 3)
	log := proxytest.NewLog("lin1")
	out := log.Outlet("sink")
	ctx, cancel := context.WithCancel(proxytest.Within(t, time.Minute))
	ended := make(chan error, 1)
	s := newSink(t, b, topic)
	go func() { ended <- s.Run(ctx, out) }()
	const n = 20000
	for i := 0; i < n; i += 50 {
		log.Feed(numbered(i, 50, 40))
	}
	if err := out.WaitAcked(ctx, n); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Records != n || st.DeadLetters != 0 || st.Transactions == 0 {
		t.Errorf("%+v", st)
	}
	judge(t, b.consume(t, topic, 3), n, "lin1")
}

// Old owners are killed and paused at random points of their transactions, and the paused ones come back later.
func TestSinkTakeOversAtRandomPoints(t *testing.T) {
	b := realKafka(t)
	topic := b.topic(t, "random", 3)
	log := proxytest.NewLog("lin2")
	out := log.Outlet("sink")
	ctx := proxytest.Within(t, 4*time.Minute)
	small := func(c *kafkaio.SinkConfig) { c.TxnBytes = 4 << 10 }
	n, takeOvers := 0, 60
	var paused []*running
	for i := range takeOvers {
		for range 20 {
			log.Feed(numbered(n, 10, 40))
			n += 10
		}
		r := lead(t, b, topic, out, small)
		before := out.Acked()
		if err := out.WaitAcked(ctx, min(before+1+rand.Uint64N(150), uint64(n))); err != nil {
			t.Fatalf("take-over %d: %v; %+v", i, err, r.sink.Stats())
		}
		wait, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(8000))*time.Microsecond)
		<-wait.Done()
		cancel()
		if rand.IntN(2) == 0 {
			r.kill()
		} else {
			r.line.hold()
			r.out.over.Store(true)
			paused = append(paused, r)
		}
		if len(paused) > 3 { // one of the paused comes back while another leads
			paused[0].line.resume()
			paused = paused[1:]
		}
	}
	last := lead(t, b, topic, out, small)
	for _, r := range paused {
		r.line.resume()
	}
	if err := out.WaitAcked(ctx, uint64(n)); err != nil {
		t.Fatalf("%v; %+v", err, last.sink.Stats())
	}
	judge(t, b.consume(t, topic, 3), n, "lin2")
	t.Logf("%d tuples over %d take-overs", n, takeOvers)
}

// pausedBetweenTransactions pauses a leader right after a commit, at the request that prepares its next transaction,
// and lets it go on while its successor leads.
func pausedBetweenTransactions(t *testing.T, m kafkaio.Mutant) (problems []string) {
	t.Helper()
	b := realKafka(t)
	topic := b.topic(t, "paused", 1)
	log := proxytest.NewLog("lin3")
	out := log.Outlet("sink")
	ctx := proxytest.Within(t, time.Minute)
	old := leadMutant(t, b, topic, out, m, func(c *kafkaio.SinkConfig) { c.TxnBytes = 1 })
	log.Feed(numbered(0, 1, 1))
	if err := out.WaitAcked(ctx, 1); err != nil {
		t.Fatal(err)
	}
	const initProducerID = 22
	arrived := old.line.hold(initProducerID)
	log.Feed(numbered(1, 1, 1), numbered(2, 1, 1), numbered(3, 1, 1))
	select {
	case <-arrived:
	case <-ctx.Done():
		t.Fatal("the leader does not come to its next transaction")
	}
	old.out.over.Store(true)
	now := lead(t, b, topic, out)
	if err := out.WaitAcked(ctx, 4); err != nil {
		t.Fatal(err)
	}
	now.line.quiet(t) // its next producer epoch is taken, nothing of it is open
	old.line.resume()
	select {
	case err := <-old.ended:
		old.ended <- err
	case <-ctx.Done():
		t.Fatal("the former leader does not step down")
	}
	log.Feed(numbered(4, 1, 1))
	all := make(chan error, 1)
	go func() { all <- out.WaitAcked(ctx, 5) }()
	select {
	case err := <-now.ended:
		now.ended <- err
		problems = append(problems, "the new leader stopped: "+err.Error())
	case err := <-all:
		if err != nil {
			t.Fatalf("%v: %+v", err, now.sink.Stats())
		}
	}
	return append(problems, verdict(b.consume(t, topic, 1), 5, "lin3")...)
}

func TestPausedLeaderWritesNothingAgain(t *testing.T) {
	for _, p := range pausedBetweenTransactions(t, kafkaio.Mutant{}) {
		t.Error(p)
	}
}

func TestMutantBareInitBetweenTransactions(t *testing.T) {
	if problems := pausedBetweenTransactions(t, kafkaio.BareInit()); len(problems) == 0 {
		t.Error("a bare InitProducerId between transactions does no harm: the test cannot fail")
	} else {
		t.Log(problems)
	}
}
