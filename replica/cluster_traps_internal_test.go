package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft-wal/types"

	walfs "github.com/hashicorp/raft-wal/fs"

	"ftproxy/logbuffer"
)

// TestFiftyChangesOfLeader moves leadership fifty times under traffic: outstanding stays sent minus acknowledged, and
// the flow goes on.
func TestFiftyChangesOfLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, nil)
		c.ready()
		c.underLoad(func(func(*Node)) {
			for range 50 {
				leader := c.leader()
				term := leader.core.CurrentTerm()
				_ = leader.core.LeadershipTransfer().Error() // judged by the term
				eventually(t, "another tenure", func() error {
					if now := c.leader().core.CurrentTerm(); now == term {
						return fmt.Errorf("still term %d", now)
					}
					return nil
				})
				wait(t.Context(), 100*time.Millisecond)
			}
		})
		eventually(t, "all acknowledged", func() error {
			for _, n := range c.all() {
				var r logbuffer.ReaderCursor
				var l Ledger
				n.fsm.view(func(s *State) { r, l = s.Cursors(bufferIn).Readers[0], s.Ledgers()[0] })
				if l.Received != l.Delivered+l.Deduplicated+l.Retained || l.Retained != r.PendingTuples {
					t.Fatalf("the ledger does not add up: %+v", l)
				}
				if l.Retained != 0 {
					return fmt.Errorf("%d outstanding on %s", l.Retained, n.config.Node)
				}
			}
			return nil
		})
		c.stop()
	})
}

// ends waits until a node ends and returns why.
func ends(t *testing.T, n *Node) error {
	t.Helper()
	eventually(t, n.config.Node+" ends", func() error {
		if n.ctx.Err() == nil {
			return errors.New("it goes on")
		}
		return nil
	})
	<-n.Done()
	return n.Err()
}

func TestEntryOfANewerVersionStopsTheNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, nil)
		c.ready()
		var b entryBuilder
		b.add(command{Kind: kindEnd, Proposer: "x"})
		leader := c.leader()
		_ = leader.core.Apply(b.seal(0), 0) // judged by how the nodes end
		// Two stop when they see it committed; the third has nobody left to learn that from.
		eventually(t, "two stop", func() error {
			stopped := 0
			for _, n := range c.all() {
				if n.ctx.Err() == nil {
					continue
				}
				stopped++
				<-n.Done()
				if err := n.Err(); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "upgrade this node") {
					t.Errorf("node %s: %v", n.config.Node, err)
				}
			}
			if stopped < 2 {
				return fmt.Errorf("%d stopped", stopped)
			}
			return nil
		})
		c.stop()
	})
}

func TestNewKindsWaitForAllMembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := "b"
		c := newCluster(t, func(c *Config) {
			c.hooks.newKinds = map[kind]int{kindOpenSession: 2}
			if c.hooks.format = 2; c.Node == old {
				c.hooks.format = 1
			}
		})
		c.ready()
		knows := func(version int) func() error {
			return func() error {
				var got map[string]int
				c.node("a").fsm.view(func(s *State) { got = s.Versions() })
				if len(got) != 3 || got[string(c.node("b").identity().id)] != version {
					return fmt.Errorf("announced %v", got)
				}
				return nil
			}
		}
		eventually(t, "announcements", knows(1))
		_, err := c.node("a").OpenSession(t.Context())
		if !errors.Is(err, logbuffer.ErrUnavailable) || !strings.Contains(err.Error(), "upgrade it first") {
			t.Fatalf("a new kind was written though b does not read it: %v", err)
		}
		old = ""
		c.kill("b")
		c.start("b")
		eventually(t, "announcement of the upgraded node", knows(2))
		if _, err := c.node("a").OpenSession(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.stop()
	})
}

func TestDivergedMinorityStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(c *Config) {
			c.hashEvery = 32
			if c.Node == "b" {
				c.hooks.twist = 1
			}
		})
		c.ready()
		fill(t, c.node("a"), "s", 1, 1<<20)
		if err := ends(t, c.node("b")); !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), "majority") {
			t.Errorf("node b: %v", err)
		}
		fill(t, c.node("a"), "s2", 1, 64<<10)
		for _, name := range []string{"a", "c"} {
			if err := c.node(name).Err(); err != nil {
				t.Errorf("node %s ended too: %v", name, err)
			}
		}
		c.stop()
	})
}

func TestWithoutMajorityAllStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(c *Config) {
			c.hashEvery = 32
			c.hooks.twist = uint64(c.Node[0])
		})
		c.ready()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for i := 1; ctx.Err() == nil; i++ {
			if _, err := c.node("a").Append(ctx, tuples("s", i, i)); err != nil {
				break
			}
			wait(ctx, time.Millisecond) // in a bubble time passes only in waits
		}
		for _, n := range c.all() {
			if err := ends(t, n); !errors.Is(err, ErrDiverged) {
				t.Errorf("node %s: %v", n.config.Node, err)
			}
		}
	})
}

// hangingVFS is a log whose syncs can hang or fail.
type hangingVFS struct {
	unsynced
	mu   sync.Mutex
	hang chan struct{} // syncs wait for it
	fail error
}

func (v *hangingVFS) set(hang chan struct{}, fail error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hang, v.fail = hang, fail
}

func (v *hangingVFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	return hangingFile{f, v}, err
}

func (v *hangingVFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.VFS.OpenWriter(dir, name)
	return hangingFile{f, v}, err
}

type hangingFile struct {
	types.WritableFile
	v *hangingVFS
}

func (f hangingFile) Sync() error {
	f.v.mu.Lock()
	hang, fail := f.v.hang, f.v.fail
	f.v.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return fail
}

func onHangingDisks(t *testing.T) (*cluster, map[string]*hangingVFS) {
	t.Helper()
	disks := map[string]*hangingVFS{}
	c := newCluster(t, func(c *Config) {
		v := &hangingVFS{unsynced: unsynced{walfs.New()}}
		disks[c.Node] = v
		c.hooks.storage.vfs = v
	})
	c.ready()
	return c, disks
}

// TestLeaderWhoseDiskHangsIsSucceeded stalls the leader's disk for ten seconds: the others go on, and it follows them
// when its disk answers again.
func TestLeaderWhoseDiskHangsIsSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, disks := onHangingDisks(t)
		old := c.leader()
		hang := make(chan struct{})
		disks[old.config.Node].set(hang, nil)
		// The one that waits for the disk learns that it does not know.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := old.Append(ctx, tuples("s", 1, 1)); !errors.Is(err, logbuffer.ErrUnknown) {
			t.Errorf("append to a hanging disk: %v", err)
		}
		var successor *Node
		eventually(t, "a successor", func() error {
			for _, n := range c.all() {
				if n != old && n.committer() != nil {
					successor = n
					return nil
				}
			}
			return errors.New("none")
		})
		if _, err := successor.Append(t.Context(), tuples("s", 1, 2)); err != nil {
			t.Fatal(err)
		}
		if err := old.Ready(); err == nil {
			t.Error("a node whose disk hangs calls itself ready")
		}
		wait(t.Context(), 8*time.Second)
		disks[old.config.Node].set(nil, nil)
		close(hang)
		c.ready()
		if r, err := old.Append(t.Context(), tuples("s", 2, 3)); err != nil || r[0].Duplicates != 1 {
			t.Fatal(r, err)
		}
		c.agree()
		c.stop()
	})
}

func TestDiskThatHangsForGoodEndsTheNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, disks := onHangingDisks(t)
		old := c.leader()
		hang := make(chan struct{})
		disks[old.config.Node].set(hang, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = old.Append(ctx, tuples("s", 1, 1)) // it hangs
		if err := ends(t, old); !errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), "look at the disk") {
			t.Error(err)
		}
		disks[old.config.Node].set(nil, nil)
		close(hang)
		c.stop()
	})
}

func TestFailingDiskEndsTheNodeOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, disks := onHangingDisks(t)
		old := c.leader()
		disks[old.config.Node].set(nil, errors.New("input/output error"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := old.Append(ctx, tuples("s", 1, 1)); !errors.Is(err, logbuffer.ErrUnknown) {
			t.Errorf("append to a failing disk: %v", err)
		}
		if err := ends(t, old); !errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), "input/output error") {
			t.Error(err)
		}
		for _, n := range c.all() {
			if n == old {
				continue
			}
			if r, err := n.Append(t.Context(), tuples("s", 1, 2)); err != nil || r[0].Admitted+r[0].Duplicates != 2 {
				t.Fatal(r, err)
			}
		}
		c.stop()
	})
}

// TestIsolatedLeaderDecidesNothing asks a leader that is cut off for what it must only know behind a barrier.
func TestIsolatedLeaderDecidesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, nil)
		c.ready()
		old := c.leader()
		var rest []string
		for name := range c.peers {
			if name != old.config.Node {
				rest = append(rest, name)
			}
		}
		asked := make(chan error, 1)
		go func() {
			asked <- old.Lead(t.Context(), func(ctx context.Context, tn *Tenure) error {
				c.net.separate(true, []string{old.config.Node}, rest)
				ctx = context.WithoutCancel(ctx)
				if _, _, _, _, err := tn.Outlet("out").Cursor(ctx); !errors.Is(err, logbuffer.ErrUnavailable) {
					return fmt.Errorf("a leader without a quorum gave a cursor: %w", err)
				}
				err := tn.Outlet("out").Ack(ctx, logbuffer.Ack{UpTo: 0})
				if !errors.Is(err, logbuffer.ErrUnknown) && !errors.Is(err, logbuffer.ErrUnavailable) {
					return fmt.Errorf("a leader without a quorum acknowledged: %w", err)
				}
				return nil
			})
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		wait(t.Context(), time.Millisecond)
		if _, _, err := old.Position(ctx, "s"); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("a node without a quorum knows a position: %v", err)
		}
		if _, err := old.Append(ctx, tuples("s", 1, 1)); err == nil {
			t.Error("a node without a quorum took a tuple")
		}
		c.net.heal()
		c.ready()
		select {
		case err := <-asked:
			t.Error(err)
		default:
		}
		c.stop()
		if err := <-asked; err != nil {
			t.Error(err)
		}
	})
}

func TestAppendWaitsWhileTheBufferIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(c *Config) { c.Limits.BufferBytes = 256 << 10 })
		c.ready()
		n := c.node("a")
		var err error
		at := 0
		for err == nil && at < 1000 {
			at++
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = n.Append(ctx, logbuffer.Batch{Source: "s", Rule: logbuffer.RuleDense, Tuples: []logbuffer.Tuple{
				{Value: make([]byte, 8<<10), Position: int64(at)},
			}})
			cancel()
		}
		if !errors.Is(err, logbuffer.ErrUnavailable) || at < 32 || at > 40 {
			t.Fatalf("after %d tuples of 8 KiB: %v", at, err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := n.Append(t.Context(), tuples("s", at, at))
			waiting <- err
		}()
		synctest.Wait()
		select {
		case err := <-waiting:
			t.Fatal("a full buffer took a tuple:", err)
		default:
		}
		deliver(t, c.leader(), at-1)
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		c.stop()
	})
}

func TestDeadLettersAreListedRequeuedAndDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, func(c *Config) { c.Limits.DeadLetters = 2 })
		c.ready()
		if _, err := c.node("a").Append(t.Context(), tuples("s", 1, 4)); err != nil {
			t.Fatal(err)
		}
		leader := c.leader()
		ctx, cancel := context.WithCancel(t.Context())
		letter := func(from uint64) []logbuffer.Letter {
			return []logbuffer.Letter{{From: from, Reason: "refused", Attempts: 3, Source: "s", Tuple: logbuffer.Tuple{
				Value: fmt.Appendf(nil, "s %d", from), Position: int64(from),
			}}}
		}
		err := leader.Lead(ctx, func(ctx context.Context, tn *Tenure) error {
			defer cancel()
			o := tn.Outlet("out")
			for i := uint64(1); i <= 2; i++ {
				if err := o.Ack(ctx, logbuffer.Ack{UpTo: i, Dead: letter(i)}); err != nil {
					return err
				}
			}
			if err := o.Ack(ctx, logbuffer.Ack{UpTo: 3, Dead: letter(3)}); !errors.Is(err, logbuffer.ErrUnavailable) {
				return fmt.Errorf("a full DEAD took a letter: %w", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.all() {
			eventually(t, "letters", func() error {
				l, err := n.Letters(0, 10)
				if err != nil || len(l) != 2 || l[0].Reader != "out" || string(l[1].Tuple.Value) != "s 2" {
					return fmt.Errorf("%d letters: %w", len(l), err)
				}
				return nil
			})
		}
		if err := c.node("b").Requeue(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := c.node("c").DropLetter(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if err := c.node("c").DropLetter(t.Context(), 2); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("a letter was dropped twice: %v", err)
		}
		if got := deliver(t, c.leader(), 3); got[2] != "s 1" {
			t.Fatal(got)
		}
		c.stop()
	})
}
