package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft-wal/types"

	walfs "github.com/hashicorp/raft-wal/fs"

	"ftproxy/logbuffer"
)

// cluster is a group of nodes in one process, on a network of pipes that can be cut, with real data folders whose log
// is not synced (a process that is killed loses nothing of what it wrote).
type cluster struct {
	t     *testing.T
	net   *pipeNet
	tcp   *tcpNet // instead of net
	dir   string
	peers map[string]string
	tune  func(c *Config)

	mu    sync.Mutex
	nodes map[string]*Node
}

func newCluster(t *testing.T, tune func(c *Config)) *cluster {
	t.Helper()
	c := prepareCluster(t, tune)
	c.net = newPipeNet()
	for name := range c.peers {
		c.start(name)
	}
	return c
}

// newTCPCluster is a cluster on real sockets, with synced logs.
func newTCPCluster(t *testing.T, tune func(c *Config)) *cluster {
	t.Helper()
	c := prepareCluster(t, tune)
	c.tcp = &tcpNet{host: map[string]string{}, at: map[string]string{}}
	for name := range c.peers {
		c.start(name)
	}
	return c
}

func prepareCluster(t *testing.T, tune func(c *Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: fastDir(t), peers: map[string]string{}, tune: tune, nodes: map[string]*Node{}}
	for _, name := range []string{"a", "b", "c"} {
		c.peers[name] = name + ":1"
	}
	t.Cleanup(c.stop)
	return c
}

// tcpNet resolves the names of nodes to where they listen at present.
type tcpNet struct {
	mu   sync.Mutex
	host map[string]string // where a node is to listen; 127.0.0.1 if not set
	at   map[string]string // where it does
}

func (n *tcpNet) listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host := n.host[addr]
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", host+":0")
	if err == nil {
		n.at[addr] = l.Addr().String()
	}
	return l, err
}

func (n *tcpNet) dial(ctx context.Context, _, to string) (net.Conn, error) {
	n.mu.Lock()
	at := n.at[to]
	n.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", at)
}

// fastDir is a folder in memory if there is one: these tests are not about the disk.
func fastDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ftproxy-test-") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (c *cluster) start(name string) *Node {
	c.t.Helper()
	config := Config{
		Name: "op", Node: name, Peers: c.peers, AllowEven: true, Insecure: true,
		DataDir: filepath.Join(c.dir, name), Readers: []logbuffer.Reader{{Name: "out"}}, Logger: testLogger(c.t, name),
		Limits: Limits{TailBytes: 256 << 10, SegmentBytes: 64 << 10, SnapshotBytes: 256 << 10},
		hooks:  &hooks{},
	}
	if c.tcp != nil {
		config.hooks.listen = c.tcp.listen
		config.hooks.dial = func(ctx context.Context, addr string) (net.Conn, error) { return c.tcp.dial(ctx, "", addr) }
	} else {
		config.hooks.listen = c.net.listen
		config.hooks.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return c.net.dial(ctx, name+":1", addr)
		}
		config.hooks.storage.vfs = unsynced{walfs.New()}
	}
	if c.tune != nil {
		c.tune(&config)
	}
	n, err := Open(c.t.Context(), config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = n
	return n
}

var errKilled = errors.New("killed by the test")

// kill ends a node without order.
func (c *cluster) kill(name string) {
	n := c.node(name)
	n.fail(errKilled)
	<-n.Done()
	if !errors.Is(n.Err(), errKilled) {
		c.t.Errorf("node %s had ended: %v", name, n.Err())
	}
}

func (c *cluster) node(name string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

func (c *cluster) all() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*Node
	for _, n := range c.nodes {
		list = append(list, n)
	}
	return list
}

func (c *cluster) stop() {
	var wg sync.WaitGroup
	for _, n := range c.all() {
		wg.Go(func() {
			if n.ctx.Err() == nil {
				n.fail(errKilled)
			}
			<-n.Done()
		})
	}
	wg.Wait()
}

// leader waits for a node that leads, and whose tenure has begun.
func (c *cluster) leader() *Node {
	c.t.Helper()
	var leader *Node
	eventually(c.t, "a leader", func() error {
		for _, n := range c.all() {
			n.mu.Lock()
			reign := n.reign
			n.mu.Unlock()
			if reign != nil && n.ctx.Err() == nil {
				leader = n
				return nil
			}
		}
		return errors.New("none")
	})
	return leader
}

func (c *cluster) ready() {
	c.t.Helper()
	for name := range c.peers {
		eventually(c.t, name+" ready", func() error {
			n := c.node(name)
			if n.ctx.Err() != nil {
				c.t.Fatalf("node %s ended: %v", name, n.Err())
			}
			return n.Ready()
		})
	}
}

// unsynced is a log that is not synced.
type unsynced struct{ types.VFS }

func (u unsynced) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := u.VFS.Create(dir, name, size)
	return unsyncedFile{f}, err
}

func (u unsynced) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := u.VFS.OpenWriter(dir, name)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ types.WritableFile }

func (unsyncedFile) Sync() error { return nil }

// pipeNet is a network whose links can be cut.
type pipeNet struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	conns     map[*pipeConn]struct{}
	cut       map[[2]string]bool
}

func newPipeNet() *pipeNet {
	return &pipeNet{listeners: map[string]*pipeListener{}, conns: map[*pipeConn]struct{}{}, cut: map[[2]string]bool{}}
}

func (p *pipeNet) listen(addr string) (net.Listener, error) {
	l := &pipeListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners[addr] = l
	return l, nil
}

var errCut = errors.New("no route to host")

func (p *pipeNet) dial(ctx context.Context, from, to string) (net.Conn, error) {
	p.mu.Lock()
	l, cut := p.listeners[to], p.cut[[2]string{from, to}]
	p.mu.Unlock()
	if cut || l == nil {
		return nil, errCut
	}
	a, b := net.Pipe()
	ends := [2]string{from, to}
	here, there := &pipeConn{Conn: a, net: p, ends: ends}, &pipeConn{Conn: b, net: p, ends: ends}
	p.mu.Lock()
	p.conns[here], p.conns[there] = struct{}{}, struct{}{}
	p.mu.Unlock()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
	case <-ctx.Done():
	}
	return nil, errors.Join(errCut, here.Close(), there.Close())
}

// separate cuts the links between two groups of nodes, or heals them.
func (p *pipeNet) separate(cut bool, left, right []string) {
	var broken []*pipeConn
	p.mu.Lock()
	for _, l := range left {
		for _, r := range right {
			for _, ends := range [][2]string{{l + ":1", r + ":1"}, {r + ":1", l + ":1"}} {
				p.cut[ends] = cut
				for c := range p.conns {
					if cut && c.ends == ends {
						broken = append(broken, c)
					}
				}
			}
		}
	}
	p.mu.Unlock()
	for _, c := range broken {
		_ = c.Close()
	}
}

func (p *pipeNet) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.cut)
}

type pipeConn struct {
	net.Conn
	net  *pipeNet
	ends [2]string
}

func (c *pipeConn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}

type pipeListener struct {
	addr   string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return serverAddr(l.addr) }

// traffic sends numbered tuples of several sources into random nodes, repeating what is not answered, and judges what
// comes out of the buffer: by offset, since a new leader delivers again what its predecessor did not see acknowledged.
type traffic struct {
	c    *cluster
	rand *rand.Rand

	mu       sync.Mutex
	sent     map[string]int    // by source: positions that were acknowledged
	out      map[uint64]string // by offset
	problems []string
}

func newTraffic(c *cluster, seed uint64) *traffic {
	return &traffic{
		c: c, rand: rand.New(rand.NewPCG(seed, 1)), sent: map[string]int{}, out: map[uint64]string{},
	}
}

func (tr *traffic) problem(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.problems = append(tr.problems, fmt.Sprintf(format, args...))
}

// produce sends until stop is closed, then finishes the batch at hand.
func (tr *traffic) produce(stop <-chan struct{}, source string, names []string, r *rand.Rand) {
	for next := 1; ; {
		select {
		case <-stop:
			return
		default:
		}
		last := next + r.IntN(20)
		for {
			n := tr.c.node(names[r.IntN(len(names))])
			try, cancel := context.WithTimeout(tr.c.t.Context(), time.Duration(50+r.IntN(2000))*time.Millisecond)
			got, err := n.Append(try, tuples(source, next, last))
			cancel()
			if err == nil {
				if got[0].Code != logbuffer.CodeDone || got[0].Admitted+got[0].Duplicates != last-next+1 {
					tr.problem("%s %d-%d: %+v", source, next, last, got[0])
				}
				break
			}
			if !errors.Is(err, logbuffer.ErrUnknown) && !errors.Is(err, logbuffer.ErrUnavailable) {
				tr.problem("%s %d-%d: error of no class: %v", source, next, last, err)
			}
			wait(tr.c.t.Context(), time.Duration(r.IntN(50))*time.Millisecond)
		}
		tr.mu.Lock()
		tr.sent[source] = last
		tr.mu.Unlock()
		next = last + 1
		wait(tr.c.t.Context(), time.Duration(1+r.IntN(30))*time.Millisecond) // in a bubble time passes only in waits
	}
}

// consume delivers on a node whenever it leads.
func (tr *traffic) consume(ctx context.Context, n *Node) {
	_ = n.Lead(ctx, func(ctx context.Context, t *Tenure) error {
		o := t.Outlet("out")
		for ctx.Err() == nil {
			after, _, _, _, err := o.Cursor(ctx)
			for err == nil {
				var batches []logbuffer.Stored
				if batches, err = o.Read(ctx, after, 8<<10); err != nil {
					break
				}
				for _, s := range batches {
					tr.record(s)
					after = s.Last
				}
				err = o.Ack(ctx, logbuffer.Ack{UpTo: after})
			}
			if errors.Is(err, logbuffer.ErrTrimmed) || errors.Is(err, logbuffer.ErrCorrupt) {
				tr.problem("reading: %v", err)
			}
			wait(ctx, 10*time.Millisecond)
		}
		return nil
	})
}

func (tr *traffic) record(s logbuffer.Stored) {
	b, err := s.Decode()
	if err != nil {
		tr.problem("decoding: %v", err)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for i, tuple := range b.Tuples {
		at := s.First + uint64(i)
		if was, ok := tr.out[at]; ok && was != string(tuple.Value) {
			tr.problems = append(tr.problems, fmt.Sprintf("offset %d was %q, is %q", at, was, tuple.Value))
		}
		tr.out[at] = string(tuple.Value)
	}
}

// judge waits until all that was acknowledged is out, and checks that it is so once and in order.
func (tr *traffic) judge(t *testing.T) error {
	t.Helper()
	total := 0
	for _, n := range tr.sent {
		total += n
	}
	eventually(t, "all delivered", func() error {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if len(tr.out) < total {
			return fmt.Errorf("%d of %d are out", len(tr.out), total)
		}
		return nil
	})
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.problems) > 0 {
		return errors.New(strings.Join(tr.problems, "; "))
	}
	due := map[string]int{}
	for at := uint64(1); at <= uint64(len(tr.out)); at++ {
		var source string
		var position int
		if _, err := fmt.Sscanf(tr.out[at], "%s %d", &source, &position); err != nil {
			return fmt.Errorf("offset %d is %q: %w", at, tr.out[at], err)
		}
		due[source]++
		if position != due[source] {
			return fmt.Errorf("offset %d: %s is at %d, %d is due: lost, twice or out of order", at, source, position,
				due[source])
		}
	}
	if len(tr.out) != total {
		return fmt.Errorf("%d tuples are out, %d were acknowledged", len(tr.out), total)
	}
	return nil
}

// agree checks that all nodes have the same state once they have applied the same.
func (c *cluster) agree() {
	c.t.Helper()
	eventually(c.t, "equal states", func() error {
		seen := map[uint64]uint64{}
		for _, n := range c.all() {
			var applied, hash uint64
			n.fsm.view(func(s *State) { applied, hash = s.Applied(), s.Hash() })
			if other, ok := seen[applied]; ok && other != hash {
				c.t.Fatalf("states differ after entry %d: %x and %x", applied, other, hash)
			}
			seen[applied] = hash
		}
		if len(seen) > 1 {
			return fmt.Errorf("applied %v", seen)
		}
		return nil
	})
}
