package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ftproxy/integration/fleet"
)

const (
	recovery   = 2 * time.Minute // for tuples to flow again after a fault
	forReplica = time.Minute     // for a replica to be ready again
)

// plan says what happens during a run.
type plan struct {
	tuples      int64 // per partition
	rate        int64 // tuples a second, all together
	kills       int   // SIGKILL of a leader
	pauses      int   // SIGSTOP of a leader
	pauseAtMost time.Duration
	allKills    int // SIGKILL of all replicas at once
	brokerKills int
	outage      time.Duration // of the broker, once
}

// planned returns the short plan, or the full one with -full.
func planned() plan {
	if *flags.full {
		return plan{
			tuples: 100_000, rate: 6000, kills: 10, pauses: 5, pauseAtMost: 8 * time.Second, allKills: 2,
			brokerKills: 2, outage: time.Minute,
		}
	}
	return plan{
		tuples: 10_000, rate: 4000, kills: 3, pauses: 1, pauseAtMost: 2 * time.Second, allKills: 1, brokerKills: 1,
	}
}

// driver causes the faults of a plan while tuples flow.
type driver struct {
	t       *testing.T
	plan    plan
	random  *rand.Rand
	fleets  []*fleet.Fleet
	broker  *fleet.Broker // nil: no faults of it
	arrived func() int64  // tuples that reached the end so far
	gates   chan<- int64  // see gates
	longest map[string]time.Duration
}

type event struct {
	name  string
	cause func(f *fleet.Fleet)
}

func (d *driver) events() []event {
	var list []event
	add := func(n int, name string, cause func(f *fleet.Fleet)) {
		for range n {
			list = append(list, event{name, cause})
		}
	}
	add(d.plan.kills, "leader killed", d.killLeader)
	add(d.plan.pauses, "leader paused", d.pauseLeader)
	add(d.plan.allKills, "all replicas killed", d.killAll)
	if d.broker != nil {
		add(d.plan.brokerKills, "broker killed", func(*fleet.Fleet) { d.breakBroker(0) })
		if d.plan.outage > 0 {
			add(1, "broker away", func(*fleet.Fleet) { d.breakBroker(d.plan.outage) })
		}
	}
	d.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// run causes all faults, one after the other, each in the middle of a share of the tuples of its own.
func (d *driver) run() {
	d.t.Helper()
	d.longest = make(map[string]time.Duration)
	events, total := d.events(), d.plan.tuples*partitions
	share := d.plan.tuples / int64(len(events)+1) * partitions // whole rounds over the partitions
	for i, e := range events {
		before := int64(i) * share
		d.gates <- before + share
		d.flow(fmt.Sprintf("before %q (%d of %d)", e.name, i+1, len(events)), before+share/4)
		began := time.Now()
		e.cause(d.fleets[d.random.IntN(len(d.fleets))])
		d.flow(fmt.Sprintf("after %q (%d of %d)", e.name, i+1, len(events)), before+share)
		took := time.Since(began)
		d.longest[e.name] = max(d.longest[e.name], took)
		d.t.Logf("%s: all of its share has arrived %v later", e.name, took.Round(time.Millisecond))
	}
	close(d.gates)
	d.flow("at the end", total)
}

// flow waits until a number of tuples has arrived.
func (d *driver) flow(when string, tuples int64) {
	d.t.Helper()
	within(d.t, recovery, fmt.Sprintf("%d tuples to arrive %s", tuples, when), func() bool {
		return d.arrived() >= tuples
	})
}

func (d *driver) leader(f *fleet.Fleet) *fleet.Replica {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), forReplica)
	defer cancel()
	leader, err := f.Leader(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	return leader
}

func (d *driver) ready(f *fleet.Fleet) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), forReplica)
	defer cancel()
	if err := f.Ready(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// rest waits for time to pass, which is what a pause or an outage is.
func (d *driver) rest(atMost time.Duration) {
	d.t.Helper()
	if err := until(d.t.Context(), time.Now().Add(atMost)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) killLeader(f *fleet.Fleet) {
	d.t.Helper()
	leader := d.leader(f)
	leader.Kill()
	d.rest(time.Duration(d.random.Int64N(int64(2 * time.Second))))
	d.start(f)
}

func (d *driver) pauseLeader(f *fleet.Fleet) {
	d.t.Helper()
	leader := d.leader(f).Process()
	leader.Pause()
	defer leader.Resume()
	d.rest(2*time.Second + time.Duration(d.random.Int64N(int64(d.plan.pauseAtMost-2*time.Second)+1)))
}

func (d *driver) killAll(f *fleet.Fleet) {
	d.t.Helper()
	f.Kill()
	d.start(f)
}

func (d *driver) start(f *fleet.Fleet) {
	d.t.Helper()
	if err := f.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.ready(f)
}

func (d *driver) breakBroker(away time.Duration) {
	d.t.Helper()
	d.broker.Kill()
	d.rest(away)
	ctx, cancel := context.WithTimeout(d.t.Context(), forReplica)
	defer cancel()
	if err := d.broker.Start(ctx); err != nil {
		d.t.Fatal(err)
	}
}
