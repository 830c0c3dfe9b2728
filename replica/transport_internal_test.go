package replica

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// plainFSM remembers what was applied where.
type plainFSM struct {
	mu   sync.Mutex
	got  map[uint64]string
	last uint64
}

func (f *plainFSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got[l.Index] = string(l.Data)
	f.last = max(f.last, l.Index)
	return nil
}

func (*plainFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("none") }
func (*plainFSM) Restore(io.ReadCloser) error         { return nil }

// plainNode is Raft alone on our stream and transport.
type plainNode struct {
	id    serverID
	raft  *raft.Raft
	fsm   *plainFSM
	wire  *transport
	links *stream
	mute  atomic.Bool
	// slow delays log messages to a server and drops vote requests to it; heartbeats pass.
	slow atomic.Value
}

func (p *plainNode) gate(to raft.ServerID, message any) error {
	slow, _ := p.slow.Load().(raft.ServerID)
	switch q := message.(type) {
	case *raft.AppendEntriesRequest:
		if p.mute.Load() {
			return errors.New("one-way partition")
		}
		if to == slow && q.PrevLogEntry != 0 {
			<-time.After(600 * time.Millisecond) // part of the schedule
		}
	case *raft.RequestVoteRequest:
		if to == slow {
			return errors.New("dropped")
		}
	}
	return nil
}

// plainCluster starts three Raft nodes on TCP; fastPath leaves heartbeats to the library.
func plainCluster(t *testing.T, fastPath bool) []*plainNode {
	t.Helper()
	var nodes []*plainNode
	peers := map[string]string{}
	var config raft.Configuration
	var listeners []net.Listener
	for i := range 3 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("n%d", i)
		peers[name] = l.Addr().String()
		listeners = append(listeners, l)
		id := raft.ServerID(name + "#1")
		config.Servers = append(config.Servers, raft.Server{ID: id, Address: raft.ServerAddress(id)})
	}
	for i, l := range listeners {
		n := &plainNode{id: serverID(config.Servers[i].ID), fsm: &plainFSM{got: map[uint64]string{}}}
		log := testLogger(t, n.id.name())
		n.links = testStream(n.id, "life", peers, l, log)
		t.Cleanup(func() { _ = n.links.close() })
		n.wire = newTransport(raftStream{stream: n.links, self: n.id}, 2*time.Second, newHCLogger(log))
		n.wire.fastPath, n.wire.gate = fastPath, n.gate
		c := raft.DefaultConfig()
		c.LocalID, c.Logger, c.NoLegacyTelemetry = config.Servers[i].ID, newHCLogger(log), true
		store := raft.NewInmemStore()
		snaps := raft.NewInmemSnapshotStore()
		if err := raft.BootstrapCluster(c, store, store, snaps, n.wire, config); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(c, n.fsm, store, store, snaps, unpipelined{n.wire})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Shutdown().Error() })
		n.raft = r
		nodes = append(nodes, n)
	}
	return nodes
}

// unpipelined sends log messages one by one, so that each passes the gate.
type unpipelined struct{ *transport }

func (unpipelined) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func leaderOf(t *testing.T, nodes []*plainNode) int {
	t.Helper()
	leader := -1
	eventually(t, "leader", func() error {
		for i, n := range nodes {
			if n.raft.State() == raft.Leader {
				leader = i
				return nil
			}
		}
		return errors.New("none")
	})
	return leader
}

// diverges runs the schedule of hashicorp/raft issue 695 once and reports whether two replicas applied different
// entries at one index: an idle leader, muted outward, has its term raised by the heartbeat of a successor whose log
// messages to it are slow, and is given an entry in that moment.
func diverges(t *testing.T, fastPath bool) bool {
	t.Helper()
	nodes := plainCluster(t, fastPath)
	li := leaderOf(t, nodes)
	a, b := nodes[li], nodes[(li+1)%3]
	for i := range 5 {
		if err := a.raft.Apply(fmt.Appendf(nil, "before %d", i), time.Second).Error(); err != nil {
			t.Fatal(err)
		}
	}
	wait(t.Context(), 150*time.Millisecond)
	term := a.raft.CurrentTerm()
	a.mute.Store(true)
	b.slow.Store(raft.ServerID(a.id))
	var answer raft.TimeoutNowResponse
	if err := a.wire.TimeoutNow(raft.ServerID(b.id), raft.ServerAddress(b.id), &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte(a.id), Addr: []byte(a.id)},
	}, &answer); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); a.raft.CurrentTerm() == term && time.Since(began) < time.Second; {
	}
	_ = a.raft.Apply([]byte("ZOMBIE"), 20*time.Millisecond) // nobody knows
	wait(t.Context(), 300*time.Millisecond)
	a.mute.Store(false)
	b.slow.Store(raft.ServerID(""))
	wait(t.Context(), 1500*time.Millisecond)
	now := nodes[leaderOf(t, nodes)]
	for i := range 3 {
		_ = now.raft.Apply(fmt.Appendf(nil, "after %d", i), time.Second).Error() // judged below
	}
	wait(t.Context(), 500*time.Millisecond)
	return differ(nodes)
}

func differ(nodes []*plainNode) bool {
	for i, x := range nodes {
		for _, y := range nodes[i+1:] {
			x.fsm.mu.Lock()
			y.fsm.mu.Lock()
			different := false
			for at := uint64(1); at <= min(x.fsm.last, y.fsm.last); at++ {
				different = different || x.fsm.got[at] != y.fsm.got[at]
			}
			y.fsm.mu.Unlock()
			x.fsm.mu.Unlock()
			if different {
				return true
			}
		}
	}
	return false
}

func TestHeartbeatsDoNotRaiseTheTermUnderALeader(t *testing.T) {
	t.Parallel()
	for range 2 {
		if diverges(t, false) {
			t.Fatal("replicas diverged")
		}
	}
}

func TestMutantHeartbeatFastPathDiverges(t *testing.T) {
	t.Parallel()
	for range 5 {
		if diverges(t, true) {
			return
		}
	}
	t.Fatal("five runs with the library's handling of heartbeats did not diverge: the test above proves nothing")
}
