package replica

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// Node is one replica. All methods may be called concurrently.
//
//	Append ─▶ lane ─▶ leader's committer ─▶ Raft ─▶ fsm ─▶ verdict
//	                                                  └─▶ Outlet.Read (leader's tenure)
type Node struct {
	config Config
	log    *slog.Logger
	stream *stream
	lane   *lane
	dog    watchdog

	ctx    context.Context //nolint:containedctx // it is the node's life
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	done   chan struct{}

	// turn fires when the leader, the tenure, the group or what is waited for changes.
	turn *broadcast
	// started is closed when Raft runs; store, fsm, core and wire are set before and do not change any more.
	started chan struct{}
	store   *storage
	fsm     *fsm
	core    *raft.Raft
	wire    *transport
	notify  chan bool // Raft's word on leadership

	futures futures

	snapNow chan struct{} // capacity 1: a snapshot is wanted now

	stopping  atomic.Bool
	caughtUp  atomic.Bool // all that was committed has been applied once
	elections atomic.Uint64
	damage    error // why the data is quarantined
	snapshots atomic.Uint64

	mu       sync.Mutex
	self     identity
	state    condition           // before Raft runs
	waiting  string              // why the node is not ready; for people
	refused  map[string]*refusal // by peer, what it answered last
	err      error               // why the node stopped
	failed   bool
	leading  bool
	leadGen  uint64            // counts changes of leading
	tenure   *Tenure           // from the barrier on
	reign    *Tenure           // once it has begun in full
	contacts map[string]string // admin addresses of the others, by name
	unbegun  error             // why the last tenure did not begin; nil once one has
	waits    []string          // changes of readers that wait, on the leader

	once once
}

// hooks replaces a node's surroundings in tests, and switches protections off. It is never a setting.
type hooks struct {
	listen func(addr string) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	// gate is asked before every message of Raft.
	gate func(to raft.ServerID, message any) error
	// heartbeatFastPath brings issue 695 back.
	heartbeatFastPath bool
	storage           storageHooks
	// format is the version that the node announces, newKinds the version that kinds need; zero: as built.
	format   int
	newKinds map[kind]int
	// state switches protections of the state off.
	state mutant
	// twist falsifies the hash that the node proposes.
	twist uint64
	// cramped takes no snapshots to make room on a disk that is nearly full.
	cramped bool
	// unvoted calls a node ready that has no vote; unheld takes tuples in while a change of readers waits; anyKind
	// forwards commands of kinds that the leader does not know; judgedAlone lets a lone voter stop for a judgement.
	unvoted, unheld, anyKind, judgedAlone bool
}

func (h *hooks) version() int {
	if h.format != 0 {
		return h.format
	}
	return formatVersion
}

func (h *hooks) since(k kind) int { return h.newKinds[k] }

func (h *hooks) hash(hash uint64) uint64 { return hash ^ h.twist }

// Open starts a node. It returns once the data folder is checked and the listener is up; finding the group goes on in
// the background (see Ready), and an error that ends the node later arrives by Done and Err. An error wraps one of
// ErrConfig, ErrStorage, ErrQuarantined, ErrVersion or ErrLineage.
func Open(ctx context.Context, c Config) (*Node, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	n := &Node{
		config: c, log: c.Logger, done: make(chan struct{}), turn: newBroadcast(), started: make(chan struct{}),
		notify: make(chan bool, 64), snapNow: make(chan struct{}, 1), state: isEmpty,
		refused: map[string]*refusal{}, contacts: map[string]string{},
	}
	n.ctx, n.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := n.openDisk(); err != nil {
		return nil, err
	}
	if err := n.openStream(); err != nil {
		if n.store != nil {
			err = errors.Join(err, n.store.close())
		}
		return nil, err
	}
	n.wg.Go(func() {
		if err := n.run(); err != nil && n.ctx.Err() == nil {
			n.fail(err)
		}
	})
	return n, nil
}

// openDisk opens the data folder. Quarantined data leaves store nil and the node with the id that it asks to be
// admitted by.
func (n *Node) openDisk() error {
	d, err := n.openStore()
	if errors.Is(err, ErrQuarantined) && len(n.config.Peers) > 1 {
		n.log.Error("the data is quarantined", slog.Any("error", err))
		n.damage = err
		id, failed := prepareNext(n.config.DataDir, n.config.Name, n.config.Node)
		n.self, n.state, n.waiting = identity{id: serverID(id)}, isQuarantined, "the data is quarantined"
		return failed
	}
	if err != nil {
		return err
	}
	return n.useDisk(d)
}

func (n *Node) openStore() (*storage, error) { return openStorage(n.config.storage(n.fail, n.log)) }

func (c Config) storage(fatal func(error), log *slog.Logger) storageConfig {
	return storageConfig{
		dir: c.DataDir, operator: c.Name, node: c.Node, snapshotBytes: c.Limits.SnapshotBytes,
		minFree: c.Limits.FreeBytes, fatal: fatal,
		checkEntry: intactEntry,
		repeated: func(index uint64) {
			log.Error("the leader sent the same snapshot again", slog.Uint64("index", index))
		},
		log: newHCLogger(log), hooks: c.hooks.storage,
	}
}

func (n *Node) useDisk(d *storage) error {
	lineage := d.lineage
	has, err := d.hasState()
	if err == nil && has && lineage == "" {
		// The node fell between starting its group and noting the lineage; nobody can have learnt one.
		lineage = newLineage()
		err = d.setLineage(lineage)
	}
	if err != nil {
		return errors.Join(err, d.close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.store, n.self = d, identity{id: serverID(d.identity), lineage: lineage}
	if has {
		n.state = hasState
	}
	return nil
}

func newLineage() string {
	var p [16]byte
	_, _ = rand.Read(p[:]) // never fails
	return hex.EncodeToString(p[:])
}

func (n *Node) openStream() error {
	s := &stream{
		operator: n.config.Name, peers: n.config.Peers, local: n.identity, log: n.log, dialer: n.config.hooks.dial,
		handle: n.handle, refusedBy: n.noteRefusal,
	}
	if s.dialer == nil {
		s.dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr) // resolves the name anew
		}
	}
	if !n.config.TLS.empty() {
		certs, err := openCertificates(n.config.TLS, n.log)
		if err != nil {
			return fmt.Errorf("%w: TLS between nodes: %w", ErrConfig, err)
		}
		s.certs = certs
	}
	if n.config.ListenAddr != "" {
		listen := n.config.hooks.listen
		if listen == nil {
			listen = func(addr string) (net.Listener, error) {
				return new(net.ListenConfig).Listen(n.ctx, "tcp", addr)
			}
		}
		l, err := listen(n.config.ListenAddr)
		if err != nil {
			return fmt.Errorf("%w: cannot listen at %s, where the other nodes are to reach node %s: %w: give it an address of "+
				"this machine that nobody else uses, or stop who does", ErrConfig, n.config.ListenAddr, n.config.Node, err)
		}
		s.listener = l
	}
	s.start()
	n.stream = s
	return nil
}

// handle serves a connection of another node that is not Raft's.
func (n *Node) handle(ctx context.Context, link byte, from serverID, conn net.Conn) {
	if link == linkControl {
		n.reply(ctx, from, conn)
		return
	}
	c := n.committer()
	if c == nil {
		return
	}
	f := newForwarded(laneProposer+string(from), c, n.waitForIntake, conn)
	f.anyKind = n.config.hooks.anyKind
	err := f.serve(ctx)
	n.log.DebugContext(ctx, "a lane's connection ended", slog.String("from", string(from)), slog.Any("error", err))
}

// run finds the group, starts Raft and does the node's work until its life ends.
func (n *Node) run() error {
	if n.condition() != hasState {
		if err := n.seek(n.ctx); err != nil {
			return err
		}
	}
	if err := n.startRaft(); err != nil {
		return err
	}
	n.lane = newLane(laneProposer+string(n.identity().id), 0, n.log, n.connect)
	close(n.started)
	n.turn.fire()
	var wg sync.WaitGroup
	for _, work := range []func(context.Context){
		n.lane.run, n.followNotify, n.runTenures, n.announce, n.compareHashes, n.takeSnapshots, n.watchDisk, n.watchGroup,
	} {
		wg.Go(func() { work(n.ctx) })
	}
	wg.Wait()
	return nil
}

// bootstrap starts a new group of all that were found. Only then is there a lineage: a crash in between leaves a node
// that starts its group again under one that nobody knew.
func (n *Node) bootstrap(s seeking) error {
	n.log.Info("starting a new group", slog.Any("nodes", s.names))
	_, t := raft.NewInmemTransport("")
	if err := raft.BootstrapCluster(n.raftConfig(), n.store.logs, n.store.stable, n.store.snaps, t,
		s.servers()); err != nil {
		return fmt.Errorf("%w: starting the group: %w", ErrStorage, err)
	}
	return n.adopt(newLineage())
}

// adopt makes the node part of a group. Quarantined data is moved aside only here, when the group has taken the fresh
// id.
func (n *Node) adopt(lineage string) error {
	if n.condition() == isQuarantined {
		aside, err := moveAside(n.config.DataDir)
		if err != nil {
			return err
		}
		n.log.Warn("moved the quarantined data aside", slog.String("folder", aside))
		d, err := n.openStore()
		if err != nil {
			return err
		}
		if err := n.useDisk(d); err != nil {
			return err
		}
	}
	if err := n.store.setLineage(lineage); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.self.lineage, n.state, n.waiting = lineage, hasState, ""
	n.log.Info("found the group", slog.String("server", string(n.self.id)), slog.String("lineage", lineage))
	return nil
}

func (n *Node) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.identity().id)
	c.HeartbeatTimeout = n.config.ElectionTimeout
	c.ElectionTimeout = n.config.ElectionTimeout
	c.LeaderLeaseTimeout = n.config.ElectionTimeout
	c.MaxAppendEntries = appendEntries
	c.BatchApplyCh = true
	c.ShutdownOnRemove = false
	c.SnapshotInterval = 24 * time.Hour
	c.SnapshotThreshold = neverSnapshot // they are taken by bytes
	c.TrailingLogs = neverSnapshot      // set before each
	c.NoLegacyTelemetry = true
	c.NotifyCh = n.notify
	c.Logger = newHCLogger(n.log)
	return c
}

func (n *Node) startRaft() error {
	n.fsm = newFSM(StateConfig{
		Folder: n.store.folder,
		Buffer: logbuffer.Options{SegmentBytes: n.config.Limits.SegmentBytes, TailBytes: n.config.Limits.TailBytes},
	}, n.store.snaps, n.fail)
	n.fsm.mutant, n.fsm.state.mutant = n.config.hooks.state, n.config.hooks.state
	n.wire = newTransport(raftStream{stream: n.stream, self: n.identity().id}, n.linkTimeout(), newHCLogger(n.log))
	n.wire.fastPath = n.config.hooks.heartbeatFastPath
	n.wire.gate = n.gate
	n.wire.installed = n.noteInstall
	r, err := raft.NewRaft(n.raftConfig(), n.fsm, n.store.logs, n.store.stable, n.store.snaps, n.wire)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: starting Raft: %w", ErrStorage, err), n.wire.Close())
	}
	n.core = r
	r.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			n.turn.fire()
		}
		return false
	}))
	return nil
}

// linkTimeout bounds the answer to a message of Raft, a follower's disk write included.
func (n *Node) linkTimeout() time.Duration { return max(2*time.Second, 4*n.config.ElectionTimeout) }

// gate is asked before every message of Raft.
func (n *Node) gate(to raft.ServerID, message any) error {
	if n.dog.muted.Load() {
		return errDiskHangs
	}
	if gate := n.config.hooks.gate; gate != nil {
		return gate(to, message)
	}
	return nil
}

// fail ends the node because of err. It does not wait: what fails may hold what would be waited for.
func (n *Node) fail(err error) {
	n.mu.Lock()
	first := !n.failed
	if first {
		n.failed, n.err = true, err
	}
	n.mu.Unlock()
	if !first {
		return
	}
	n.log.Error("the node stops", slog.Any("error", err))
	n.stopping.Store(true)
	n.cancel(err)
	go func() {
		if bad := n.stream.close(); bad != nil { // what failed is not to be heard any more
			n.log.Debug("closing the links", slog.Any("error", bad))
		}
		n.close()
	}()
}

func (n *Node) identity() identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self
}

func (n *Node) condition() condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

func (n *Node) waitsFor(why string) {
	n.mu.Lock()
	changed := n.waiting != why
	n.waiting = why
	n.mu.Unlock()
	if changed {
		n.log.Info("not ready", slog.String("because", why))
	}
}

// raft returns Raft, nil until it runs.
func (n *Node) raft() *raft.Raft {
	select {
	case <-n.started:
		return n.core
	default:
		return nil
	}
}

// noteRefusal remembers a peer's refusal, nil if it takes this node; a majority of peers of another lineage ends the
// node.
func (n *Node) noteRefusal(name string, no *refusal) {
	if no != nil && (no.Code == refusedID || no.Code == refusedEarly) {
		return // an answer, not a fault
	}
	n.mu.Lock()
	last := n.refused[name]
	if n.refused[name] = no; no == nil {
		delete(n.refused, name)
	}
	against := 0
	for _, r := range n.refused {
		if r.Code == refusedLineage {
			against++
		}
	}
	n.mu.Unlock()
	if no != nil && (last == nil || *last != *no) {
		n.log.Error("a node refuses this one", slog.String("by", name), slog.String("because", no.Text))
	}
	if against >= len(n.config.Peers)/2+1 {
		n.fail(fmt.Errorf("%w: %s", ErrLineage, no.Text))
	}
}

// once logs each text once. The zero value is ready.
type once struct {
	mu   sync.Mutex
	said map[string]bool
}

// maxSaid bounds the texts that are remembered.
const maxSaid = 256

// warn logs message, unless text has been logged before.
func (o *once) warn(ctx context.Context, log *slog.Logger, text, message string, attrs ...slog.Attr) {
	o.mu.Lock()
	if o.said == nil || len(o.said) >= maxSaid {
		o.said = map[string]bool{}
	}
	said := o.said[text]
	o.said[text] = true
	o.mu.Unlock()
	if !said {
		log.LogAttrs(ctx, slog.LevelWarn, message, attrs...) //nolint:sloglint // callers give constants
	}
}

// broadcast wakes everybody who waits for a change.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// next returns a channel that is closed at the next change. Take it before looking.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) fire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}
