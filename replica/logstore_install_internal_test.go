package replica

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// hiddenMonotonic is a log store wrapped by somebody who forgot IsMonotonic: a mutant.
type hiddenMonotonic struct{ raft.LogStore }

// countFSM is a state that counts; its image names no files.
type countFSM struct {
	snaps *snapshotStore
	n     atomic.Uint64
}

func (f *countFSM) Apply(*raft.Log) any { return f.n.Add(1) }
func (f *countFSM) Snapshot() (raft.FSMSnapshot, error) {
	return f.snaps.capture(&Image{Manifest: fmt.Append(nil, f.n.Load())}), nil
}

func (f *countFSM) Restore(source io.ReadCloser) error {
	return f.snaps.restore(source, func(manifest []byte) error {
		var n uint64
		_, err := fmt.Sscan(string(manifest), &n)
		f.n.Store(n)
		return err
	})
}

type countNode struct {
	id    raft.ServerID
	store *storage
	fsm   *countFSM
	trans *raft.InmemTransport
	raft  *raft.Raft
	fatal atomic.Bool
}

// A follower that has some of the log gets a snapshot, and must get on behind it, across the end of a log file.
func TestFollowerGetsOnAfterInstall(t *testing.T) {
	t.Parallel()
	if err := followerAfterInstall(t, func(l *logStore) raft.LogStore { return l }); err != nil {
		t.Fatal(err)
	}
}

func TestMutantHiddenMonotonicWedgesFollower(t *testing.T) {
	t.Parallel()
	if err := followerAfterInstall(t, func(l *logStore) raft.LogStore { return hiddenMonotonic{l} }); err == nil {
		t.Fatal("hiding IsMonotonic passes the test of the install")
	}
}

func followerAfterInstall(t *testing.T, wrap func(*logStore) raft.LogStore) error {
	t.Helper()
	var servers []raft.Server
	nodes := make([]*countNode, 3)
	for i := range nodes {
		nodes[i] = newCountNode(t, fmt.Sprintf("n%d", i))
		servers = append(servers, raft.Server{ID: nodes[i].id, Address: nodes[i].trans.LocalAddr()})
	}
	link := func(a, b *countNode) {
		a.trans.Connect(b.trans.LocalAddr(), b.trans)
		b.trans.Connect(a.trans.LocalAddr(), a.trans)
	}
	link(nodes[0], nodes[1])
	link(nodes[0], nodes[2])
	link(nodes[1], nodes[2])
	for _, n := range nodes {
		n.start(t, wrap(n.store.logs), raft.Configuration{Servers: servers})
		defer n.stop(t)
	}
	leader := awaitCountLeader(t, nodes)
	follower := nodes[0]
	if follower == leader {
		follower = nodes[1]
	}
	if err := applyMany(leader, 20); err != nil {
		t.Fatal(err)
	}
	if !storageAwait(func() bool { return follower.fsm.n.Load() == 20 }) {
		t.Fatal("the follower never got the first entries")
	}
	for _, n := range nodes {
		if n != follower {
			n.trans.Disconnect(follower.trans.LocalAddr())
		}
	}
	follower.trans.DisconnectAll()
	if !storageAwait(func() bool { return leader.raft.State() == raft.Leader }) {
		t.Fatal("no leader without the follower")
	}
	if err := applyMany(leader, 150); err != nil { // several log files
		t.Fatal(err)
	}
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if err := applyMany(leader, 20); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n != follower {
			link(n, follower)
		}
	}
	got := func() bool { return follower.fsm.n.Load() == 190 || follower.fatal.Load() }
	if !storageAwait(got) || follower.fatal.Load() {
		return fmt.Errorf("the follower stands at %d of 190, fatal: %v", follower.fsm.n.Load(), follower.fatal.Load())
	}
	if follower.store.snaps.installs.Load() == 0 {
		t.Fatal("no snapshot was installed")
	}
	leader = awaitCountLeader(t, nodes)
	if err := applyMany(leader, 100); err != nil { // over the end of a file again
		return err
	}
	if !storageAwait(func() bool { return follower.fsm.n.Load() == 290 }) {
		return fmt.Errorf("the follower stands at %d of 290", follower.fsm.n.Load())
	}
	return nil
}

func newCountNode(t *testing.T, name string) *countNode {
	t.Helper()
	n := &countNode{}
	c := testStorage(t, t.TempDir())
	c.node = name
	c.fatal = func(error) { n.fatal.Store(true) }
	n.store = mustOpen(t, c)
	n.id = raft.ServerID(n.store.identity)
	n.fsm = &countFSM{snaps: n.store.snaps}
	_, n.trans = raft.NewInmemTransport(raft.ServerAddress(name))
	return n
}

func (n *countNode) start(t *testing.T, logs raft.LogStore, configuration raft.Configuration) {
	t.Helper()
	c := raft.DefaultConfig()
	c.LocalID, c.LogOutput = n.id, io.Discard
	c.HeartbeatTimeout, c.ElectionTimeout = 200*time.Millisecond, 200*time.Millisecond
	c.LeaderLeaseTimeout = 100 * time.Millisecond
	c.CommitTimeout, c.TrailingLogs, c.SnapshotThreshold = 5*time.Millisecond, 1, 1<<40
	if err := raft.BootstrapCluster(c, logs, n.store.stable, n.store.snaps, n.trans, configuration); err != nil {
		t.Fatal(err)
	}
	r, err := raft.NewRaft(c, n.fsm, logs, n.store.stable, n.store.snaps, n.trans)
	if err != nil {
		t.Fatal(err)
	}
	n.raft = r
}

func (n *countNode) stop(t *testing.T) {
	t.Helper()
	if err := n.raft.Shutdown().Error(); err != nil {
		t.Error(err)
	}
	_ = n.store.close()
}

func awaitCountLeader(t *testing.T, nodes []*countNode) (leader *countNode) {
	t.Helper()
	if !storageAwait(func() bool {
		for _, n := range nodes {
			if n.raft.State() == raft.Leader && n.raft.VerifyLeader().Error() == nil {
				leader = n
				return true
			}
		}
		return false
	}) {
		t.Fatal("no leader")
	}
	return leader
}

func applyMany(leader *countNode, n int) error {
	for range n {
		if err := leader.raft.Apply(make([]byte, 1<<10), 5*time.Second).Error(); err != nil {
			return err
		}
	}
	return nil
}

// storageAwait polls until ok or ten seconds are over.
func storageAwait(ok func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if ok() {
			return true
		}
		<-tick.C
	}
	return ok()
}
