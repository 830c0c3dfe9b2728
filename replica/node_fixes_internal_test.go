package replica

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// TestRecoveredAloneGoesOnAfterNoMajority recovers one node of a group that stopped because its states differed.
func TestRecoveredAloneGoesOnAfterNoMajority(t *testing.T) {
	t.Parallel()
	if err := recoveredAlone(t, false); err != nil {
		t.Error(err)
	}
}

func TestMutantLoneVoterIsJudged(t *testing.T) {
	t.Parallel()
	if err := recoveredAlone(t, true); !errors.Is(err, ErrDiverged) {
		t.Errorf("a lone voter that is judged did not stop: %v", err)
	}
}

// recoveredAlone returns what became of the recovered node.
func recoveredAlone(t *testing.T, judged bool) (outcome error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(c *Config) {
			c.hashEvery = 32
			c.hooks.twist = uint64(c.Node[0])
			c.hooks.judgedAlone = judged
		})
		c.ready()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for i := 1; ctx.Err() == nil; i++ {
			if _, err := c.node("a").Append(ctx, tuples("s", i, i)); err != nil {
				break
			}
			wait(ctx, time.Millisecond)
		}
		for _, n := range c.all() {
			if err := ends(t, n); !errors.Is(err, ErrDiverged) {
				t.Fatalf("node %s: %v", n.config.Node, err)
			}
		}
		if _, err := Recover(t.Context(), c.node("a").config); err != nil {
			t.Fatal(err)
		}
		n := c.start("a")
		eventually(t, "the recovered node", func() error {
			select {
			case <-n.Done():
				return nil // it stopped again
			default:
				return n.Ready()
			}
		})
		wait(t.Context(), 5*time.Second)
		if outcome = n.Err(); outcome == nil {
			outcome = n.Ready()
		}
		c.stop()
	})
	return outcome
}

// TestUnknownKindIsRefusedByTheLeader forwards a command of a kind that a newer build may have.
func TestUnknownKindIsRefusedByTheLeader(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{0, kindEnd} {
		synctest.Test(t, func(t *testing.T) {
			if err := forwardUnknownKind(t, k, false); err != nil {
				t.Errorf("kind %d: %v", k, err)
			}
		})
	}
}

func TestMutantUnknownKindBecomesAnEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := forwardUnknownKind(t, kindEnd, true); !errors.Is(err, ErrVersion) {
			t.Errorf("an entry of an unknown kind stopped nobody: %v", err)
		}
	})
}

// forwardUnknownKind returns what was wrong with the answer, and why nodes stopped.
func forwardUnknownKind(t *testing.T, k kind, anyKind bool) error {
	t.Helper()
	c := newCluster(t, func(c *Config) { c.hooks.anyKind = anyKind })
	defer c.stop()
	c.ready()
	leader := c.leader()
	from := c.node("a")
	if from == leader {
		from = c.node("b")
	}
	conn, err := from.stream.dial(t.Context(), linkForward, leader.identity().id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	st := Proposer{}
	from.fsm.view(func(s *State) { st, _ = s.Proposer(laneProposer + string(from.identity().id)) })
	w, r := bufio.NewWriter(conn), bufio.NewReader(conn)
	cmd := command{Kind: k, Incarnation: st.Incarnation, Number: st.Last + 1}
	if err = errors.Join(writeForward(w, frameCommand, cmd.appendTo(nil)), w.Flush()); err != nil {
		t.Fatal(err)
	}
	what, text, err := readForward(r)
	if err != nil || what != frameError || !strings.Contains(string(text), "upgrade it") {
		err = errors.Join(fmt.Errorf("frame %d %q", what, text), err)
	}
	if _, _, more := readForward(r); !errors.Is(more, io.EOF) {
		err = errors.Join(err, fmt.Errorf("the connection goes on: %w", more))
	}
	wait(t.Context(), 5*time.Second)
	for _, n := range c.all() {
		err = errors.Join(err, n.Err())
	}
	if err != nil {
		return err
	}
	_, err = from.Append(t.Context(), tuples("s", 1, 1))
	return err
}

// TestRepeatedInstallMakesANewSnapshot is the reaction to hashicorp/raft issue 697: what follows a snapshot that a
// follower needs again is missing, so that only a newer one helps.
func TestRepeatedInstallMakesANewSnapshot(t *testing.T) {
	t.Parallel()
	n := openAlone(t, filepath.Join(t.TempDir(), "data"))
	defer n.Shutdown(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	eventually(t, "ready", n.Ready)
	fill(t, n, "s", 1, 64<<10)
	applied := n.core.AppliedIndex()
	n.wire.installed("b#1", 1, 1)
	wait(t.Context(), 2*snapshotPoll)
	if got := n.Status().Raft.Snapshots; got != 0 {
		t.Fatalf("one install made %d snapshots", got)
	}
	n.wire.installed("b#1", 1, 2)
	eventually(t, "a new snapshot", func() error {
		if s := n.Status().Raft; s.Snapshots != 1 || s.SnapshotIndex < applied {
			return errors.New("none")
		}
		return nil
	})
}

// TestInstallsOfOneSnapshotAreCounted sends snapshots through the transport.
func TestInstallsOfOneSnapshotAreCounted(t *testing.T) {
	t.Parallel()
	peers := map[string]string{}
	var ends []*transport
	var listeners []net.Listener
	names := []string{"a", "b"}
	for _, name := range names {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		peers[name], listeners = l.Addr().String(), append(listeners, l)
	}
	for i, name := range names {
		id, log := serverID(name+"#1"), testLogger(t, name)
		links := testStream(id, "life", peers, listeners[i], log)
		t.Cleanup(func() { _ = links.close() })
		ends = append(ends, newTransport(raftStream{stream: links, self: id}, 2*time.Second, newHCLogger(log)))
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	from, to := ends[0], ends[1]
	type told struct {
		index uint64
		times int
	}
	var got []told
	from.installed = func(_ raft.ServerID, index uint64, times int) { got = append(got, told{index, times}) }
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for range 4 {
			rpc := <-to.Consumer()
			_, err := io.Copy(io.Discard, rpc.Reader)
			rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, err)
		}
	}()
	const id = "b#1"
	for _, index := range []uint64{7, 7, 9, 7} {
		q := &raft.InstallSnapshotRequest{SnapshotVersion: raft.SnapshotVersionMax, LastLogIndex: index, Size: 4}
		var p raft.InstallSnapshotResponse
		if err := from.InstallSnapshot(id, id, q, &p, strings.NewReader("data")); err != nil {
			t.Fatal(err)
		}
	}
	<-answered
	want := []told{{7, 1}, {7, 2}, {9, 1}, {7, 1}}
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("told %v, want %v", got, want)
		}
	}
}

// TestAppendWaitsForFreeSpace has a disk that is full for a while.
func TestAppendWaitsForFreeSpace(t *testing.T) {
	t.Parallel()
	n := openAlone(t, filepath.Join(t.TempDir(), "data"))
	defer n.Shutdown(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	eventually(t, "ready", n.Ready)
	leave := func(free int64) {
		n.store.space.mu.Lock()
		defer n.store.space.mu.Unlock()
		n.store.space.statfs = func(string) (int64, int64, error) { return free, 1 << 40, nil }
		n.store.space.checked = time.Time{}
	}
	leave(n.store.space.minimum - 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*diskPoll)
	defer cancel()
	if _, err := n.Append(ctx, tuples("s", 1, 1)); !errors.Is(err, logbuffer.ErrUnavailable) ||
		!strings.Contains(err.Error(), "free some space") {
		t.Fatalf("a full disk took a tuple: %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := n.Append(t.Context(), tuples("s", 1, 1))
		waiting <- err
	}()
	wait(t.Context(), 2*diskPoll)
	select {
	case err := <-waiting:
		t.Fatal("a full disk took a tuple:", err)
	default:
	}
	leave(n.store.space.minimum)
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

// unanswered is a future of Raft that is answered when the test says so.
type unanswered chan struct{}

func (u unanswered) Error() error {
	<-u
	return nil
}

// TestFuturesAreWaitedFor gives up a future, which closing still waits for.
func TestFuturesAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w futures
		f := make(unanswered)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.await(ctx, nil, f); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		closed := make(chan struct{})
		go func() {
			w.close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed although a goroutine waits for Raft")
		default:
		}
		close(f)
		<-closed
		if err := w.await(t.Context(), nil, f); !errors.Is(err, errStopped) {
			t.Error(err)
		}
	})
}
