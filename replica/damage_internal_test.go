package replica

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// A segment is read long after it was written. What is wrong in it then ends the process, and the data is not opened
// again: another node's copy is good.
func TestDamagedSegmentIsQuarantined(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	var fatal error
	c.fatal = func(err error) { fatal = err }
	s := mustOpen(t, c)
	b := logbuffer.NewBuffer("in", s.folder, logbuffer.Options{TailBytes: 1000})
	if err := b.SetReaders([]logbuffer.Reader{{Name: "sink"}}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		batch := rigBatch("k", logbuffer.RuleNone, 1)
		b.Append(logbuffer.AppendBatch(nil, &batch), true)
	}
	if _, err := b.Locate("sink", 0, 1).Load(); err != nil || fatal != nil {
		t.Fatal(err, fatal)
	}
	path := filepath.Join(c.dir, liveFolder, segmentFolder, b.SegmentNames()[0])
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[60] ^= 1
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Locate("sink", 0, 1).Load(); !errors.Is(err, logbuffer.ErrCorrupt) ||
		!errors.Is(fatal, ErrQuarantined) || !strings.Contains(fatal.Error(), "the others give it a good copy") {
		t.Fatalf("read: %v, fatal: %v", err, fatal)
	}
	mustClose(t, s)
	wantQuarantine(t, c, "checksum")
}

// An entry whose type was flipped would be skipped in silence.
func TestFlippedTypeOfAnEntryIsDamage(t *testing.T) {
	t.Parallel()
	l := &logStore{}
	for bit := range 8 {
		log := &raft.Log{Index: 1, Type: raft.LogCommand ^ 1<<bit, Data: []byte("tuples")}
		if l.intact(1, log) == nil {
			t.Errorf("a command that became a %v passes", log.Type)
		}
	}
	for _, log := range []raft.Log{
		{Index: 1, Type: raft.LogNoop},
		{Index: 1, Type: raft.LogBarrier},
		{Index: 1, Type: raft.LogCommand, Data: []byte("tuples")},
		{Index: 1, Type: raft.LogConfiguration, Data: []byte("x")},
	} {
		if err := l.intact(1, &log); err != nil {
			t.Errorf("%v: %v", log.Type, err)
		}
	}
}

// A crash in the middle of starting a group leaves a term and no entry. The group must still be startable.
func TestInterruptedBootstrapCanBeRepeated(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	if err := s.stable.SetUint64(currentTerm, 1); err != nil { // what raft.BootstrapCluster does first
		t.Fatal(err)
	}
	mustClose(t, s)
	s = mustOpen(t, c)
	defer mustClose(t, s)
	if has, err := s.hasState(); has || err != nil {
		t.Fatalf("has state: %v, %v", has, err)
	}
	config := raft.DefaultConfig()
	config.LocalID = testServers.Servers[0].ID
	_, wire := raft.NewInmemTransport("")
	if err := raft.BootstrapCluster(config, s.logs, s.stable, s.snaps, wire, testServers); err != nil {
		t.Fatal(err)
	}
	if has, err := s.hasState(); !has || err != nil {
		t.Fatalf("started, has state: %v, %v", has, err)
	}
}

// The lineage is written before the second entry, so that it cannot be missing beside a log. Another one would divide
// this node from its group, or a receiver from what it has seen.
func TestMissingLineageIsQuarantined(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 2, 100)
	mustClose(t, s)
	if err := os.Remove(filepath.Join(c.dir, liveFolder, lineageFile)); err != nil {
		t.Fatal(err)
	}
	wantQuarantine(t, c, "lineage is missing")
}

// A reason that cannot be read is still one.
func TestUnreadableReasonIsNoPermission(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	mustClose(t, mustOpen(t, c))
	if err := os.Mkdir(filepath.Join(c.dir, liveFolder, quarantineFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := openStorage(c); !errors.Is(err, ErrStorage) {
		t.Fatalf("opened: %v", err)
	}
}
