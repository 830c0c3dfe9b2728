package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"ftproxy/integration/fleet"
)

const (
	faultPoll  = 10 * time.Millisecond
	stallFor   = 3 * time.Second
	gapSettles = 500 * time.Millisecond // deliveries go on this long before a gap counts as over
)

// fault is something that the demo does to itself once a share of the tuples was delivered.
type fault struct {
	share float64
	cause func(ctx context.Context) error
}

// faults spreads what happens evenly over the run.
func (d *demo) faults() []fault {
	list := []fault{
		{0.15, d.crashDownstream},
		{0.30, d.crashUpstream},
		{0.45, d.stallDownstream},
		{0.62, d.crashDownstream},
		{0.78, d.crashUpstream},
	}
	for i := range d.cmd.Kills {
		list = append(list, fault{0.04 + 0.86*float64(i)/float64(d.cmd.Kills), d.killLeader})
	}
	slices.SortStableFunc(list, func(a, b fault) int { return cmp.Compare(a.share, b.share) })
	return list
}

// play lets the tuples flow and causes each fault when it is due.
func (d *demo) play(ctx context.Context) error {
	for _, next := range d.faults() {
		due := int64(next.share * float64(d.cmd.Tuples))
		err := d.waitMoving(ctx, "the tuples to flow", func() bool { return d.record.counts().delivered >= due })
		if err != nil {
			return err
		}
		if err := next.cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killLeader kills the leader, waits until tuples arrive downstream again, and starts the replica anew.
func (d *demo) killLeader(ctx context.Context) error {
	leader, err := d.fleet.Leader(ctx)
	if err != nil {
		return err
	}
	d.kills++
	d.record.gap.Open()
	leader.Kill()
	d.out.say("SIGKILL %s, the leader", leader.Node)
	if len(d.fleet.Replicas) == 1 {
		if err = leader.Start(); err != nil {
			return err
		}
	}
	err = d.waitMoving(ctx, "deliveries after a kill", func() bool {
		return d.record.gap.Settled(gapSettles) || d.record.counts().delivered >= d.cmd.Tuples
	})
	if err != nil {
		return err
	}
	d.out.say("tuples arrive again: longest gap %v", d.record.closeGap().Round(time.Millisecond))
	if err := leader.Start(); err != nil {
		return err
	}
	if err := d.fleet.Ready(ctx); err != nil {
		return err
	}
	d.out.say("%s is back", leader.Node)
	return nil
}

// crashUpstream kills the upstream, which then sends the whole tail since its last note to itself again.
func (d *demo) crashUpstream(context.Context) (err error) {
	if !d.upstream.Running() {
		return nil
	}
	d.crashes++
	d.upstream.Kill()
	d.upstream, err = fleet.Start(d.up)
	d.out.say("SIGKILL upstream; it starts again and repeats its tail")
	return err
}

// crashDownstream kills the downstream and starts it on what it had stored.
func (d *demo) crashDownstream(ctx context.Context) (err error) {
	d.crashes++
	d.downstream.Kill()
	d.out.say("SIGKILL downstream")
	if err = pause(ctx, time.Second); err != nil {
		return err
	}
	d.downstream, err = fleet.Start(d.down)
	d.out.say("downstream is back with what it had stored")
	return err
}

// stallDownstream stops the downstream in the middle of what it does.
func (d *demo) stallDownstream(ctx context.Context) error {
	d.downstreamStalls++
	d.downstream.Pause()
	d.out.say("SIGSTOP downstream for %v", stallFor)
	defer d.downstream.Resume()
	return pause(ctx, stallFor)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("demo: %w", context.Cause(ctx))
	case <-time.After(d):
		return nil
	}
}
