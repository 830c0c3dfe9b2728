package replica

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
)

func TestLogKeepsEntriesAcrossSegments(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	const size = 1 << 10
	storeEntries(t, s, 1, 300, size) // several segments of 64 KiB
	if err := s.stable.SetUint64([]byte("CurrentTerm"), 7); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)

	s = mustOpen(t, c)
	defer mustClose(t, s)
	if err := checkEntries(s.logs, 1, 300, size); err != nil {
		t.Fatal(err)
	}
	first, _ := s.logs.FirstIndex()
	last, _ := s.logs.LastIndex()
	if first != 1 || last != 300 {
		t.Fatalf("entries %d to %d, want 1 to 300", first, last)
	}
	if got := s.logs.bytesAfter(0); got < 300*size || got > 330*size {
		t.Errorf("%d bytes of log, want about %d", got, 300*size)
	}
	if got := s.logs.bytesAfter(200); got < 80*size || got > 130*size {
		t.Errorf("%d bytes of log after 200, want about %d", got, 100*size)
	}
	storeEntries(t, s, 301, 310, size)
	if err := s.logs.DeleteRange(1, 250); err != nil {
		t.Fatal(err)
	}
	if err := checkEntries(s.logs, 251, 310, size); err != nil {
		t.Fatal(err)
	}
	if term, err := s.stable.GetUint64([]byte("CurrentTerm")); term != 7 || err != nil {
		t.Errorf("term %d, %v", term, err)
	}
	if s.syncs.quantile(0.999) == 0 || s.syncs.quantile(0.5) > s.syncs.quantile(0.999) {
		t.Errorf("fsync p50 %v, p99.9 %v", s.syncs.quantile(0.5), s.syncs.quantile(0.999))
	}
}

// Raft compares with ==, and asks for keys that were never set.
func TestAbsenceIsNoFailure(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testStorage(t, t.TempDir()))
	defer mustClose(t, s)
	for range 2 {
		if err := s.logs.GetLog(5, new(raft.Log)); err != raft.ErrLogNotFound { //nolint:errorlint // as Raft does
			t.Fatalf("got %v", err)
		}
		storeEntries(t, s, 1+uint64(0), 1, 10)
		if err := s.logs.DeleteRange(1, 1); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := s.stable.Get([]byte("no")); len(v) != 0 || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
	if v, err := s.stable.GetUint64([]byte("no")); v != 0 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	if has, err := s.hasState(); has || err != nil {
		t.Errorf("an empty folder has state: %v, %v", has, err)
	}
}

func TestFailingDiskIsFinal(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(v *lossyVFS){
		"fsync":   func(v *lossyVFS) { v.failSync = syscall.EIO },
		"no room": func(v *lossyVFS) { v.failWrite = syscall.ENOSPC },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testStorage(t, t.TempDir())
			vfs := &lossyVFS{VFS: walfs.New()}
			c.hooks.vfs = vfs
			var fatal []error
			c.fatal = func(err error) { fatal = append(fatal, err) }
			s := mustOpen(t, c)
			storeEntries(t, s, 1, 3, 100)
			fault(vfs)
			syncs := vfs.syncs
			first := s.logs.StoreLogs(logEntries(4, 4, 100))
			if !errors.Is(first, ErrStorage) {
				t.Fatalf("got %v, want ErrStorage", first)
			}
			// The disk works again, and nobody must find out.
			syncs = vfs.syncs - syncs
			if err := s.logs.StoreLogs(logEntries(4, 4, 100)); !errors.Is(err, ErrStorage) {
				t.Fatalf("a failed write was tried again: %v", err)
			}
			if err := s.stable.SetUint64([]byte("CurrentTerm"), 1); !errors.Is(err, ErrStorage) {
				t.Fatalf("the stable store goes on: %v", err)
			}
			if _, err := s.snaps.Create(1, 1, 1, raft.Configuration{}, 1, nil); !errors.Is(err, ErrStorage) {
				t.Fatalf("snapshots go on: %v", err)
			}
			if syncs > 1 || len(fatal) != 1 || !errors.Is(fatal[0], first) {
				t.Fatalf("%d more syncs, reported %v, want %v once", syncs, fatal, first)
			}
			mustClose(t, s)
		})
	}
}

// A machine that loses power keeps every entry whose StoreLogs returned.
func TestPowerCutKeepsStoredEntries(t *testing.T) {
	t.Parallel()
	if err := afterPowerCut(t, false); err != nil {
		t.Fatal(err)
	}
}

func TestMutantNoSyncLosesEntries(t *testing.T) {
	t.Parallel()
	if err := afterPowerCut(t, true); err == nil {
		t.Fatal("a log that is never synced passes the test of the power cut")
	}
}

func afterPowerCut(t *testing.T, noSync bool) error {
	t.Helper()
	c := testStorage(t, t.TempDir())
	vfs := &lossyVFS{VFS: walfs.New(), noSync: noSync}
	c.hooks.vfs = vfs
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 150, 1<<10)
	mustClose(t, s)
	vfs.losePower(t)
	c.hooks.vfs = nil
	s, err := openStorage(c)
	if err != nil {
		return err
	}
	defer mustClose(t, s)
	return checkEntries(s.logs, 1, 150, 1<<10)
}

// Damage in the log is found when it is opened, or when the entry is read; never is a wrong or a shorter log served.
func TestDamagedLogIsFound(t *testing.T) {
	t.Parallel()
	const last = 40
	for name, damage := range map[string]func(p []byte, end int) []byte{
		"flipped bit in the last entry":   func(p []byte, end int) []byte { p[end-30] ^= 1; return p },
		"flipped bit in an inner entry":   func(p []byte, end int) []byte { p[end/2] ^= 1; return p },
		"flipped frame type":              func(p []byte, _ int) []byte { p[walHeaderSize] ^= 0x40; return p },
		"flipped length":                  func(p []byte, _ int) []byte { p[walHeaderSize+6] ^= 1; return p },
		"cut in the middle":               func(p []byte, end int) []byte { return p[:end/2] },
		"zeroes in the middle":            func(p []byte, end int) []byte { clear(p[end/2:]); return p },
		"nothing left":                    func([]byte, int) []byte { return nil },
		"wrong first entry in the header": func(p []byte, _ int) []byte { p[8]++; return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testStorage(t, t.TempDir())
			s := mustOpen(t, c)
			storeEntries(t, s, 1, last, 100)
			mustClose(t, s)
			path := newestLogFile(t, c.dir)
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			end := len(p)
			for end > 0 && p[end-1] == 0 {
				end--
			}
			if err := os.WriteFile(path, damage(p, end), 0o600); err != nil {
				t.Fatal(err)
			}
			before := folderListing(t, c.dir)
			wantQuarantine(t, c, "")
			wantQuarantine(t, c, "") // and stays so
			if after := folderListing(t, c.dir); after != before {
				t.Errorf("the damaged data was changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func newestLogFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, liveFolder, walFolder, "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatal("no log files", err)
	}
	return slices.Max(files)
}

// folderListing describes every file below dir but the lock.
func folderListing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || info.Name() == "lock" {
			return err
		}
		p, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %d %08x\n", path, len(p), crc32.ChecksumIEEE(p))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A write that a crash tore is forgotten, and nothing of it comes back; no Raft ever counted on it.
func TestTornWriteIsForgotten(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 10, 100)
	mark := s.logs.mark.index
	if err := s.logs.wal.StoreLogs(logEntries(11, 14, 100)); err != nil { // one write; the process dies before the watermark
		t.Fatal(err)
	}
	if s.logs.mark.index != mark {
		t.Fatal("the watermark moved")
	}
	mustClose(t, s)
	path := newestLogFile(t, c.dir)
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.LastIndex(string(p), "00000013")
	p[at] ^= 1
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, c)
	if last, _ := s.logs.LastIndex(); last != 10 {
		t.Fatalf("the log ends with %d, want 10", last)
	}
	storeEntries(t, s, 11, 11, 100)
	mustClose(t, s)
	if p, err = os.ReadFile(path); err != nil || strings.Contains(string(p), "00000014") {
		t.Fatal("something of the torn write is left", err)
	}
	s = mustOpen(t, c)
	defer mustClose(t, s)
	if err := checkEntries(s.logs, 1, 11, 100); err != nil {
		t.Fatal(err)
	}
}

// Sealed files are not read through at start; what is wrong in them is found when it is read.
func TestDamagedSealedEntryEndsTheProcess(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	good := logEntries(5, 5, 1<<10)[0].Data
	c.checkEntry = func(data []byte) error {
		if string(data) != string(good) && strings.HasPrefix(string(data), "00000005") {
			return errors.New("wrong checksum")
		}
		return nil
	}
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 200, 1<<10)
	mustClose(t, s)
	files, _ := filepath.Glob(filepath.Join(c.dir, liveFolder, walFolder, "*.wal"))
	p, err := os.ReadFile(slices.Min(files))
	if err != nil {
		t.Fatal(err)
	}
	p[strings.Index(string(p), "00000005")+100] ^= 1
	if err := os.WriteFile(slices.Min(files), p, 0o600); err != nil {
		t.Fatal(err)
	}
	var fatal error
	c.fatal = func(err error) { fatal = err }
	s = mustOpen(t, c)
	if err := s.logs.GetLog(5, new(raft.Log)); !errors.Is(err, ErrStorage) || fatal == nil {
		t.Fatalf("got %v, fatal %v", err, fatal)
	}
	mustClose(t, s)
	wantQuarantine(t, c, "entry 5 of the log is damaged")
}

// The watermark names the last durable entry while the log goes up and down.
func TestLogStallIsSeen(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testStorage(t, t.TempDir()))
	defer mustClose(t, s)
	if s.logs.stalled() != 0 {
		t.Fatal("an idle log is stalled")
	}
	s.logs.busy.Store(int64(time.Since(s.logs.start) - time.Minute))
	if got := s.logs.stalled(); got < time.Minute || got > 2*time.Minute {
		t.Fatalf("stalled for %v, want a minute", got)
	}
	storeEntries(t, s, 1, 1, 10)
	if s.logs.stalled() != 0 {
		t.Fatal("the write is over")
	}
}

func TestEntriesWithin(t *testing.T) {
	t.Parallel()
	var z sizes
	for i := uint64(1); i <= 100; i++ {
		z.add(i, sizeStep)
	}
	for _, c := range []struct {
		bytes int64
		want  uint64
	}{{0, 1}, {10 * sizeStep, 10}, {1000 * sizeStep, 100}} {
		if got := z.within(c.bytes); got != c.want {
			t.Errorf("within %d: %d entries, want %d", c.bytes, got, c.want)
		}
	}
	z.cutHead(90)
	if got := z.within(1000 * sizeStep); got != 10 {
		t.Errorf("%d entries, want 10", got)
	}
	if got := z.after(95); got != 5*sizeStep {
		t.Errorf("%d bytes, want 5 steps", got)
	}
	z.cutTail(95)
	z.add(96, 1)
	if got := z.written(); got != 100*sizeStep+1 {
		t.Errorf("%d bytes written", got)
	}
}

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
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
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
