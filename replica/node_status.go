package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// Status is what a node knows of itself and its group, for people and metrics.
type Status struct {
	Name    string `json:"name"`
	Node    string `json:"node"`
	ID      string `json:"id"`
	Lineage string `json:"lineage"`
	// Role is "leader", "follower", "candidate", "joining" or "stopped".
	Role        string `json:"role"`
	Term        uint64 `json:"term"`
	Leader      string `json:"leader"`
	LeaderAdmin string `json:"leader_admin"`
	// NotReady is empty or says what the node waits for.
	NotReady string `json:"not_ready,omitempty"`
	// Waits says which changes of readers wait, for what, and what can be done; on the leader. No tuples are taken in
	// meanwhile.
	Waits   []string       `json:"waits,omitempty"`
	Members []Member       `json:"members"`
	Raft    RaftStatus     `json:"raft"`
	Buffers []BufferStatus `json:"buffers"`
	// Proposals are the commands of this node that wait for their verdict.
	Proposals int `json:"proposals"`
	// Dedup and Positions are what the state remembers of sources.
	Dedup     DedupStatus      `json:"dedup"`
	Positions map[string]int64 `json:"positions"`
	Letters   LetterStatus     `json:"letters"`
	Links     LinkStatus       `json:"links"`
	Disk      DiskStatus       `json:"disk"`
}

// Member is a server of the group.
type Member struct {
	Node  string `json:"node"`
	ID    string `json:"id"`
	Voter bool   `json:"voter"`
}

// RaftStatus tells how far the log is. Indexes count entries.
type RaftStatus struct {
	FirstIndex    uint64 `json:"first_index"`
	LastIndex     uint64 `json:"last_index"`
	CommitIndex   uint64 `json:"commit_index"`
	AppliedIndex  uint64 `json:"applied_index"`
	SnapshotIndex uint64 `json:"snapshot_index"`
	// SnapshotLag is how many bytes of log were applied since the last snapshot.
	SnapshotLag int64  `json:"snapshot_lag_bytes"`
	Snapshots   uint64 `json:"snapshots"`
	Elections   uint64 `json:"elections"`
	// LastContact is the time since the leader was heard, in milliseconds; 0 on the leader.
	LastContact int64 `json:"last_contact_ms"`
}

// BufferStatus describes one buffer.
type BufferStatus struct {
	Name     string `json:"name"`
	Trimmed  uint64 `json:"trimmed"`
	End      uint64 `json:"end"`
	Bytes    int64  `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
	// Unread counts retained tuples for sinks that no reader reads. They stay until one does.
	Unread  uint64         `json:"unread"`
	Readers []ReaderStatus `json:"readers"`
}

// ReaderStatus is a reader's place and its ledger: Received = Delivered + Dead + Dropped + Retained, in tuples.
type ReaderStatus struct {
	Name      string `json:"name"`
	Acked     uint64 `json:"acked"`
	Received  uint64 `json:"received"`
	Duplicate uint64 `json:"deduplicated"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead_lettered"`
	Dropped   uint64 `json:"dropped_by_policy"`
	Retained  uint64 `json:"retained"`
	// RetainedBytes is the stored size of the batches that hold what is retained.
	RetainedBytes int64 `json:"retained_bytes"`
	// LeftBehind marks a reader that this node's configuration does not have any more. What is retained for it stays
	// until it is configured again and has delivered it, or is to be dropped.
	LeftBehind bool `json:"left_behind"`
}

// DedupStatus shows the bounds of deduplication.
type DedupStatus struct {
	Sources  int   `json:"sources"`
	IDs      int   `json:"ids"`
	MaxIDs   int   `json:"max_ids"`
	IDAge    int64 `json:"id_age_ms"`
	Sessions int   `json:"sessions"`
	// Now is replicated time, in milliseconds since the Unix epoch.
	Now int64 `json:"now_ms"`
}

// LetterStatus counts dead letters.
type LetterStatus struct {
	Unresolved int    `json:"unresolved"`
	Max        int    `json:"max"`
	End        uint64 `json:"end"`
}

// LinkStatus counts traffic between nodes since the start.
type LinkStatus struct {
	SentBytes     int64 `json:"sent_bytes"`
	ReceivedBytes int64 `json:"received_bytes"`
	Refused       int64 `json:"refused_connections"`
	// BadCertificates counts attempts to read changed TLS files that failed; the former ones stay in force.
	BadCertificates int64 `json:"bad_certificates"`
	// CertificateExpiry is when this node's certificate expires, in milliseconds since the Unix epoch; 0 without TLS.
	CertificateExpiry int64 `json:"certificate_expiry_ms"`
}

// DiskStatus describes the log's disk. Times are in microseconds over the last few thousand writes.
type DiskStatus struct {
	FreeBytes int64 `json:"free_bytes"`
	WaitBelow int64 `json:"wait_below_bytes"`
	SyncP50   int64 `json:"sync_p50_us"`
	SyncP999  int64 `json:"sync_p999_us"`
	LogBytes  int64 `json:"log_bytes_written"`
}

// maxPositions bounds the positions that a Status shows.
const maxPositions = 1000

// Status returns the node's condition. It never waits for other nodes.
func (n *Node) Status() Status {
	me := n.identity()
	s := Status{
		Name: n.config.Name, Node: n.config.Node, ID: string(me.id), Lineage: me.lineage, Role: "joining",
		Leader: n.Leader(), LeaderAdmin: n.LeaderAdmin(), Positions: map[string]int64{},
		Links: LinkStatus{
			SentBytes: n.stream.sent.Load(), ReceivedBytes: n.stream.received.Load(), Refused: n.stream.refusals.Load(),
		},
	}
	if certs := n.stream.certs; certs != nil {
		s.Links.BadCertificates, s.Links.CertificateExpiry = certs.bad.Load(), certs.expiry().UnixMilli()
	}
	if err := n.Ready(); err != nil {
		s.NotReady = err.Error()
	}
	n.mu.Lock()
	s.Waits = n.waits
	n.mu.Unlock()
	r := n.raft()
	if n.ctx.Err() != nil {
		s.Role = "stopped"
	}
	if r == nil || n.ctx.Err() != nil {
		return s
	}
	n.describeRaft(&s, r)
	n.describeDisk(&s)
	n.fsm.view(func(st *State) { n.describeState(&s, st) })
	return s
}

// RetainedBytes is the stored size of the batches that the IN buffer holds for a reader, as far as this node knows; 0
// for one that the state does not have.
func (n *Node) RetainedBytes(reader string) (bytes int64) {
	if n.raft() == nil {
		return 0
	}
	n.fsm.view(func(s *State) {
		for _, r := range s.Cursors(bufferIn).Readers {
			if r.Name == reader {
				bytes = int64(r.PendingBytes)
			}
		}
	})
	return bytes
}

func (n *Node) describeRaft(s *Status, r *raft.Raft) {
	switch r.State() {
	case raft.Leader:
		s.Role = "leader"
	case raft.Candidate:
		s.Role = "candidate"
	case raft.Follower:
		s.Role = "follower"
	case raft.Shutdown:
		s.Role = "stopped"
	}
	s.Term, s.Members, s.Proposals = r.CurrentTerm(), members(r), n.lane.pending()
	s.Raft = RaftStatus{
		LastIndex: r.LastIndex(), CommitIndex: r.CommitIndex(), AppliedIndex: r.AppliedIndex(),
		Snapshots: n.snapshots.Load(), Elections: n.elections.Load(),
	}
	if last := r.LastContact(); s.Role != "leader" && !last.IsZero() {
		s.Raft.LastContact = time.Since(last).Milliseconds()
	}
}

// describeState copies what people want to see of the state, under its lock.
func (n *Node) describeState(s *Status, st *State) {
	ledgers := st.Ledgers()
	for _, name := range []string{bufferIn, bufferOut} {
		c := st.Cursors(name)
		b := BufferStatus{
			Name: name, Trimmed: c.Trimmed, End: c.End, Bytes: int64(c.Bytes), MaxBytes: n.config.Limits.BufferBytes,
			Unread: c.Unread,
		}
		for _, r := range c.Readers {
			rs := ReaderStatus{
				Name: r.Name, Acked: r.Acked, RetainedBytes: int64(r.PendingBytes),
				LeftBehind: name == bufferIn && find(n.config.Readers, r.Name) < 0,
			}
			for _, l := range ledgers {
				if l.Buffer == name && l.Reader == r.Name {
					rs.Received, rs.Duplicate, rs.Delivered = l.Received, l.Deduplicated, l.Delivered
					rs.Dead, rs.Dropped, rs.Retained = l.DeadLettered, l.Dropped, l.Retained
				}
			}
			b.Readers = append(b.Readers, rs)
		}
		s.Buffers = append(s.Buffers, b)
	}
	st.Positions(func(source string, last int64) bool {
		s.Positions[source] = last
		return len(s.Positions) < maxPositions
	})
	use, settings := st.DedupUse(), st.Settings()
	s.Dedup = DedupStatus{
		Sources: use.Sources, IDs: use.IDs, Sessions: use.Sessions, MaxIDs: settings.Dedup.IDs,
		IDAge: settings.Dedup.IDAge, Now: st.Now(),
	}
	s.Letters = LetterStatus{Unresolved: st.LetterCount(), Max: settings.Letters}
}

// Leader is the name of the node that leads as far as this node knows; empty if it knows none.
func (n *Node) Leader() string { return n.leaderID().name() }

// LeaderAdmin is the leader's Config.AdminAddr; empty if it is not known.
func (n *Node) LeaderAdmin() string {
	leader := n.leaderID()
	if leader != "" && leader == n.identity().id {
		return n.config.AdminAddr
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.contacts[string(leader)]
}

// Ready returns nil if the node takes tuples and counts for the quorum, so that another one may be stopped or replaced:
// it has its vote, knows a leader, and once applied what was committed. Otherwise the error says what it waits for.
func (n *Node) Ready() error {
	why := n.notReady()
	if why == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, why)
}

func (n *Node) notReady() error {
	if n.stopping.Load() {
		return errors.New("the node is stopping")
	}
	n.mu.Lock()
	waiting, leading, unbegun := n.waiting, n.reign != nil, n.unbegun
	n.mu.Unlock()
	r := n.raft()
	switch {
	case r == nil && waiting == "":
		return errors.New("starting")
	case r == nil:
		return errors.New(waiting)
	case n.dog.muted.Load():
		return errDiskHangs
	case n.leaderID() == "":
		return errors.New("no leader is known")
	case n.leaderID() == n.identity().id && !leading && unbegun != nil:
		return fmt.Errorf("the tenure does not begin: %w", unbegun)
	case n.leaderID() == n.identity().id && !leading:
		return errors.New("the tenure is about to begin")
	}
	if why := n.holding(); why != "" {
		return errors.New(why)
	}
	if r.AppliedIndex() >= r.CommitIndex() && r.CommitIndex() > 0 {
		n.caughtUp.Store(true)
	}
	if !n.caughtUp.Load() {
		return fmt.Errorf("applied entry %d of %d", r.AppliedIndex(), r.CommitIndex())
	}
	return n.unvoted(r)
}

// unvoted returns an error while the group can do without this node but not the other way round: it has no vote in the
// latest configuration, or a server that it replaces is still there.
func (n *Node) unvoted(r *raft.Raft) error {
	if n.config.hooks.unvoted {
		return nil
	}
	me := string(n.identity().id)
	voter := false
	for _, m := range members(r) {
		if m.Node == n.config.Node && m.ID != me {
			return fmt.Errorf("the group still has server %s of this node's name", m.ID)
		}
		voter = voter || m.Voter && m.ID == me
	}
	if !voter {
		return errors.New("the group has not given this node its vote yet")
	}
	return nil
}
