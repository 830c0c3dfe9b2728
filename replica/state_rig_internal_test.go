package replica

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// stateRig is a State as a node has it: over files in a folder, with a log to replay and the newest image.
type stateRig struct {
	t      testing.TB
	root   *os.Root
	folder *logbuffer.Folder
	config StateConfig
	s      *State

	log   []rigEntry
	image *Image
	now   int64
	term  uint64
}

type rigEntry struct {
	index, term uint64
	data        []byte
}

// newStateRig makes an empty state whose buffers spill early.
func newStateRig(tb testing.TB, segment, tail int64) *stateRig {
	tb.Helper()
	root, err := os.OpenRoot(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = root.Close() })
	r := &stateRig{t: tb, root: root, now: 1_700_000_000_000, term: 1}
	r.config.Buffer = logbuffer.Options{SegmentBytes: segment, TailBytes: tail}
	r.openFolder()
	r.s = NewState(r.config)
	return r
}

func (r *stateRig) openFolder() {
	r.t.Helper()
	folder, err := logbuffer.OpenFolder(logbuffer.OSFolder(r.root))
	if err != nil {
		r.t.Fatal(err)
	}
	r.folder, r.config.Folder = folder, folder
}

// entry makes the next entry of commands and logs it.
func (r *stateRig) entry(commands ...command) rigEntry {
	var b entryBuilder
	for _, c := range commands {
		b.add(c)
	}
	index := uint64(1)
	if n := len(r.log); n > 0 {
		index = r.log[n-1].index + 1
	}
	e := rigEntry{index: index, term: r.term, data: b.seal(r.now)}
	r.log = append(r.log, e)
	return e
}

// apply makes an entry of commands and applies it.
func (r *stateRig) apply(commands ...command) []Verdict {
	e := r.entry(commands...)
	return r.s.Apply(e.index, e.term, e.data)
}

// one applies a single command.
func (r *stateRig) one(c command) Verdict { return r.apply(c)[0] }

// seal takes an image as a snapshot does.
func (r *stateRig) seal() {
	r.t.Helper()
	image, err := r.s.Seal()
	if err != nil {
		r.t.Fatal(err)
	}
	r.folder.Pin(image.names()...)
	if err := r.folder.Sync(image.names()...); err != nil {
		r.t.Fatal(err)
	}
	if old := r.image; old != nil {
		if err := r.folder.Unpin(old.names()...); err != nil {
			r.t.Fatal(err)
		}
	}
	r.image = image
}

// crash forgets what is in memory and comes back from the newest image and the log.
func (r *stateRig) crash() {
	r.t.Helper()
	r.openFolder()
	if r.image != nil {
		r.folder.Pin(r.image.names()...)
	}
	if err := r.folder.Sweep(); err != nil {
		r.t.Fatal(err)
	}
	r.s = NewState(r.config)
	if r.image != nil {
		s, err := RestoreState(r.config, slices.Clone(r.image.Manifest))
		if err != nil {
			r.t.Fatal(err)
		}
		r.s = s
	}
	for _, e := range r.log {
		if e.index > r.s.Applied() {
			r.s.Apply(e.index, e.term, e.data)
		}
	}
}

// read returns what a reader has above an offset, by tuple.
func (r *stateRig) read(buffer, reader string, after uint64) []rigTuple {
	r.t.Helper()
	var got []rigTuple
	for {
		slice := r.s.Locate(buffer, reader, after, 1<<20)
		if slice.Empty() {
			return got
		}
		stored, err := slice.Load()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, s := range stored {
			b, err := s.Decode()
			if err != nil {
				r.t.Fatal(err)
			}
			for i, tuple := range b.Tuples {
				if at := s.First + uint64(i); at > after {
					got = append(got, rigTuple{Offset: at, Source: b.Source, Sink: b.Sink, Tuple: tuple})
				}
			}
			after = max(after, s.Last)
		}
	}
}

type rigTuple struct {
	Offset       uint64
	Source, Sink string
	Tuple        logbuffer.Tuple
}

// rigNonce makes nonces that differ.
func rigNonce(n uint64) (out nonce) {
	binary.BigEndian.PutUint64(out[8:], n)
	return out
}

// must returns v, or fails the test.
func must[T any](tb testing.TB) func(v T, err error) T {
	tb.Helper()
	return func(v T, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

// rigBatch makes a batch with a tuple for each position, whose value says which.
func rigBatch(source string, rule logbuffer.Rule, positions ...int64) logbuffer.Batch {
	b := logbuffer.Batch{Source: source, Rule: rule}
	for _, p := range positions {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: fmt.Appendf(nil, "%s@%d", source, p), Position: p})
	}
	return b
}

// positionBatch and idBatch are what dedup sees of a batch of one tuple.
func positionBatch(source string, at int64) dedup.Batch {
	return dedup.Batch{Source: source, Rule: dedup.Sparse, First: at, Last: at, Count: 1}
}

func idBatch(id byte) dedup.Batch {
	return dedup.Batch{Count: 1, IDs: []dedup.ID{{id}}}
}

// cloneOfFirst is the first tuple of IN once more.
func cloneOfFirst(tb testing.TB, r *stateRig) logbuffer.Encoded {
	tb.Helper()
	b := logbuffer.Batch{Source: "k", Tuples: []logbuffer.Tuple{r.read(bufferIn, "deliver", 0)[0].Tuple}}
	return logbuffer.AppendBatch(nil, &b)
}
