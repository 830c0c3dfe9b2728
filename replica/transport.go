package replica

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// transport is Raft's network transport with what the library lacks:
//
//   - Heartbeats take the ordinary way. Handled aside, as the library does, they can raise the term under a leader that
//     is just writing an entry, and that entry then goes out under a term that another leader owns: replicas diverge
//     for good (hashicorp/raft issue 695).
//   - A gate before every message, which a leader with a hanging disk closes to be succeeded.
//   - Repeated installs of one snapshot are noticed (issue 697).
type transport struct {
	*raft.NetworkTransport
	// gate returns why a message must not be sent, nil if it may.
	gate func(to raft.ServerID, message any) error
	// installed is told that a follower took a snapshot, and how often in a row it took that one.
	installed func(to raft.ServerID, index uint64, times int)
	// fastPath restores the library's handling of heartbeats. It exists to show that the test of it can fail.
	fastPath bool

	mu       sync.Mutex
	installs map[raft.ServerID]install
}

type install struct {
	index uint64
	times int
}

// newTransport returns a transport over the stream. An answer that takes longer than timeout breaks its connection; it
// includes the follower's disk write.
func newTransport(s raftStream, timeout time.Duration, log *hclogger) *transport {
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: s, MaxPool: 3, MaxRPCsInFlight: 2, Timeout: timeout, Logger: log,
		}),
		gate:      func(raft.ServerID, any) error { return nil },
		installed: func(raft.ServerID, uint64, int) {},
		installs:  map[raft.ServerID]install{},
	}
}

// SetHeartbeatHandler implements raft.Transport by doing nothing; see transport.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	if t.fastPath {
		t.NetworkTransport.SetHeartbeatHandler(handle)
	}
}

// AppendEntries implements raft.Transport.
func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest,
	p *raft.AppendEntriesResponse,
) error {
	if err := t.gate(id, q); err != nil {
		return err
	}
	return t.NetworkTransport.AppendEntries(id, to, q, p)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	return &gatedPipeline{AppendPipeline: p, t: t, id: id}, nil
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest,
	p *raft.RequestVoteResponse,
) error {
	if err := t.gate(id, q); err != nil {
		return err
	}
	return t.NetworkTransport.RequestVote(id, to, q, p)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest,
	p *raft.RequestPreVoteResponse,
) error {
	if err := t.gate(id, q); err != nil {
		return err
	}
	return t.NetworkTransport.RequestPreVote(id, to, q, p)
}

// InstallSnapshot implements raft.Transport.
func (t *transport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest,
	p *raft.InstallSnapshotResponse, data io.Reader,
) error {
	if err := t.gate(id, q); err != nil {
		return err
	}
	if err := t.NetworkTransport.InstallSnapshot(id, to, q, p, data); err != nil || !p.Success {
		return err
	}
	t.mu.Lock()
	in := t.installs[id]
	if in.index != q.LastLogIndex {
		in = install{index: q.LastLogIndex}
	}
	in.times++
	t.installs[id] = in
	t.mu.Unlock()
	t.installed(id, in.index, in.times)
	return nil
}

// gatedPipeline is a pipeline behind the transport's gate.
type gatedPipeline struct {
	raft.AppendPipeline
	t  *transport
	id raft.ServerID
}

// AppendEntries implements raft.AppendPipeline.
func (p *gatedPipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture,
	error,
) {
	if err := p.t.gate(p.id, q); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(q, r)
}
