package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

// underLoad runs work while tuples flow, then judges them.
func (c *cluster) underLoad(work func(consume func(n *Node))) {
	c.t.Helper()
	tr := newTraffic(c, uint64(time.Now().UnixNano()))
	producing, stopProducing := context.WithCancel(c.t.Context())
	consuming, stopConsuming := context.WithCancel(c.t.Context())
	defer stopConsuming()
	var producers, consumers sync.WaitGroup
	names := []string{"a", "b", "c"}
	for i := range 3 {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		producers.Go(func() { //nolint:contextcheck // it finishes its batch after ctx has ended
			tr.produce(producing.Done(), fmt.Sprintf("s%d", i), names, r)
		})
	}
	consume := func(n *Node) { consumers.Go(func() { tr.consume(consuming, n) }) }
	for _, n := range c.all() {
		consume(n)
	}
	work(consume)
	stopProducing()
	producers.Wait()
	if err := tr.judge(c.t); err != nil {
		c.t.Fatal(err)
	}
	c.ready()
	c.agree()
	stopConsuming()
	consumers.Wait()
}

// restart stops a node in order and starts it again.
func (c *cluster) restart(name string) *Node {
	c.t.Helper()
	if err := c.node(name).Shutdown(c.t.Context()); err != nil {
		c.t.Errorf("node %s: %v", name, err)
	}
	return c.start(name)
}

func TestRollingRestartUnderLoad(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, nil)
	c.ready()
	c.underLoad(func(consume func(*Node)) {
		for range 2 {
			for _, name := range []string{"a", "b", "c"} {
				consume(c.restart(name))
				c.ready()
			}
		}
	})
}

// TestEveryAddressChanges stops all nodes and starts them at other addresses: their names are what they know each other
// by.
func TestEveryAddressChanges(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, nil)
	c.ready()
	if _, err := c.node("a").Append(t.Context(), tuples("s", 1, 5)); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.all() {
		if err := n.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	for i, name := range []string{"a", "b", "c"} {
		c.tcp.mu.Lock()
		c.tcp.host[name+":1"] = fmt.Sprintf("127.0.0.%d", 2+i)
		c.tcp.mu.Unlock()
		c.start(name)
	}
	c.ready()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the group took %v to form again", took)
	}
	r, err := c.node("b").Append(t.Context(), tuples("s", 5, 6))
	if err != nil || r[0].Duplicates != 1 || r[0].Admitted != 1 {
		t.Fatal(r, err)
	}
}

// fill appends tuples of the given size until so many bytes are in the log.
func fill(t *testing.T, n *Node, source string, from, bytes int) (last int) {
	t.Helper()
	const size = 8 << 10
	value := []byte(strings.Repeat("x", size))
	last = from - 1
	for sent := 0; sent < bytes; sent += size {
		last++
		b := logbuffer.Batch{Source: source, Rule: logbuffer.RuleDense, Tuples: []logbuffer.Tuple{
			{Value: value, Position: int64(last)},
		}}
		if _, err := n.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// TestFollowerBehindTheLogCatchesUp keeps a follower away until the log that it needs is gone: it gets a snapshot.
func TestFollowerBehindTheLogCatchesUp(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, nil)
	c.ready()
	leader := c.leader()
	follower := "a"
	if leader.config.Node == "a" {
		follower = "b"
	}
	c.kill(follower)
	last := fill(t, leader, "s", 1, 2<<20)
	eventually(t, "snapshots", func() error {
		if s := leader.Status(); s.Raft.FirstIndex < 100 {
			return fmt.Errorf("the log begins at %d", s.Raft.FirstIndex)
		}
		return nil
	})
	n := c.start(follower)
	c.ready()
	c.agree()
	if last = fill(t, n, "s", last+1, 1<<20); last < 300 {
		t.Fatal(last)
	}
	c.agree()
	// What was installed must be there after a restart too.
	c.kill(follower)
	c.start(follower)
	c.ready()
	c.agree()
}

func TestWipedNodeRejoinsUnderAFreshID(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, nil)
	c.ready()
	fill(t, c.leader(), "s", 1, 1<<20)
	victim := c.leader().config.Node
	old := c.node(victim).identity().id
	c.kill(victim)
	if err := os.RemoveAll(filepath.Join(c.dir, victim)); err != nil {
		t.Fatal(err)
	}
	n := c.start(victim)
	c.becomesVoter(n, old)
	if _, err := n.Append(t.Context(), tuples("other", 1, 3)); err != nil {
		t.Fatal(err)
	}
	c.agree()
}

// becomesVoter waits until a node has its vote under its present id, and nobody has the old one.
func (c *cluster) becomesVoter(n *Node, old serverID) {
	c.t.Helper()
	eventually(c.t, "a vote for "+n.config.Node, func() error {
		if n.ctx.Err() != nil {
			c.t.Fatalf("node %s ended: %v", n.config.Node, n.Err())
		}
		members := n.Status().Members
		voter := false
		for _, m := range members {
			if m.ID == string(old) {
				return fmt.Errorf("%s is still a member", old)
			}
			voter = voter || m.ID == string(n.identity().id) && m.Voter
		}
		if !voter {
			return fmt.Errorf("members are %v", members)
		}
		return n.Ready()
	})
	if n.identity().id == old {
		c.t.Fatal("the node took up its old id")
	}
}

func TestDamagedNodeIsQuarantinedAndRejoins(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, nil)
	c.ready()
	fill(t, c.leader(), "s", 1, 100<<10)
	victim := c.leader().config.Node
	old := c.node(victim).identity().id
	c.kill(victim)
	flipByteInLog(t, filepath.Join(c.dir, victim))
	n := c.start(victim)
	if n.condition() != isQuarantined {
		t.Fatalf("damaged data was opened: %s", n.condition())
	}
	c.becomesVoter(n, old)
	c.agree()
	aside, err := filepath.Glob(filepath.Join(c.dir, victim, "quarantine-*"))
	if err != nil || len(aside) != 1 {
		t.Fatal("the damaged data is not kept:", aside, err)
	}
}

// flipByteInLog damages the middle of what the newest file of the log holds.
func flipByteInLog(t *testing.T, dir string) {
	t.Helper()
	var newest string
	err := filepath.WalkDir(filepath.Join(dir, "live", "wal"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".wal") {
			newest = path
		}
		return err
	})
	if err != nil || newest == "" {
		t.Fatal(newest, err)
	}
	p, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	used := len(strings.TrimRight(string(p), "\x00"))
	p[used/2] ^= 0x40
	if err := os.WriteFile(newest, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAloneAndDamagedIsNotOpened(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n := openAlone(t, dir)
	eventually(t, "ready", n.Ready)
	last := fill(t, n, "s", 1, 100<<10)
	lineage := n.Lineage()
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	flipByteInLog(t, dir)
	config := n.config
	if _, err := Open(t.Context(), config); !errors.Is(err, ErrQuarantined) {
		t.Fatalf("damaged data was opened: %v", err)
	}
	fresh, err := Recover(t.Context(), config)
	if err != nil || fresh == lineage {
		t.Fatal(fresh, err)
	}
	n = openAlone(t, dir)
	defer n.Shutdown(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	eventually(t, "ready after recovery", n.Ready)
	if n.Lineage() != fresh {
		t.Fatal("not the new lineage")
	}
	at, _, err := n.Position(t.Context(), "s")
	if err != nil || at == 0 || at > int64(last) {
		t.Fatalf("position %d of %d: %v", at, last, err)
	}
}

// TestNoQuorumLeftEndsTheNode wipes two of three: the third alone must not be outvoted by empty nodes.
func TestNoQuorumLeftEndsTheNode(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, func(c *Config) { c.ElectionTimeout = 200 * time.Millisecond })
	c.ready()
	fill(t, c.leader(), "s", 1, 64<<10)
	c.agree() // c must have it all
	for _, name := range []string{"a", "b"} {
		c.kill(name)
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		c.start(name)
	}
	for _, name := range []string{"a", "b", "c"} {
		n := c.node(name)
		select {
		case <-n.Done():
			if !errors.Is(n.Err(), ErrNoQuorum) {
				t.Errorf("node %s ended: %v", name, n.Err())
			}
		case <-time.After(soon):
			t.Errorf("node %s goes on: %v", name, n.Ready())
		}
	}
	// The one that has the data starts a new life; the others join it.
	lineage, err := Recover(t.Context(), c.node("c").config)
	if err != nil {
		t.Fatal(err)
	}
	for name := range c.peers {
		c.start(name)
	}
	for _, name := range []string{"a", "b", "c"} {
		c.becomesVoter(c.node(name), "")
		if got := c.node(name).Lineage(); got != lineage {
			t.Errorf("node %s has lineage %q", name, got)
		}
	}
	if at, known, err := c.node("a").Position(t.Context(), "s"); err != nil || !known || at != 8 {
		t.Fatal(at, known, err)
	}
}

// TestAnotherLifeIsRefused recovers one node of three while the others go on: they must not mix.
func TestAnotherLifeIsRefused(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, func(c *Config) { c.ElectionTimeout = 200 * time.Millisecond })
	c.ready()
	c.agree()
	c.kill("b")
	if _, err := Recover(t.Context(), c.node("b").config); err != nil {
		t.Fatal(err)
	}
	n := c.start("b")
	eventually(t, "the leader to be refused by b", func() error {
		for _, name := range []string{"a", "c"} {
			o := c.node(name)
			o.mu.Lock()
			no := o.refused["b"]
			o.mu.Unlock()
			if no != nil && no.Code == refusedLineage && strings.Contains(no.Text, "another life") {
				return nil
			}
		}
		return errors.New("nobody was")
	})
	for _, name := range []string{"a", "c"} {
		eventually(t, name+" to go on", c.node(name).Ready)
	}
	if n.Lineage() == c.node("a").Lineage() {
		t.Error("one lineage for two lives")
	}
}
