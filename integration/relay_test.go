package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ftproxy/integration/checker"
	"ftproxy/integration/fleet"
	"ftproxy/integration/topic"
	"ftproxy/integration/traffic"
)

const (
	partitions = 3
	tupleSize  = 200
)

// relay is one run: an upstream topic, ftproxy once or twice, and whatever is behind it.
type relay struct {
	*driver
	upstream *topic.Upstream
}

// newRelay starts Kafka and prepares an upstream that writes the topic "in" of it.
func newRelay(t *testing.T, p plan) *relay {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute and a Kafka")
	}
	broker := kafka(t, "in", "out")
	// One more than there are faults at most, so that opening a gate never waits.
	opened := make(chan int64, 64)
	gate := &gates{opened: opened}
	return &relay{
		driver: &driver{
			t: t, plan: p, broker: broker, gates: opened, random: rand.New(rand.NewPCG(*flags.seed, 1)),
		},
		upstream: &topic.Upstream{
			Brokers: []string{broker.Addr}, Topic: "in", Partitions: partitions, Total: p.tuples, Size: tupleSize,
			Rate: p.rate, Seed: *flags.seed,
			Gate: func(ctx context.Context, n int64) error { return gate.pass(ctx, n*partitions) },
		},
	}
}

// add adds three replicas of an ftproxy to the run.
func (r *relay) add(name, source, sink string, env map[string]string) *fleet.Fleet {
	r.t.Helper()
	f := replicas(r.t, fleet.Config{Name: name, Replicas: 3, Source: source, Sink: sink, Env: env})
	r.fleets = append(r.fleets, f)
	return f
}

// run starts the replicas and the upstream, causes all faults and waits until everything has arrived.
func (r *relay) run(arrived func() int64) {
	r.t.Helper()
	r.arrived = arrived
	for _, f := range r.fleets {
		r.start(f)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- r.upstream.Run(ctx) }()
	r.driver.run()
	if err := <-sent; err != nil {
		r.t.Fatal(err)
	}
	for _, f := range r.fleets {
		r.drained(f)
	}
	if r.upstream.Repeated() < r.plan.tuples*partitions/10 {
		r.t.Fatalf("only %d of %d tuples were repeated", r.upstream.Repeated(), r.plan.tuples*partitions)
	}
}

// stop ends all replicas in an orderly way, which must be possible now.
func (r *relay) stop() {
	r.t.Helper()
	for _, f := range r.fleets {
		if err := f.Stop(forReplica); err != nil {
			r.t.Errorf("orderly end: %v", err)
		}
	}
}

// drained waits until a fleet's leader has everything acknowledged.
func (r *relay) drained(f *fleet.Fleet) {
	r.t.Helper()
	within(r.t, recovery, "acknowledgements of everything", func() bool {
		status, err := r.leader(f).Status(r.t.Context())
		return err == nil && status.Retained() == 0
	})
}

// delivered reads from the leader's ledger how much its sink has delivered.
func (r *relay) delivered(f *fleet.Fleet) func() int64 {
	var last atomic.Int64
	return func() int64 {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		if leader, err := f.Leader(ctx); err == nil {
			if status, err := leader.Status(ctx); err == nil {
				last.Store(max(last.Load(), status.Delivered()))
			}
		}
		return last.Load()
	}
}

func (r *relay) judge(v checker.Verdict) {
	r.t.Helper()
	r.t.Logf("repeated %d; %v", r.upstream.Repeated(), v)
	if !v.Clean() || v.Sent != r.plan.tuples*partitions {
		r.t.Errorf("verdict: %v\n%s", v, strings.Join(v.Notes, "\n"))
	}
}

func TestKafkaToKafkaUnderFaults(t *testing.T) {
	r := newRelay(t, planned())
	f := r.add("relay", "kafka://"+r.broker.Addr+"/in", "kafka://"+r.broker.Addr+"/out?replication=1",
		map[string]string{"DEDUP": "header:" + topic.IDHeader})
	r.run(r.delivered(f))
	r.stop()
	r.judge(audit(t, r.broker, "out", r.plan.tuples))
}

// TestMutantWithoutIDs shows that the runs above do contain repetitions, and that they would be seen.
func TestMutantWithoutIDs(t *testing.T) {
	r := newRelay(t, plan{tuples: 2_000, rate: 4_000})
	f := r.add("relay", "kafka://"+r.broker.Addr+"/in", "kafka://"+r.broker.Addr+"/out?replication=1", nil)
	r.run(r.delivered(f))
	r.flow("and all repetitions", r.plan.tuples*partitions+r.upstream.Repeated())
	verdict := audit(t, r.broker, "out", r.plan.tuples)
	if verdict.Lost+verdict.Torn+verdict.Reordered != 0 || verdict.Duplicated != r.upstream.Repeated() {
		t.Fatalf("%d tuples were repeated; %v", r.upstream.Repeated(), verdict)
	}
}

func TestKafkaToHTTPUnderFaults(t *testing.T) {
	r := newRelay(t, planned())
	address, file, count := downstream(t)
	r.add("relay", "kafka://"+r.broker.Addr+"/in", "http://"+address+"/tuples?batch=200&format=ndjson",
		map[string]string{"DEDUP": "header:" + topic.IDHeader, "SINK_IDEMPOTENT": "true"})
	r.run(count)
	r.stop()
	r.judge(judgeFile(t, file, r.plan.tuples))
}

func TestTwoInARowUnderFaults(t *testing.T) {
	r := newRelay(t, planned())
	second := r.add("second", "ftproxy://127.0.0.1:PORT", "kafka://"+r.broker.Addr+"/out?replication=1", nil)
	link := fleet.LoopbackAddr(second.Replicas[0].SourcePort)
	r.add("first", "kafka://"+r.broker.Addr+"/in", "ftproxy://"+link,
		map[string]string{"DEDUP": "header:" + topic.IDHeader})
	r.run(r.delivered(second))
	r.stop()
	r.judge(audit(t, r.broker, "out", r.plan.tuples))
}

// downstream serves a receiver that drops repeated keys; count is how many different tuples it has.
func downstream(t *testing.T) (address, file string, count func() int64) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tuples")
	receiver, err := traffic.OpenReceiver(file)
	if err != nil {
		t.Fatal(err)
	}
	server, err := traffic.Serve(t.Context(), "127.0.0.1:0", receiver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), receiver.Close()); err != nil {
			t.Error(err)
		}
	})
	return server.Addr, file, func() int64 { return int64(receiver.Count()) }
}

func judgeFile(t *testing.T, file string, total int64) checker.Verdict {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check := checker.New()
	for p := range partitions {
		check.Sent(topic.Stream(int32(p)), total)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		_, tuple, _ := bytes.Cut(lines.Bytes(), []byte("\t"))
		check.Seen(tuple)
	}
	return check.Verdict()
}
