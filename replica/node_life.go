package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// closeTimeout bounds the closing of a node. What hangs then is left to the end of the process.
	closeTimeout = 5 * time.Second
	// neverSnapshot is a number of entries that is never reached.
	neverSnapshot = 1 << 62
	// lastSnapshotBytes is how much log makes a snapshot at shutdown worth its while.
	lastSnapshotBytes = 8 << 20
)

// Done is closed when the node has stopped, by Shutdown or by an error.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err tells why the node stopped: nil after Shutdown, or an error that wraps one of this package's.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// Shutdown stops the node in order: it takes no more tuples, waits for those in flight, hands leadership over, takes a
// snapshot if much was written since the last, and closes. ctx bounds all but the closing.
func (n *Node) Shutdown(ctx context.Context) error {
	if !n.stopping.Swap(true) && n.raft() != nil {
		n.log.InfoContext(ctx, "stopping")
		n.drain(ctx)
		if err := n.transfer(ctx); err != nil {
			n.log.InfoContext(ctx, "leadership was not handed over", slog.Any("error", err))
		}
		if n.store.logSinceSnapshot() > lastSnapshotBytes && ctx.Err() == nil {
			if err := n.snapshot(ctx); err != nil {
				n.log.InfoContext(ctx, "no last snapshot", slog.Any("error", err))
			}
		}
	}
	n.mu.Lock()
	first := !n.failed
	n.failed = true
	n.mu.Unlock()
	if first {
		n.cancel(errStopped)
		n.close()
	}
	<-n.done
	return n.Err()
}

var errStopped = errors.New("the node was stopped")

// drain waits for the commands in flight.
func (n *Node) drain(ctx context.Context) {
	for n.lane.pending() > 0 && n.ctx.Err() == nil {
		if !wait(ctx, 5*time.Millisecond) {
			return
		}
	}
}

// transfer hands leadership over, if there is somebody to hand it to.
func (n *Node) transfer(ctx context.Context) error {
	voters := 0
	for _, m := range members(n.core) {
		if m.Voter {
			voters++
		}
	}
	if n.core.State() != raft.Leader || voters < 2 {
		return nil
	}
	return n.futures.await(ctx, n.ctx.Done(), n.core.LeadershipTransfer())
}

// close ends everything in the order that lets it end: what proposes, the links, Raft, the disk. The node's context is
// cancelled already.
func (n *Node) close() {
	defer close(n.done)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.stopAll()
	}()
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		n.log.Error("the node could not be closed in time")
		n.note(fmt.Errorf("%w: the node could not be closed in time", ErrStorage))
	}
}

func (n *Node) stopAll() {
	n.wg.Wait()
	n.futures.close()
	err := n.stream.close()
	if n.core != nil {
		err = errors.Join(err, n.core.Shutdown().Error(), n.wire.Close())
	}
	if n.store != nil {
		err = errors.Join(err, n.store.close())
	}
	if err != nil {
		n.note(fmt.Errorf("%w: closing: %w", ErrStorage, err))
	}
}

// note keeps an error of the closing, if there is none yet.
func (n *Node) note(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
	}
}

// Recover makes the data of a stopped node the start of a new life of the log: a group of this node alone, with a new
// lineage. What was not yet committed counts as committed; what only the other nodes had is lost. Their data folders
// must be emptied before they join.
func Recover(_ context.Context, c Config) (lineage string, err error) {
	c = c.withDefaults()
	if err = c.validate(); err != nil {
		return "", err
	}
	var failed error
	sc := c.storage(func(err error) { failed = errors.Join(failed, err) }, c.Logger)
	sc.salvage = true
	s, err := openStorage(sc)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, failed, s.close()) }()
	n := &Node{config: c, log: c.Logger, self: identity{id: serverID(s.identity)}}
	f := newFSM(StateConfig{Folder: s.folder}, s.snaps, sc.fatal)
	alone := raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(s.identity), Address: raft.ServerAddress(s.identity),
	}}}
	_, t := raft.NewInmemTransport(raft.ServerAddress(s.identity))
	if err = raft.RecoverCluster(n.raftConfig(), f, s.logs, s.stable, s.snaps, t, alone); err != nil {
		return "", fmt.Errorf("%w: %w", ErrStorage, err)
	}
	if f.dead != nil {
		return "", f.dead
	}
	return s.lineage, nil // new since the data was salvaged
}
