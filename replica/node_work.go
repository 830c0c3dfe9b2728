package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// leaderID is the server id of the present leader, empty if none is known.
func (n *Node) leaderID() serverID {
	r := n.raft()
	if r == nil {
		return ""
	}
	_, id := r.LeaderWithID()
	return serverID(id)
}

// connect gives the node's lane a link to the present leader.
func (n *Node) connect(ctx context.Context) (link, error) {
	for {
		next := n.turn.next()
		if c := n.committer(); c != nil {
			return c, nil
		}
		if leader := n.leaderID(); leader != "" && leader != n.identity().id {
			return n.forwardTo(ctx, leader)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// forwardTo links the node's lane to a leader elsewhere, for as long as that leads.
func (n *Node) forwardTo(ctx context.Context, leader serverID) (link, error) {
	reign, cancel := n.whileLeads(ctx, leader)
	conn, err := n.stream.dial(reign, linkForward, leader)
	if err != nil {
		cancel()
		return nil, err
	}
	l := newRemoteLink(conn)
	l.wg.Go(func() {
		defer cancel()
		select {
		case <-reign.Done():
			l.fail(errNotLeading)
		case <-l.gone:
		}
	})
	return l, nil
}

// whileLeads returns a context that ends when a node is no longer the leader that this one knows. Nothing waits for an
// old leader that does not answer.
func (n *Node) whileLeads(ctx context.Context, leader serverID) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			next := n.turn.next()
			if n.leaderID() != leader {
				cancel(errNotLeading)
				return
			}
			select {
			case <-next:
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// announceEvery is the time between two looks at what the state knows of this node's version.
const announceEvery = time.Second

// announce tells the state which entries this node reads.
func (n *Node) announce(ctx context.Context) {
	me := string(n.identity().id)
	version := n.config.hooks.version()
	for {
		var known int
		n.fsm.view(func(s *State) { known = s.Versions()[me] })
		if known != version && n.leaderID() != "" {
			// If it does not come through, the next round tries again.
			_, _ = n.lane.propose(ctx, kindAnnounce, appendAnnounceBody(nil, me, version))
		}
		if !wait(ctx, announceEvery) {
			return
		}
	}
}

// readable returns an error if a member does not read commands of a kind yet.
func (n *Node) readable(k kind) error {
	need := n.config.hooks.since(k)
	if need <= 1 {
		return nil // all that ever existed
	}
	var err error
	n.fsm.view(func(s *State) {
		versions := s.Versions()
		for _, m := range s.Settings().Members {
			if versions[m] < need {
				err = fmt.Errorf("%w: %s needs format %d on every member, %s has %d: upgrade it first",
					logbuffer.ErrUnavailable, k, need, m, versions[m])
			}
		}
	})
	return err
}

// compareHashes proposes this node's hash at every index that is to be compared, and ends the node if it is judged to
// differ from the majority. A voter alone differs from nobody, whatever was judged before a human made it the only one.
func (n *Node) compareHashes(ctx context.Context) {
	me := string(n.identity().id)
	var told uint64
	for {
		var sample Sample
		var judged []string
		var reason string
		voters := 0
		if n.config.hooks.judgedAlone {
			voters++
		}
		for _, m := range members(n.core) { // not those of the state, which a recovered node has yet to settle
			if m.Voter {
				voters++
			}
		}
		changed := n.fsm.watch(func(s *State) {
			sample = s.Sample()
			judged, reason = s.Judged()
			judged = slices.Clone(judged)
		})
		if voters > 1 && slices.Contains(judged, me) && n.core.AppliedIndex() >= n.core.CommitIndex() {
			n.stopping.Store(true)
			wait(ctx, n.config.ElectionTimeout) // so that the others learn the judgement from this leader
			n.fail(fmt.Errorf("%w: %s", ErrDiverged, reason))
			return
		}
		if sample.Index > told && voters > 1 {
			told = sample.Index
			body := appendHashBody(nil, me, sample.Index, n.config.hooks.hash(sample.Hash))
			_, err := n.lane.propose(ctx, kindHash, body)
			if err != nil && ctx.Err() == nil {
				n.log.DebugContext(ctx, "a hash was not told", slog.Any("error", err))
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// snapshotPoll is the time between two looks at how much log there is.
const snapshotPoll = 250 * time.Millisecond

// takeSnapshots takes a snapshot whenever enough log has been written since the last, and when the disk is nearly full
// and a snapshot makes room.
func (n *Node) takeSnapshots(ctx context.Context) {
	var trimmed uint64 // when the last snapshot was taken
	var last time.Time
	for {
		asked := false
		select {
		case <-n.snapNow:
			asked = true
		case <-ctx.Done():
			return
		case <-time.After(snapshotPoll):
		}
		asked = asked || time.Since(last) >= crowdedPause && n.crowded(trimmed)
		if asked || n.store.logSinceSnapshot() >= n.config.Limits.SnapshotBytes {
			last, trimmed = time.Now(), n.trimmed()
			if err := n.snapshot(ctx); err != nil && ctx.Err() == nil {
				n.log.WarnContext(ctx, "no snapshot was taken", slog.Any("error", err))
			}
		}
	}
}

// crowdedPause is the least time between a snapshot and the next that is taken to make room.
const crowdedPause = 2 * time.Second

// crowded tells whether the disk is nearly full and a snapshot makes room: the newest one names files whose tuples were
// trimmed since. While tuples wait for room, too little log is written to bring the next snapshot, which would be the
// only thing to make some. On a disk that others have filled to the brim it could not be written.
func (n *Node) crowded(trimmed uint64) bool {
	space := n.store.space
	if n.config.hooks.cramped || !errors.Is(space.check(), logbuffer.ErrUnavailable) {
		return false
	}
	var now uint64
	var tails int64 // what sealing writes at most
	n.fsm.view(func(s *State) {
		for _, name := range []string{bufferIn, bufferOut} {
			c := s.Cursors(name)
			now += c.Trimmed
			tails += min(int64(c.Bytes), n.config.Limits.TailBytes)
		}
	})
	return now > trimmed && space.room(tails) == nil
}

// trimmed counts the tuples that were trimmed from the buffers.
func (n *Node) trimmed() (tuples uint64) {
	n.fsm.view(func(s *State) { tuples = s.Cursors(bufferIn).Trimmed + s.Cursors(bufferOut).Trimmed })
	return tuples
}

// snapshot takes one snapshot and cuts the log, of which a quarter of the bytes between snapshots stays for followers
// that are a little behind.
func (n *Node) snapshot(ctx context.Context) error {
	if err := n.core.ReloadConfig(raft.ReloadableConfig{
		TrailingLogs:     n.store.logs.entriesWithin(n.config.Limits.SnapshotBytes / 4),
		SnapshotInterval: 24 * time.Hour, SnapshotThreshold: neverSnapshot,
		HeartbeatTimeout: n.config.ElectionTimeout, ElectionTimeout: n.config.ElectionTimeout,
	}); err != nil {
		return err
	}
	err := n.futures.await(ctx, n.done, n.core.Snapshot())
	if err == nil {
		n.snapshots.Add(1)
	} else if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		err = nil
	}
	return err
}

// noteInstall takes a new snapshot when a follower needed the same one twice: what follows it in the log must be
// missing (hashicorp/raft issue 697).
func (n *Node) noteInstall(to raft.ServerID, index uint64, times int) {
	n.log.Info("a follower took a snapshot", slog.String("server", string(to)), slog.Uint64("index", index))
	if times < 2 {
		return
	}
	n.log.Warn("a follower took the same snapshot again, a new one is made", slog.String("server", string(to)),
		slog.Uint64("index", index), slog.Int("times", times))
	select {
	case n.snapNow <- struct{}{}:
	default:
	}
}

// watchGroup learns the leader's admin address, and finds out when waiting for a leader is in vain.
func (n *Node) watchGroup(ctx context.Context) {
	heard := time.Now() // when a leader was known, or a look at the group gave hope
	for {
		next := n.turn.next()
		leader := n.leaderID()
		if leader != "" {
			heard = time.Now()
			n.learnAdmin(ctx, leader)
		} else if time.Since(heard) >= lostElections*n.config.ElectionTimeout {
			err := n.survey(ctx).hopeless(n.describe())
			if err == nil {
				heard = time.Now().Add(-lostElections * n.config.ElectionTimeout / 2)
			} else if time.Since(heard) >= 2*lostElections*n.config.ElectionTimeout && ctx.Err() == nil {
				n.fail(n.giveUp(ctx, err))
				return
			}
		}
		if leader == "" {
			next = nil // elections that fail are no news
		}
		timer := time.NewTimer(n.config.ElectionTimeout)
		select {
		case <-next:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (n *Node) learnAdmin(ctx context.Context, leader serverID) {
	n.mu.Lock()
	_, known := n.contacts[string(leader)]
	n.mu.Unlock()
	if known || leader == n.identity().id {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if a, err := n.ask(ctx, leader, question{Ask: askCondition}); err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.contacts[string(leader)] = a.Admin
	}
}

// hopeless tells a node with state, and without a leader for long, why none will come; nil if one may. own is what the
// node answers itself.
func (s seeking) hopeless(own answer) error {
	for _, name := range s.names {
		a, ok := s.answers[name]
		switch {
		case name == s.self.name():
		case !ok:
			return nil // it may be what is missing
		case a.Condition == hasState && a.Leader != "" && a.Applied >= own.Applied && len(a.Members) > 0 &&
			!a.has(s.self):
			return fmt.Errorf("%w: the group led by %s has no server %s: another process has this node's name, or had "+
				"it; stop one of them, or empty this data folder to join anew", ErrRemoved, a.Leader, s.self)
		}
	}
	s.answers[s.self.name()] = own
	if next := s.count(own); next.do == courseLost {
		return fmt.Errorf("%w: %s", ErrNoQuorum, next.why)
	}
	return nil
}
