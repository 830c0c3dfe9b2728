package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"ftproxy/logbuffer"
)

// Config is everything that a node needs to know. It is validated as a whole by Open.
type Config struct {
	// Name names the operator (or relay) that the node belongs to. Nodes of another name are refused.
	Name string
	// Node is this node's name among Peers. It outlives the node's data folder; the server id does not.
	Node string
	// Peers maps every node's name, this one's included, to host:port. Hosts are resolved at every dial. Empty: this
	// node is alone.
	Peers map[string]string
	// AllowEven admits an even number of peers, which tolerates no more failures than one fewer would.
	AllowEven bool
	// ListenAddr is the host:port at which Raft and forwarded commands arrive. Empty: the node's own address in Peers;
	// a node alone listens nowhere.
	ListenAddr string
	// DataDir is the folder that the node owns. It is created if missing.
	DataDir string
	// TLS secures the links between nodes. All three files or none.
	TLS TLSFiles
	// Insecure admits plain TCP on an address that is not loopback.
	Insecure bool
	// ElectionTimeout is the time without a leader after which a follower stands for election: 100 ms to 30 s, 0 for
	// 500 ms. Heartbeat time-out and lease are the same.
	ElectionTimeout time.Duration
	// AdminAddr is told to the other nodes, so that each can point to the leader's. It is not listened at.
	AdminAddr string
	// Readers are the consumers of the IN buffer. The first leader that has other ones than the state writes them
	// into the state. A reader whose sinks change while tuples are retained keeps its former ones, and no tuples are
	// taken in, until all are delivered; Ready and Status say so.
	Readers []logbuffer.Reader
	// DropReaders names readers that are no longer among Readers and whose pending tuples are to be dropped, which the
	// ledger counts as dropped by policy. Others that are left behind stay until their tuples are delivered. Names of
	// readers that there are not have no effect.
	DropReaders []string
	Limits      Limits
	// Logger receives what a human should see; nil discards it.
	Logger *slog.Logger

	// hooks replaces the surroundings in tests; nil in production.
	hooks *hooks
	// hashEvery is the number of entries between two comparisons of the replicas; 0 for the default.
	hashEvery uint64
}

// TLSFiles names PEM files. They are read again when they change on disk; files that do not parse leave the former ones
// in force and are counted.
type TLSFiles struct {
	// CertFile and KeyFile are this node's certificate, valid for its name or its host in Peers, as a server and as a
	// client.
	CertFile, KeyFile string
	// CAFile holds the certificates that sign the peers' ones.
	CAFile string
}

func (t TLSFiles) empty() bool { return t == TLSFiles{} }

// Limits bounds what a node holds. Zero values mean the default.
type Limits struct {
	// BufferBytes is the retained size of a buffer above which Append waits. Default 4 GiB.
	BufferBytes int64
	// TailBytes is the newest part of a buffer that is held in memory. Default 32 MiB.
	TailBytes int64
	// SegmentBytes is the size at which a segment file is sealed. Default 64 MiB.
	SegmentBytes int64
	// TupleBytes is the largest encoded tuple. Default 1 MiB, at most 16 MiB.
	TupleBytes int
	// SnapshotBytes is how much log is written between snapshots. Default 256 MiB.
	SnapshotBytes int64
	// FreeBytes is the free space of the data folder's disk below which Append waits. Default: twice SnapshotBytes, at
	// least 256 MiB, but at most a quarter of the disk.
	FreeBytes int64
	// DeadLetters is the number of unresolved dead letters at which their producer waits. Default 10,000.
	DeadLetters int
	// IDs and IDAge bound the window of tuple ids. Default 200,000 and 1 h.
	IDs   int
	IDAge time.Duration
	// Sessions and SessionAge bound the client sessions. Default 10,000 and 24 h since their last tuple.
	Sessions   int
	SessionAge time.Duration
}

const (
	// entryBytes bounds the commands that are coalesced into one entry of the log. A single command may be larger, up
	// to Limits.TupleBytes and commandOverhead.
	entryBytes = 512 << 10
	// commandOverhead is what a command adds to the tuples that it carries.
	commandOverhead = 4 << 10
	// appendEntries is how many entries one message to a follower carries. Heartbeats wait behind its disk write.
	appendEntries = 4
	// maxTuple is the highest value of Limits.TupleBytes.
	maxTuple = 16 << 20
	// maxPeers is the largest group.
	maxPeers = 9
)

// The errors that end a node for good. Err wraps one of them; the process should exit with a status of its own for
// each.
var (
	// ErrConfig is a configuration that cannot hold.
	ErrConfig = errors.New("configuration")
	// ErrStorage is a disk that fails, hangs or is full. The data in it is not touched any more.
	ErrStorage = errors.New("storage failed")
	// ErrQuarantined is damaged or incomplete data and nobody to get a good copy from.
	ErrQuarantined = errors.New("data quarantined")
	// ErrLineage is a peer or a data folder of another life of the log.
	ErrLineage = errors.New("another lineage")
	// ErrNoQuorum means that too few nodes still have the data: every peer answered, and the log cannot go on.
	ErrNoQuorum = errors.New("no quorum left")
	// ErrDiverged means that this node's state differs from that of the majority, or that there is no majority.
	ErrDiverged = errors.New("state diverged")
	// ErrVersion is an entry or a file that a newer version wrote.
	ErrVersion = errors.New("version not understood")
	// ErrRemoved means that the group removed this node's server id: another node has its name.
	ErrRemoved = errors.New("removed from the group")
)

// withDefaults returns the configuration with every default filled in.
func (c Config) withDefaults() Config {
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = 500 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Peers) == 0 {
		c.Peers = map[string]string{c.Node: c.ListenAddr}
	}
	if c.ListenAddr == "" && len(c.Peers) > 1 {
		c.ListenAddr = c.Peers[c.Node]
	}
	if c.hooks == nil {
		c.hooks = &hooks{}
	}
	c.Limits = c.Limits.withDefaults()
	return c
}

func (l Limits) withDefaults() Limits {
	orInt64 := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	orInt := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	orInt64(&l.BufferBytes, 4<<30)
	orInt64(&l.TailBytes, 32<<20)
	orInt64(&l.SegmentBytes, 64<<20)
	orInt(&l.TupleBytes, 1<<20)
	orInt64(&l.SnapshotBytes, 256<<20)
	orInt(&l.DeadLetters, 10_000)
	orInt(&l.IDs, 200_000)
	orInt(&l.Sessions, 10_000)
	if l.IDAge == 0 {
		l.IDAge = time.Hour
	}
	if l.SessionAge == 0 {
		l.SessionAge = 24 * time.Hour
	}
	return l
}

// validate reports every mistake at once.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name == "" || strings.ContainsAny(c.Name, "/#") {
		bad("the name %q is empty or contains / or #: name the operator", c.Name)
	}
	if c.Node == "" || strings.ContainsAny(c.Node, "/#") {
		bad("the node name %q is empty or contains / or #: give every node a name", c.Node)
	}
	if c.DataDir == "" {
		bad("no data folder: every node needs one of its own")
	}
	if c.ElectionTimeout < 100*time.Millisecond || c.ElectionTimeout > 30*time.Second {
		bad("election time-out %v is not within 100ms to 30s", c.ElectionTimeout)
	}
	if t := c.TLS; !t.empty() && (t.CertFile == "" || t.KeyFile == "" || t.CAFile == "") {
		bad("TLS between nodes needs a certificate, its key and a CA file: give all three or none")
	}
	if c.Limits.TupleBytes < 0 || c.Limits.TupleBytes > maxTuple {
		bad("tuple limit %d is not within 1 to %d bytes", c.Limits.TupleBytes, maxTuple)
	}
	if err := c.settings().Check(); err != nil {
		errs = append(errs, err)
	}
	for _, name := range c.DropReaders {
		if find(c.Readers, name) >= 0 {
			bad("reader %q is configured and to be dropped: take it out of one of the two", name)
		}
	}
	errs = append(errs, c.validatePeers()...)
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return nil
}

func (c Config) validatePeers() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, ok := c.Peers[c.Node]; !ok {
		bad("node %q is not among the peers %v: the peers include this node", c.Node, c.names())
	}
	if n := len(c.Peers); n > maxPeers {
		bad("%d peers: at most %d", n, maxPeers)
	} else if n%2 == 0 && !c.AllowEven {
		bad("%d peers tolerate no more failures than %d: use an odd number, or force it", n, n-1)
	}
	if len(c.Peers) == 1 && c.ListenAddr == "" {
		return errs
	}
	seen := map[string]string{}
	for _, name := range c.names() {
		addr := c.Peers[name]
		if len(c.Peers) == 1 {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil || strings.ContainsAny(name, "/#") {
			bad("peer %q=%q: a peer is a name and host:port, for example enrich-0=host0:7400", name, addr)
		}
		if other, ok := seen[addr]; ok {
			bad("peers %q and %q have the same address %q", other, name, addr)
		}
		seen[addr] = name
	}
	if c.TLS.empty() && !c.Insecure && !loopback(c.ListenAddr) {
		bad("listening at %q without TLS: configure TLS, or allow insecure links explicitly", c.ListenAddr)
	}
	return errs
}

// names returns the peers' names in order.
func (c Config) names() []string { return slices.Sorted(maps.Keys(c.Peers)) }

// loopback reports whether an address to listen at can be reached from this machine only.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
