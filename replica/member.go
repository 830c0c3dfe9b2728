package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// condition is what a node answers when a peer asks for it.
type condition string

const (
	// isEmpty: it has no state and never had.
	isEmpty condition = "empty"
	// hasState: it is, or was when it stopped, part of a group.
	hasState condition = "has state"
	// isQuarantined: its data is damaged or incomplete; it votes for nothing and bootstraps nothing.
	isQuarantined condition = "quarantined"
)

// question is what one node asks another on a control connection, and answer what comes back.
type question struct {
	// Ask is askCondition, askJoin or askPosition.
	Ask    string `json:"ask"`
	Source string `json:"source,omitempty"`
}

const (
	askCondition = "condition" // who are you, and what do you know of the group?
	askJoin      = "join"      // take the asking server id into the group
	askPosition  = "position"  // the last position of a source, behind a barrier
)

type answer struct {
	Error     string    `json:"error,omitempty"`
	ID        serverID  `json:"id"`
	Condition condition `json:"condition"`
	Lineage   string    `json:"lineage"`
	Admin     string    `json:"admin"`
	Leader    serverID  `json:"leader"`
	Applied   uint64    `json:"applied"`
	Members   []Member  `json:"members"`
	Known     bool      `json:"known"`
	Position  int64     `json:"position"`
}

// has tells whether a server id is among the members that were answered.
func (a answer) has(id serverID) bool {
	return slices.ContainsFunc(a.Members, func(m Member) bool { return m.ID == string(id) })
}

// ask puts one question to a peer: the server id that is meant, or a bare name for whoever answers there.
func (n *Node) ask(ctx context.Context, to serverID, q question) (answer, error) {
	conn, err := n.stream.dial(ctx, linkControl, to)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close() //nolint:errcheck // one question, one answer
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := writeFrame(conn, q); err != nil {
		return answer{}, err
	}
	var a answer
	if err := readFrame(conn, &a); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return answer{}, err
	}
	if a.Error != "" {
		return a, fmt.Errorf("node %s: %s", to.name(), a.Error)
	}
	return a, nil
}

// reply serves one question.
func (n *Node) reply(ctx context.Context, from serverID, conn net.Conn) {
	var q question
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return
	}
	if err := readFrame(conn, &q); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout + handshakeTimeout)); err != nil {
		return
	}
	a := n.describe()
	var err error
	switch q.Ask {
	case askCondition:
	case askJoin:
		err = n.admit(ctx, from)
	case askPosition:
		a.Position, a.Known, err = n.position(ctx, q.Source)
	default:
		err = fmt.Errorf("question %q is not understood", q.Ask)
	}
	if err != nil {
		a.Error = err.Error()
	}
	if err := writeFrame(conn, a); err != nil {
		n.log.DebugContext(ctx, "an answer did not get through", slog.String("to", string(from)), slog.Any("error", err))
	}
}

// controlTimeout bounds the work for one question.
const controlTimeout = 10 * time.Second

// describe is what this node answers about itself.
func (n *Node) describe() answer {
	me := n.identity()
	a := answer{ID: me.id, Condition: n.condition(), Lineage: me.lineage, Admin: n.config.AdminAddr}
	if r := n.raft(); r != nil {
		_, leader := r.LeaderWithID()
		a.Leader = serverID(leader)
		a.Members = members(r)
		a.Applied = r.AppliedIndex()
	}
	return a
}

// members lists the servers of the latest configuration, by name.
func members(r *raft.Raft) []Member {
	var list []Member
	for _, s := range r.GetConfiguration().Configuration().Servers {
		list = append(list, Member{Node: serverID(s.ID).name(), ID: string(s.ID), Voter: s.Suffrage == raft.Voter})
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// seeking is what a node without a group knows when it decides what to do.
type seeking struct {
	self        serverID
	quarantined bool
	names       []string          // of all peers, itself included, in order
	answers     map[string]answer // by name, of the others that answered
}

// course is what a node without a group does next.
type course struct {
	do courseKind
	// lineage of the group to follow; to is the leader to ask.
	lineage string
	to      serverID
	// why says what is waited for, or why there is no way on.
	why string
}

type courseKind int

const (
	courseWait      courseKind = iota // ask again later
	courseBootstrap                   // start a new group of all
	courseFollow                      // the group knows this server id already
	courseJoin                        // ask the leader
	courseLost                        // the data is lost: no quorum left
)

// decide is the whole rule for a node without state, or with damaged state. A node with state just starts.
//
//   - A group that has this server id among its members: follow it.
//   - A group with a leader: ask to be admitted.
//   - All peers empty: the first by name starts the group; the others see themselves in it.
//   - All peers answered, and too few have state for a quorum: the log is lost without a human.
func (s seeking) decide() course {
	var group *answer
	for _, name := range s.names {
		a, ok := s.answers[name]
		if !ok || a.Condition != hasState {
			continue
		}
		if group != nil && group.Lineage != a.Lineage {
			return course{why: fmt.Sprintf("nodes %s and %s have logs of different lives, %q and %q: empty the data folder of "+
				"the wrong one", group.ID.name(), name, group.Lineage, a.Lineage)}
		}
		if !s.quarantined && a.has(s.self) {
			return course{do: courseFollow, lineage: a.Lineage}
		}
		if group == nil || len(a.Members) > 0 && a.Applied >= group.Applied {
			group = &a
		}
		if a.Leader != "" {
			return course{do: courseJoin, lineage: a.Lineage, to: a.Leader}
		}
	}
	var silent []string
	for _, name := range s.names {
		if _, ok := s.answers[name]; !ok && name != s.self.name() {
			silent = append(silent, name)
		}
	}
	if len(silent) > 0 {
		return course{why: "waiting for an answer of " + strings.Join(silent, ", ")}
	}
	if group != nil {
		return s.count(*group)
	}
	return s.allAnswered()
}

// count judges a group without a leader whose members all answered.
func (s seeking) count(group answer) course {
	voters, alive := 0, 0
	for _, m := range group.Members {
		if !m.Voter {
			continue
		}
		voters++
		if a := s.answers[m.Node]; a.Condition == hasState && string(a.ID) == m.ID {
			alive++
		}
	}
	if voters > 0 && alive < voters/2+1 {
		return course{do: courseLost, why: fmt.Sprintf("%d of %d voters still have the log, %d are needed: recover offline "+
			"on one of those that have it", alive, voters, voters/2+1)}
	}
	return course{why: "waiting for the group to elect a leader"}
}

// allAnswered judges peers of which none has state.
func (s seeking) allAnswered() course {
	var damaged []string
	if s.quarantined {
		damaged = append(damaged, s.self.name())
	}
	for _, name := range s.names {
		if s.answers[name].Condition == isQuarantined {
			damaged = append(damaged, name)
		}
	}
	switch {
	case len(damaged) > 0:
		return course{do: courseLost, why: fmt.Sprintf("no node has intact data, that of %s is quarantined: recover offline",
			strings.Join(damaged, ", "))}
	case s.names[0] == s.self.name():
		return course{do: courseBootstrap}
	default:
		return course{why: "waiting for node " + s.names[0] + " to start the group"}
	}
}

// A node gives up when the data has looked lost for lostElections election time-outs: answers of one round are not of
// one moment. It goes on to answer for lingerElections more, so that the others come to the same end.
const (
	lostElections   = 10
	lingerElections = 20
)

// seek finds the group, and returns when this node may start Raft. Its error ends the node.
func (n *Node) seek(ctx context.Context) error {
	var lost time.Time // since when the data looks lost
	for {
		s := n.survey(ctx)
		next := s.decide()
		switch next.do {
		case courseBootstrap:
			return n.bootstrap(s)
		case courseFollow:
			return n.adopt(next.lineage)
		case courseJoin:
			admitted, err := n.ask(ctx, next.to, question{Ask: askJoin})
			if err == nil {
				return n.adopt(admitted.Lineage)
			}
			next.why = fmt.Sprintf("asking %s to be admitted: %v", next.to.name(), err)
		case courseWait, courseLost:
		}
		switch {
		case next.do != courseLost:
			lost = time.Time{}
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) >= lostElections*n.config.ElectionTimeout && s.quarantined:
			return n.giveUp(ctx, fmt.Errorf("%w: %s", n.damage, next.why))
		case time.Since(lost) >= lostElections*n.config.ElectionTimeout:
			return n.giveUp(ctx, fmt.Errorf("%w: %s", ErrNoQuorum, next.why))
		}
		n.waitsFor(next.why)
		if !wait(ctx, n.config.ElectionTimeout/2) {
			return context.Cause(ctx)
		}
	}
}

// giveUp returns err after a time in which the node still answers the others.
func (n *Node) giveUp(ctx context.Context, err error) error {
	n.waitsFor(err.Error())
	wait(ctx, lingerElections*n.config.ElectionTimeout)
	return err
}

// survey asks all other peers at once.
func (n *Node) survey(ctx context.Context) seeking {
	me := n.identity()
	s := seeking{
		self: me.id, quarantined: n.condition() == isQuarantined, names: n.config.names(), answers: map[string]answer{},
	}
	ctx, cancel := context.WithTimeout(ctx, max(2*n.config.ElectionTimeout, time.Second))
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range s.names {
		if name == me.id.name() {
			continue
		}
		wg.Go(func() {
			if a, err := n.ask(ctx, serverID(name), question{Ask: askCondition}); err == nil {
				mu.Lock()
				defer mu.Unlock()
				s.answers[name] = a
			}
		})
	}
	wg.Wait()
	return s
}

// servers is the configuration of a new group: everybody that a survey found, as voters. The server id is the address.
func (s seeking) servers() raft.Configuration {
	ids := []serverID{s.self}
	for _, a := range s.answers {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	var c raft.Configuration
	for _, id := range ids {
		c.Servers = append(c.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id),
		})
	}
	return c
}

// admit takes a server id into the group as a non-voter. The leader's custodian promotes it.
func (n *Node) admit(ctx context.Context, id serverID) error {
	r := n.raft()
	if r == nil || r.State() != raft.Leader {
		return errNotLeading
	}
	if (answer{Members: members(r)}).has(id) {
		return nil
	}
	n.log.InfoContext(ctx, "admitting a node", slog.String("server", string(id)))
	return n.futures.await(ctx, n.ctx.Done(), r.AddNonvoter(raft.ServerID(id), raft.ServerAddress(id), 0, 0))
}

// position answers for a source on the leader, behind a barrier.
func (n *Node) position(ctx context.Context, source string) (last int64, known bool, err error) {
	c := n.committer()
	if c == nil {
		return 0, false, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, errNotLeading)
	}
	if err := c.barrier(ctx); err != nil {
		return 0, false, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
	}
	n.fsm.view(func(s *State) { last, known = s.Position(source) })
	return last, known, nil
}

// custodian keeps the group as it is meant to be, on the leader: it promotes a non-voter that has caught up, after
// removing the server ids that its name had before, and writes the members into the settings.
type custodian struct {
	n *Node
	t *Tenure
	// seen is the commit index of the round before: who has applied that has caught up.
	seen uint64
}

// custodianEvery is the time between two rounds.
const custodianEvery = time.Second

func (c *custodian) run(ctx context.Context) {
	for {
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			c.n.once.warn(ctx, c.n.log, err.Error(), "could not bring the group in order", slog.Any("error", err))
		}
		if !wait(ctx, custodianEvery) {
			return
		}
	}
}

func (c *custodian) round(ctx context.Context) error {
	r := c.n.raft()
	caught := c.seen
	c.seen = r.CommitIndex()
	for _, m := range members(r) {
		if m.Voter || caught == 0 {
			continue
		}
		a, err := c.n.ask(ctx, serverID(m.ID), question{Ask: askCondition})
		if err != nil || a.Applied < caught {
			continue
		}
		if err := c.promote(ctx, r, m); err != nil {
			return err
		}
	}
	return c.t.settle(ctx)
}

// promote makes a voter of a server, unless an older one of the same name still answers.
func (c *custodian) promote(ctx context.Context, r *raft.Raft, fresh Member) error {
	for _, old := range members(r) {
		if old.Node != fresh.Node || old.ID == fresh.ID {
			continue
		}
		_, err := c.n.ask(ctx, serverID(old.ID), question{Ask: askCondition})
		if no, ok := errors.AsType[*refusal](err); !ok || no.Code != refusedID {
			return fmt.Errorf("server %s has the name of %s and may still be alive: is the name given twice?",
				fresh.ID, old.ID)
		}
		c.n.log.InfoContext(ctx, "removing a server that is gone", slog.String("server", old.ID))
		if err := c.n.futures.await(ctx, c.n.ctx.Done(), r.RemoveServer(raft.ServerID(old.ID), 0, 0)); err != nil {
			return fmt.Errorf("remove server %s: %w", old.ID, err)
		}
	}
	c.n.log.InfoContext(ctx, "giving a node its vote", slog.String("server", fresh.ID))
	err := c.n.futures.await(ctx, c.n.ctx.Done(), r.AddVoter(raft.ServerID(fresh.ID), raft.ServerAddress(fresh.ID), 0, 0))
	if err != nil {
		return fmt.Errorf("promote server %s: %w", fresh.ID, err)
	}
	return nil
}
