package replica

import (
	"context"

	"ftproxy/logbuffer"
)

// hooks replaces a node's surroundings in tests.
type hooks struct{}

// Node is one replica. All methods may be called concurrently.
type Node struct{}

// Open starts a node. It returns once the data folder is checked and the listener is up; finding the group goes on in
// the background (see Ready), and an error that ends the node later arrives by Done and Err. An error wraps one of
// ErrConfig, ErrStorage, ErrQuarantined, ErrVersion or ErrLineage.
func Open(ctx context.Context, c Config) (*Node, error) { return nil, ErrConfig }

// Append implements proxy.Intake.
func (n *Node) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	return nil, logbuffer.ErrUnavailable
}

// Position implements proxy.Intake.
func (n *Node) Position(ctx context.Context, source string) (last int64, known bool, err error) {
	return 0, false, logbuffer.ErrUnavailable
}

// OpenSession implements proxy.Intake.
func (n *Node) OpenSession(ctx context.Context) (string, error) {
	return "", logbuffer.ErrUnavailable
}

// Lineage implements proxy.Intake; it is empty until the node has found its group.
func (n *Node) Lineage() string { return "" }

// Lead calls lead once for each tenure of this node as leader, until ctx ends or the node does. The context given to
// lead ends with the tenure, and Lead waits for lead to return before it begins another. An error of lead ends Lead.
func (n *Node) Lead(ctx context.Context, lead func(ctx context.Context, t *Tenure) error) error {
	return nil
}

// Leader is the name of the node that leads as far as this node knows; empty if it knows none.
func (n *Node) Leader() string { return "" }

// LeaderAdmin is the leader's Config.AdminAddr; empty if it is not known.
func (n *Node) LeaderAdmin() string { return "" }

// Ready returns nil if the node takes tuples: it is a member, knows a leader, and has applied what was committed when
// it started. Otherwise the error says what it waits for.
func (n *Node) Ready() error { return logbuffer.ErrUnavailable }

// Letters returns up to limit unresolved dead letters with offsets above after, in order, as this node knows them.
func (n *Node) Letters(after uint64, limit int) ([]logbuffer.Letter, error) { return nil, nil }

// Requeue puts a dead letter back into its reader's buffer, past dedup. It errs with logbuffer.ErrTrimmed if there is no
// such letter.
func (n *Node) Requeue(ctx context.Context, offset uint64) error { return logbuffer.ErrUnavailable }

// DropLetter discards a dead letter. It errs with logbuffer.ErrTrimmed if there is no such letter.
func (n *Node) DropLetter(ctx context.Context, offset uint64) error { return logbuffer.ErrUnavailable }

// Done is closed when the node has stopped, by Shutdown or by an error.
func (n *Node) Done() <-chan struct{} { return nil }

// Err tells why the node stopped: nil after Shutdown, or an error that wraps one of this package's.
func (n *Node) Err() error { return nil }

// Shutdown stops the node in order: it takes no more commands, waits for those in flight, hands leadership over, takes a
// snapshot if little was written since the last, and closes. ctx bounds the wait, not the closing.
func (n *Node) Shutdown(ctx context.Context) error { return nil }

// Recover makes the data of a stopped node the start of a new life of the log: a group of this node alone, with a new
// lineage. What was not yet committed counts as committed, what the other nodes alone had is lost.
func Recover(ctx context.Context, c Config) (lineage string, err error) { return "", ErrConfig }

// Tenure is one period of leadership.
type Tenure struct{}

// Outlet returns the end of a reader of the IN buffer. The reader must be among Config.Readers.
func (t *Tenure) Outlet(reader string) *Outlet { return &Outlet{} }

// Term is the Raft term of the tenure: it grows from tenure to tenure, across all nodes.
func (t *Tenure) Term() uint64 { return 0 }

// Outlet is a reader's end of a buffer, valid for one tenure. All methods may be called concurrently; after the tenure
// they return an error of class logbuffer.ErrUnavailable or ErrUnknown.
type Outlet struct{}

// Reader is the reader's name.
func (o *Outlet) Reader() string { return "" }

// Buffer is the name of the buffer that is read.
func (o *Outlet) Buffer() string { return "in" }

// Lineage is as in Node.
func (o *Outlet) Lineage() string { return "" }

// Barrier returns once all that was committed before the call is applied here and this node is known to lead.
func (o *Outlet) Barrier(ctx context.Context) error { return nil }

// Cursor returns, behind a barrier, the reader's confirmed offset, the last offset in the buffer, the running hash at
// the confirmed offset, and whether the reader ever confirmed anything.
func (o *Outlet) Cursor(ctx context.Context) (acked, end, hash uint64, everAcked bool, err error) {
	return 0, 0, 0, false, nil
}

// Read returns the reader's batches above after, in order: at least one, and more while they fit into maxBytes of
// encoded size. It waits until there is one.
func (o *Outlet) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	return nil, nil
}

// HashAt returns the buffer's running hash at offset n if n is the end of a stored batch, confirmed, or trimmed.
func (o *Outlet) HashAt(ctx context.Context, n uint64) (hash uint64, ok bool, err error) {
	return 0, false, nil
}

// Ack commits that all up to ack.UpTo is done. It returns when the entry is applied.
func (o *Outlet) Ack(ctx context.Context, ack logbuffer.Ack) error { return nil }

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
	// Ready is empty or says what the node waits for.
	NotReady string         `json:"not_ready,omitempty"`
	Members  []Member       `json:"members"`
	Raft     RaftStatus     `json:"raft"`
	Buffers  []BufferStatus `json:"buffers"`
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
	Name     string         `json:"name"`
	Trimmed  uint64         `json:"trimmed"`
	End      uint64         `json:"end"`
	Bytes    int64          `json:"bytes"`
	MaxBytes int64          `json:"max_bytes"`
	Readers  []ReaderStatus `json:"readers"`
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

// Status returns a snapshot of the node's condition. It never waits for other nodes.
func (n *Node) Status() Status { return Status{} }
