package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/replica"
)

// errUnclean is an orderly shutdown that did not come to its end in time. Nothing is lost by it: what was not delivered
// is delivered by the next leader, or after the next start.
var errUnclean = errors.New("shutdown not clean")

// errEnded is an end that nobody asked for and nobody explains.
var errEnded = errors.New("stopped without a reason")

// runCmd is `ftproxy run`, and what ftproxy does if nothing is said.
type runCmd struct{}

// Run runs a node until SIGTERM or SIGINT, or until it has to end. A second signal ends it at once.
func (runCmd) Run(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	c, err := load(os.Environ(), host)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	n, err := newNode(c, newLogger(os.Stderr, c))
	if err != nil {
		return err
	}
	return n.run(ctx)
}

// node is a running ftproxy: everything that is wired together.
type node struct {
	c       *config
	log     *slog.Logger
	sources []wiredSource
	sinks   []wiredSink
	stages  *proxy.Supervisor
	gate    gate
	started time.Time
	closing chan struct{}            // closed when an orderly shutdown begins
	bound   atomic.Pointer[net.Addr] // of the admin address

	open func(context.Context, replica.Config) (*replica.Node, error) // replica.Open, but in tests
}

func newNode(c *config, log *slog.Logger) (*node, error) {
	n := &node{
		c: c, log: log, started: time.Now(), closing: make(chan struct{}),
		stages: &proxy.Supervisor{Logger: log, StallAfter: c.StallAfter}, open: replica.Open,
	}
	var err error
	n.sources, n.sinks, err = wire(c, log, n.retained)
	return n, err
}

// run is the life of the process, in order. Whatever starts here is waited for here.
//
//	admin ─▶ listening sources ─▶ replica ─▶ (each tenure: sinks and polling sources) ─▶ signal, or an end
//	  ▲                                                                                        │
//	  └── closed last ◀── replica shut down ◀── sinks stopped ◀── drained ◀── sources stopped ◀┘
func (n *node) run(ctx context.Context) (err error) {
	n.log.InfoContext(ctx, "starting", slog.String("version", version()), slog.String("name", n.c.Name),
		slog.String("node", n.c.Node), slog.String("data_dir", n.c.DataDir))
	for _, line := range n.c.promise() {
		n.log.InfoContext(ctx, "guarantee", slog.String("text", line))
	}
	closeAdmin, err := n.serveAdmin(ctx)
	if err != nil {
		return err
	}
	defer closeAdmin()

	sources := startJob(ctx, func(ctx context.Context) error {
		damage := n.stages.Run(ctx, n.sourceStages(false, &n.gate)...)
		if damage == nil {
			<-ctx.Done() // there are none, which is no reason to end
		}
		return damage
	})
	defer sources.stop() // for the ways out below; the orderly one stops them first
	replicated, err := n.open(ctx, n.replicaConfig())
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end while it was starting: nothing had begun
		}
		return n.c.cannotListen(err)
	}
	n.gate.node.Store(replicated)
	leading := startJob(ctx, func(ctx context.Context) error { return replicated.Lead(ctx, n.lead) })

	var ended error
	select {
	case <-ctx.Done():
	case <-replicated.Done():
		ended = replicated.Err()
	case <-sources.done:
		ended = sources.err
	case <-leading.done:
		ended = leading.err
	}
	if ended == nil && ctx.Err() == nil { // the node ended, and something that depends on it was seen first
		ended = cmp.Or(replicated.Err(), errEnded)
	}
	return n.shutdown(context.WithoutCancel(ctx), ended, replicated, sources, leading)
}

// job is a goroutine of run.
type job struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

// startJob starts work, which goes on until the job is stopped.
func startJob(ctx context.Context, work func(context.Context) error) *job {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // shutdown ends it in its turn, not the signal
	j := &job{cancel: cancel, done: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		defer close(j.done)
		j.err = work(ctx)
	})
	return j
}

// stop ends the job and waits for it.
func (j *job) stop() {
	j.cancel()
	<-j.done
}

// lead runs the sinks and the polling sources for one tenure.
func (n *node) lead(ctx context.Context, t *replica.Tenure) error {
	stages := n.sourceStages(true, &n.gate)
	for _, s := range n.sinks {
		voiced := voicedSink{s.limited, troubleOf(s.sink)}
		stages = append(stages, proxy.SinkStage(s.reader.Name, s.Guarantee(), voiced, outlet{t.Outlet(s.reader.Name)}))
	}
	return n.stages.Run(ctx, stages...)
}

func (n *node) sourceStages(polling bool, in proxy.Intake) []proxy.Stage {
	var stages []proxy.Stage
	for _, s := range n.sources {
		if (s.listens() == nil) == polling {
			voiced := voicedSource{s.source, troubleOf(s.source)}
			stages = append(stages, proxy.SourceStage(s.name, s.Guarantee(), voiced, in))
		}
	}
	return stages
}

// shutdown ends everything in order. ended is why, nil after a signal.
func (n *node) shutdown(ctx context.Context, ended error, replicated *replica.Node, sources, leading *job) error {
	close(n.closing)
	if ended != nil {
		n.log.ErrorContext(ctx, "stopping", slog.String("error", ended.Error()))
	} else {
		n.log.InfoContext(ctx, "shutting down", slog.Duration("drain_timeout", n.c.DrainTimeout))
	}
	ctx, cancel := context.WithTimeout(ctx, n.c.DrainTimeout)
	defer cancel()
	sources.stop()
	var unclean error
	if ended == nil && !n.relieved(ctx, replicated.Status()) {
		unclean = n.drain(ctx, replicated)
	}
	leading.stop()
	handOver, cancelHandOver := context.WithTimeout(context.WithoutCancel(ctx), handOverTimeout)
	defer cancelHandOver()
	if err := replicated.Shutdown(handOver); err != nil && ended == nil {
		unclean = errors.Join(unclean, err)
	}
	switch {
	case ended != nil:
		return ended
	case unclean != nil:
		return fmt.Errorf("%w: %w", errUnclean, unclean)
	}
	n.log.InfoContext(ctx, "stopped cleanly")
	return nil
}

// relieved tells whether the other nodes are enough to go on without this one: then the next leader delivers what is
// left, and nobody has to wait for it. Nodes count that can be reached.
func (n *node) relieved(ctx context.Context, s replica.Status) bool {
	if s.Role != "leader" {
		return false
	}
	voters := 0
	var reached atomic.Int64
	var dialing sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	for _, m := range s.Members {
		if !m.Voter {
			continue
		}
		voters++
		if m.Node == n.c.Node || n.c.peers[m.Node] == "" {
			continue
		}
		dialing.Go(func() {
			if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.c.peers[m.Node]); err == nil {
				reached.Add(1)
				_ = conn.Close()
			}
		})
	}
	dialing.Wait()
	return int(reached.Load()) > voters/2
}

// peerTimeout bounds the look at the other nodes at shutdown.
const peerTimeout = time.Second

// handOverTimeout bounds the transfer of leadership and the last snapshot.
const handOverTimeout = 10 * time.Second

// drain waits, on the leader, until its sinks have delivered everything that was in the buffer when it began.
func (n *node) drain(ctx context.Context, replicated *replica.Node) error {
	status := replicated.Status()
	mark := end(status)
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for status.Role == "leader" {
		left := pending(status, mark)
		if left == "" {
			return nil
		}
		select {
		case <-tick.C:
			status = replicated.Status()
		case <-replicated.Done():
			return replicated.Err()
		case <-ctx.Done():
			return fmt.Errorf("%s after FTPROXY_DRAIN_TIMEOUT (%v); they are kept and delivered after the next start", left,
				n.c.DrainTimeout)
		}
	}
	return nil
}

const drainPoll = 20 * time.Millisecond

func end(s replica.Status) uint64 {
	for _, b := range s.Buffers {
		if b.Name == "in" {
			return b.End
		}
	}
	return 0
}

// pending words what the first reader that is not there yet has left to deliver up to mark. Nobody delivers for one
// that is not configured any more.
func pending(s replica.Status, mark uint64) string {
	for _, b := range s.Buffers {
		for _, r := range b.Readers {
			if b.Name == "in" && r.Retained > 0 && r.Acked < mark && !r.LeftBehind {
				return fmt.Sprintf("sink %s still had %d tuples to deliver", r.Name, r.Retained)
			}
		}
	}
	return ""
}

// retained is the bytes that the buffer holds for a reader.
func (n *node) retained(reader string) int64 {
	replicated := n.gate.node.Load()
	if replicated == nil {
		return 0
	}
	return replicated.RetainedBytes(reader)
}

func (n *node) readers() []logbuffer.Reader {
	var all []logbuffer.Reader
	for _, s := range n.sinks {
		all = append(all, s.reader)
	}
	return all
}

func (n *node) replicaConfig() replica.Config {
	c := n.c
	return replica.Config{
		Name: c.Name, Node: c.Node, Peers: c.peers, AllowEven: c.PeersEven, ListenAddr: c.Listen, DataDir: c.DataDir,
		TLS: c.peerTLS(), Insecure: c.Insecure, ElectionTimeout: c.ElectionTimeout, AdminAddr: c.AdminAddr,
		Readers: n.readers(), DropReaders: c.dropReaders, Logger: n.log,
		Limits: replica.Limits{
			BufferBytes: int64(c.BufferMaxBytes), TailBytes: int64(c.BufferTailBytes), SegmentBytes: int64(c.SegmentBytes),
			TupleBytes: int(c.TupleMaxBytes), SnapshotBytes: int64(c.SnapshotBytes), FreeBytes: int64(c.DiskFreeBytes),
			DeadLetters: c.DeadMax, IDs: c.DedupIDs, IDAge: c.DedupAge, Sessions: c.Sessions, SessionAge: c.SessionAge,
		},
	}
}

// peerTLS has no files for a node alone, which has no peers to use them for.
func (c *config) peerTLS() replica.TLSFiles {
	if len(c.peers) < 2 {
		return replica.TLSFiles{}
	}
	return replica.TLSFiles{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile, CAFile: c.TLSCAFile}
}
