package logbuffer_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

//nolint:gochecknoglobals // a flag of the test binary
var seedFlag = flag.Uint64("seed", 0, "run the random tests with this seed only")

// seeds returns the seeds to run: n of them, or the one that -seed names.
func seeds(n uint64) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	var out []uint64
	for seed := range n {
		out = append(out, seed+1)
	}
	return out
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6c6f67)) }

// op is one entry of the replicated log, as far as a buffer is concerned.
type op struct {
	kind     int // 0 append, 1 ack, 2 needed, 3 readers
	e        logbuffer.Encoded
	boundary bool
	reader   string
	n        uint64
	readers  []logbuffer.Reader
}

// sim runs random operations on a buffer and on the model beside it, with snapshots, restarts and crashes.
type sim struct {
	t      testing.TB
	rng    *rand.Rand
	disk   *simDisk
	folder *logbuffer.Folder
	o      logbuffer.Options
	b      *logbuffer.Buffer
	m      *model
	log    []op
	// snapshots kept, oldest first: at most two.
	snapshots []snapshot
	drain     bool

	chunk, interval uint64
}

type snapshot struct {
	manifest []byte
	names    []string
	applied  int // how much of log it includes
}

func newSim(tb testing.TB, seed uint64) *sim {
	tb.Helper()
	rng := newRand(seed)
	s := &sim{t: tb, rng: rng, disk: newSimDisk(rng), m: newModel()}
	s.o = logbuffer.Options{SegmentBytes: int64(500 + rng.IntN(8000)), TailBytes: int64(200 + rng.IntN(6000))}
	s.chunk, s.interval = 1+rng.Uint64N(2000), 200+rng.Uint64N(2000)
	s.folder = s.openFolder()
	s.b = logbuffer.NewBuffer("in", s.folder, s.o)
	return s
}

func openFolder(tb testing.TB, disk logbuffer.FS) *logbuffer.Folder {
	tb.Helper()
	f, err := logbuffer.OpenFolder(disk)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// openFolder opens the disk with a chunk size and index distance of the seed's.
func (s *sim) openFolder() *logbuffer.Folder {
	f := openFolder(s.t, s.disk)
	logbuffer.SetSizes(f, s.chunk, s.interval)
	return f
}

func (s *sim) randomBatch() logbuffer.Encoded {
	b := logbuffer.Batch{Source: "src", Sink: []string{"", "", "a", "b", "c"}[s.rng.IntN(5)]}
	size := 60
	if s.rng.IntN(20) == 0 {
		size = 3000
	}
	for range 1 + s.rng.IntN(4) {
		v := make([]byte, s.rng.IntN(size))
		for i := range v {
			v[i] = byte(s.rng.Uint32())
		}
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: v, Position: s.rng.Int64N(1000)})
	}
	return logbuffer.AppendBatch(nil, &b)
}

func (s *sim) randomOp() op {
	if s.rng.IntN(200) == 0 {
		s.drain = !s.drain
	}
	names := []string{"all", "ra", "rb", "rab"}
	switch k := s.rng.IntN(20); {
	case k < 10:
		return op{kind: 0, e: s.randomBatch(), boundary: s.rng.IntN(3) > 0}
	case k < 18:
		o := op{kind: 1, reader: names[s.rng.IntN(len(names))]}
		i := slices.IndexFunc(s.m.readers, func(r *modelReader) bool { return r.Name == o.reader })
		if i < 0 {
			return op{kind: 0, e: s.randomBatch()}
		}
		r := s.m.readers[i]
		o.n = r.acked + s.rng.Uint64N(12)
		if s.drain || s.rng.IntN(30) == 0 {
			o.n = s.m.end() - min(s.m.end(), s.rng.Uint64N(5))
		}
		o.n = min(o.n, s.m.end())
		return o
	case k == 18:
		n := uint64(math.MaxUint64)
		if s.rng.IntN(2) == 0 {
			n = s.m.trimmed + s.rng.Uint64N(s.m.end()-s.m.trimmed+20)
		}
		return op{kind: 2, n: n}
	}
	all := []logbuffer.Reader{
		{Name: "all"},
		{Name: "ra", Sinks: []string{"a"}},
		{Name: "rb", Sinks: []string{"b"}},
		{Name: "rab", Sinks: []string{"a", "b"}},
		{Name: "ra", Sinks: []string{"a", "c"}},
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var rs []logbuffer.Reader
	for _, r := range all[:s.rng.IntN(4)] {
		if !slices.ContainsFunc(rs, func(o logbuffer.Reader) bool { return o.Name == r.Name }) {
			rs = append(rs, r)
		}
	}
	return op{kind: 3, readers: rs}
}

// apply does one operation on the buffer, and on the model if it is new.
func (s *sim) apply(o op, m *model) error {
	switch o.kind {
	case 0:
		first, last := s.b.Append(o.e, o.boundary)
		if m != nil {
			m.append(o.e, o.boundary)
			if got := m.batches[len(m.batches)-1]; first != got.First || last != got.Last {
				s.t.Fatalf("append gave %d to %d; want %d to %d", first, last, got.First, got.Last)
			}
		}
	case 1:
		if err := s.b.Ack(o.reader, o.n); err != nil {
			return err
		}
		if m != nil {
			m.ack(o.reader, o.n)
		}
	case 2:
		if err := s.b.SetNeeded(o.n); err != nil {
			return err
		}
		if m != nil {
			m.needed = o.n
			m.trim()
		}
	case 3:
		err := s.b.SetReaders(o.readers)
		if m != nil && err != nil && m.refused(o.readers, err) || m == nil && errors.Is(err, logbuffer.ErrUnavailable) {
			return nil
		}
		if err != nil {
			return err
		}
		if m != nil {
			m.setReaders(o.readers)
		}
	}
	return nil
}

// snapshot does what a snapshot store does: seal, pin, sync, keep, and drop the oldest but two.
func (s *sim) snapshot() error {
	if err := s.b.Seal(); err != nil {
		return err
	}
	snap := snapshot{manifest: s.b.AppendManifest(nil), names: s.b.SegmentNames(), applied: len(s.log)}
	s.folder.Pin(snap.names...)
	if err := s.folder.Sync(snap.names...); err != nil {
		return err
	}
	s.snapshots = append(s.snapshots, snap)
	if len(s.snapshots) > 2 {
		old := s.snapshots[0]
		s.snapshots = s.snapshots[1:]
		return s.folder.Unpin(old.names...)
	}
	return nil
}

// restart is a new process on the same disk: newest manifest, sweep, replay.
func (s *sim) restart() {
	s.t.Helper()
	s.folder = s.openFolder()
	for _, snap := range s.snapshots {
		s.folder.Pin(snap.names...)
	}
	s.b = logbuffer.NewBuffer("in", s.folder, s.o)
	applied := 0
	if n := len(s.snapshots); n > 0 {
		b, rest, err := logbuffer.RestoreBuffer("in", s.folder, s.o, s.snapshots[n-1].manifest)
		if err != nil || len(rest) != 0 {
			s.t.Fatalf("restore: %v, %d bytes left", err, len(rest))
		}
		s.b, applied = b, s.snapshots[n-1].applied
	}
	s.must(s.folder.Sweep())
	s.checkFiles()
	for _, o := range s.log[applied:] {
		s.must(s.apply(o, nil))
	}
}

// must stops the test at an error, and the simulated process at a crash.
func (s *sim) must(err error) {
	s.t.Helper()
	if errors.Is(err, errCrash) {
		panic(err)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// checkFiles checks that just those files exist that the buffer or a kept manifest names.
func (s *sim) checkFiles() {
	s.t.Helper()
	want := map[string]bool{}
	for _, name := range s.b.SegmentNames() {
		want[name] = true
	}
	for _, snap := range s.snapshots {
		for _, name := range snap.names {
			want[name] = true
		}
	}
	names, err := s.disk.List()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range names {
		if !want[name] {
			s.t.Fatalf("%s is named by nobody but there", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		s.t.Fatalf("files are gone although named: %v", want)
	}
}

// run does n operations, with snapshots, orderly restarts and comparisons in between. It returns the error of a crash.
func (s *sim) run(n int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if !ok || !errors.Is(e, errCrash) {
				panic(r)
			}
			err = e
		}
	}()
	for range n {
		o := s.randomOp()
		s.log = append(s.log, o)
		if err := s.apply(o, s.m); err != nil {
			return err
		}
		switch s.rng.IntN(60) {
		case 0, 1:
			if err := s.snapshot(); err != nil {
				return err
			}
			s.checkFiles()
		case 4, 5, 6:
			if err := s.folder.SyncEarly(); err != nil {
				return err
			}
		case 2:
			s.restart()
			s.m.compare(s.t, s.b)
		case 3:
			s.m.compare(s.t, s.b)
			s.checkFiles()
		}
	}
	s.m.compare(s.t, s.b)
	return nil
}

func TestBufferAgainstModel(t *testing.T) {
	t.Parallel()
	for _, seed := range seeds(80) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			if err := newSim(t, seed).run(400); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// catchUp brings the model to the log's end after a crash: the last operation may have been lost half done, but it is
// in the log.
func (s *sim) catchUp() {
	fresh := newModel()
	b := s.b
	s.b = logbuffer.NewBuffer("in", openFolder(s.t, newSimDisk(s.rng)), logbuffer.Options{})
	for _, o := range s.log {
		if err := s.apply(o, fresh); err != nil {
			s.t.Fatal(err)
		}
	}
	s.m, s.b = fresh, b
}

// TestCrashAnywhere crashes at every mutation of the disk that a run makes, loses unsynced writes, restores, goes on.
func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	for _, seed := range seeds(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			whole := newSim(t, seed)
			if err := whole.run(150); err != nil {
				t.Fatal(err)
			}
			if whole.disk.step < 20 {
				t.Skipf("only %d mutations of the disk", whole.disk.step)
			}
			for step := 1; step <= whole.disk.step; step++ {
				s := newSim(t, seed)
				s.disk.crashAt = step
				if err := s.run(150); !errors.Is(err, errCrash) {
					t.Fatalf("step %d: %v instead of a crash", step, err)
				}
				s.disk = s.disk.reboot()
				s.restart()
				s.catchUp()
				s.m.compare(t, s.b)
				if err := s.run(60); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
		})
	}
}
