package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"ftproxy/integration/fleet"
)

// errVerdict is a demo that went through and found fault with itself.
var errVerdict = errors.New("the verdict is not zero")

// demoCmd is `ftproxy demo`: everything that a user would have to set up, as processes of this binary on loopback.
//
//	upstream ──POST──▶ replica ◀─▶ replica ◀─▶ replica ──POST──▶ downstream ──▶ file ──▶ verdict
//	(repeats itself,   (the leader is killed, again and again)   (crashes, stalls,
//	 crashes)                                                     drops repeated keys)
//
// The parent causes the faults and judges by the downstream's file alone.
type demoCmd struct {
	Tuples   int64  `default:"240000" help:"Tuples to send."`
	Replicas int    `default:"3" help:"Replicas: 1 or 3."`
	Kills    int    `default:"5" help:"Times that the leader is killed."`
	Rate     int64  `default:"10000" help:"Tuples a second."`
	Seed     uint64 `default:"1" help:"Seed of what the upstream repeats."`
	Keep     bool   `help:"Keep the folder with data and logs."`

	// What the demo starts itself with.
	Role   string   `enum:",upstream,downstream" default:"" hidden:""`
	Target []string `hidden:""`
	Listen string   `hidden:""`
	File   string   `hidden:""`

	// What tests change: another program than this one, and a protection that is missing.
	binary string
	mutant struct{ noDedup bool }
}

const (
	demoStream    = "t" // all tuples of the demo are one stream: their order is total
	demoTupleSize = 100 // bytes
	demoBatch     = 200 // tuples a request
	demoNoteEach  = 8_000
	demoPath      = "/tuples"
	demoDeadline  = 3 * time.Minute
	demoPatience  = 30 * time.Second // without a delivery
)

// Run shows the demo; an error wraps errVerdict if tuples were lost, duplicated or reordered.
func (c *demoCmd) Run(ctx context.Context) error {
	switch c.Role {
	case "upstream":
		return c.runUpstream(ctx)
	case "downstream":
		return c.runDownstream(ctx)
	}
	if c.Tuples < 1 || c.Rate < 1 || c.Kills < 0 || c.Replicas != 1 && c.Replicas != 3 {
		return errors.New("demo: --tuples and --rate must be positive, --replicas 1 or 3; example: --tuples=240000")
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, demoDeadline, fmt.Errorf("the demo took over %v", demoDeadline))
	defer cancel()

	dir, err := os.MkdirTemp("", "ftproxy-demo-")
	if err != nil {
		return err
	}
	err = c.show(ctx, dir, os.Stdout)
	if c.Keep {
		_, _ = fmt.Fprintln(os.Stdout, "data and logs are in", dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// show runs the demo in a folder that it may fill.
func (c *demoCmd) show(ctx context.Context, dir string, out io.Writer) (err error) {
	d, err := newDemo(ctx, c, dir, out)
	if err != nil {
		return err
	}
	defer d.killAll()
	if err = d.start(ctx); err != nil {
		return d.explain(err)
	}
	progress, stopProgress := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		d.showProgress(progress)
	}()
	err = d.play(ctx)
	if err == nil {
		err = d.drain(ctx)
	}
	stopProgress()
	<-shown
	if err != nil {
		return d.explain(err)
	}
	return d.judge()
}

// demo is one showing: its processes and what they reported.
type demo struct {
	cmd    *demoCmd
	dir    string
	out    *printer
	fleet  *fleet.Fleet
	record *record

	up, down         fleet.Spec
	upstream         *fleet.Process
	downstream       *fleet.Process
	kills, crashes   int // of the leader; of upstream and downstream
	downstreamStalls int
}

func newDemo(ctx context.Context, c *demoCmd, dir string, out io.Writer) (*demo, error) {
	self := c.binary
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	dedup := "json:/id"
	if c.mutant.noDedup {
		dedup = "none"
	}
	ports, err := fleet.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	listen := fleet.LoopbackAddr(ports[0])
	d := &demo{cmd: c, dir: dir, out: newPrinter(out), record: &record{}}
	d.fleet, err = fleet.New(ctx, fleet.Config{
		Binary:   self,
		Dir:      dir,
		Name:     "demo",
		Replicas: c.Replicas,
		Source:   "http://127.0.0.1:PORT" + demoPath,
		Sink:     "http://" + listen + demoPath + "?batch=200&format=ndjson",
		Env:      map[string]string{"DEDUP": dedup, "SINK_IDEMPOTENT": "true"},
	})
	if err != nil {
		return nil, err
	}
	common := []string{
		"demo", "--tuples=" + strconv.FormatInt(c.Tuples, 10), "--rate=" + strconv.FormatInt(c.Rate, 10),
		"--seed=" + strconv.FormatUint(c.Seed, 10),
	}
	d.up = fleet.Spec{
		Path: self,
		Args: append(common, "--role=upstream", "--file="+filepath.Join(dir, "upstream.state")),
		Log:  filepath.Join(dir, "upstream.log"),
		Line: d.record.upstreamLine,
	}
	for _, r := range d.fleet.Replicas {
		d.up.Args = append(d.up.Args, "--target=http://"+fleet.LoopbackAddr(r.SourcePort)+demoPath)
	}
	d.down = fleet.Spec{
		Path: self,
		Args: []string{"demo", "--role=downstream", "--listen=" + listen, "--file=" + d.tuplesFile()},
		Log:  filepath.Join(dir, "downstream.log"),
		Line: d.record.downstreamLine,
	}
	return d, nil
}

// tuplesFile is where the downstream keeps what it accepted.
func (d *demo) tuplesFile() string { return filepath.Join(d.dir, "downstream.tuples") }

// start starts every process, replicas before the upstream.
func (d *demo) start(ctx context.Context) (err error) {
	d.out.say("starting %d replicas, an upstream and a downstream", len(d.fleet.Replicas))
	if d.downstream, err = fleet.Start(d.down); err != nil {
		return err
	}
	if err = d.fleet.Start(); err != nil {
		return err
	}
	if err = d.fleet.Ready(ctx); err != nil {
		return err
	}
	d.upstream, err = fleet.Start(d.up)
	return err
}

// drain waits until the upstream is done, everything it sent has arrived, and the leader has nothing left.
func (d *demo) drain(ctx context.Context) error {
	err := d.waitMoving(ctx, "all tuples to arrive", func() bool {
		return !d.upstream.Running() && d.record.counts().delivered >= d.cmd.Tuples
	})
	if err != nil {
		return err
	}
	if err := d.upstream.Err(); err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	return d.waitMoving(ctx, "the buffer to be acknowledged", func() bool {
		leader, err := d.fleet.Leader(ctx)
		if err != nil {
			return false
		}
		status, err := leader.Status(ctx)
		return err == nil && status.Retained() == 0
	})
}

// waitMoving waits for a condition as long as deliveries go on.
func (d *demo) waitMoving(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	last, since := d.record.counts().delivered, time.Now()
	return fleet.Poll(ctx, what, 20*time.Millisecond, func() bool {
		if now := d.record.counts().delivered; now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > demoPatience {
			cancel(fmt.Errorf("no delivery for %v", demoPatience))
		}
		return done()
	})
}

// killAll ends all processes, whatever state they are in.
func (d *demo) killAll() {
	for _, p := range []*fleet.Process{d.upstream, d.downstream} {
		if p != nil {
			p.Kill()
		}
	}
	d.fleet.Kill()
}
