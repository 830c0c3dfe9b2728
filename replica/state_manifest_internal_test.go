package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

// grownRig is a state with something of everything.
func grownRig(tb testing.TB, segment, tail int64) *stateRig {
	tb.Helper()
	r := newStateRig(tb, segment, tail)
	open := func(name string, n uint64) uint64 {
		return r.one(command{Kind: kindOpen, Proposer: name, Body: appendOpenBody(nil, 0, rigNonce(n))}).Incarnation
	}
	tenure := open(tenureProposer, 1)
	settings := genSettings()
	settings.HashEvery, settings.Members, settings.Voters = 3, []string{"1", "2"}, []string{"1", "2"}
	r.one(command{
		Kind: kindSettings, Proposer: tenureProposer, Incarnation: tenure, Number: 1, Body: settings.appendTo(nil),
	})
	lane := command{Proposer: "lane/1", Incarnation: open("lane/1", 2)}
	do := func(k kind, body []byte) {
		lane.Kind, lane.Body = k, body
		lane.Number++
		r.one(lane)
	}
	get := must[[]byte](tb)
	named := rigBatch("", logbuffer.RuleNone, 1, 2)
	named.IDs = []logbuffer.ID{{1}, {2}}
	do(kindAnnounce, appendAnnounceBody(nil, "1", 1))
	do(kindOpenSession, appendOpenSessionBody(nil, rigNonce(3)))
	do(kindAppend, get(appendAppendBody(nil, []logbuffer.Batch{rigBatch("k", logbuffer.RuleSparse, 0, 1, 5), named})))
	do(kindHash, appendHashBody(nil, "1", 3, r.s.Sample().Hash))
	do(kindHash, appendHashBody(nil, "2", 6, 17))
	sink := command{Proposer: "sink/b", Incarnation: open("sink/b", 4), Number: 1, Kind: kindAck}
	letter := logbuffer.Letter{From: 2, Reason: "no", Source: "k", Tuple: rigBatch("k", 0, 1).Tuples[0]}
	sink.Body = appendAckBody(nil, logbuffer.Ack{Reader: "b", UpTo: 3, Dead: []logbuffer.Letter{letter}})
	if v := r.one(sink); v.Code != VerdictDone {
		tb.Fatalf("%+v", v)
	}
	return r
}

func TestSealAndRestore(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 200, 200)
	before, ledgers, hash := r.s.seen.Append(r.s.appendCore(nil)), r.s.Ledgers(), r.s.Hash()
	unread := r.read(bufferIn, "deliver", 0)
	r.seal()
	for _, name := range r.image.names() {
		if _, err := r.root.Stat(name); err != nil {
			t.Error(err)
		}
	}
	again := must[*Image](t)(r.s.Seal())
	if !reflect.DeepEqual(again, r.image) {
		t.Error("sealing twice gives two images")
	}
	r.crash()
	after := r.s.seen.Append(r.s.appendCore(nil))
	if !bytes.Equal(before, after) || !reflect.DeepEqual(ledgers, r.s.Ledgers()) || hash != r.s.Hash() {
		t.Error("the restored state differs")
	}
	if got := r.read(bufferIn, "deliver", 0); len(got) != 5 || !reflect.DeepEqual(got, unread) {
		t.Errorf("the restored buffer has %v, want %v", got, unread)
	}
	if len(r.s.Letters(0, 9)) != 1 || r.s.Versions()["1"] != 1 || r.s.Settings().Letters != genLetters {
		t.Error("letters, versions or settings are gone")
	}
}

// TestManifestNamesFilesNotTuples holds that an image costs what does not grow with the backlog.
func TestManifestNamesFilesNotTuples(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 1<<20, 1<<16)
	lane, _ := r.s.Proposer("lane/1")
	size := func() int { return len(must[*Image](t)(r.s.Seal()).Manifest) }
	before := size()
	for i := range uint64(200) {
		b := rigBatch("k", logbuffer.RuleNone, make([]int64, 100)...)
		r.one(command{
			Kind: kindAppend, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1 + i,
			Body: must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{b})),
		})
	}
	if after := size(); after > before+1000 {
		t.Errorf("with 20,000 tuples more the manifest has %d bytes, had %d", after, before)
	}
}

func TestDamagedManifests(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 200, 200)
	r.seal()
	p := r.image.Manifest
	for i := range p {
		damaged := slices.Clone(p)
		damaged[i] ^= 0x10
		if _, err := RestoreState(r.config, damaged); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := RestoreState(r.config, p[:i]); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	newer := slices.Clone(p)
	newer[len(stateMagic)] = 7
	_, err := RestoreState(r.config, resum(newer))
	if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "format 7") {
		t.Errorf("a newer manifest: %v", err)
	}
}

func TestCloseGivesFilesUp(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 200, 200)
	image := must[*Image](t)(r.s.Seal()) // nothing but the state names its files
	if len(image.Files) == 0 {
		t.Fatal("no files")
	}
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range image.names() {
		if _, err := r.root.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", name, err)
		}
	}
}

// FuzzRestoreState restores whatever comes under a right CRC: it is refused, or works.
func FuzzRestoreState(f *testing.F) {
	r := grownRig(f, 200, 200)
	f.Add(must[*Image](f)(r.s.Seal()).Manifest)
	f.Add(must[*Image](f)(newStateRig(f, 200, 200).s.Seal()).Manifest)
	f.Fuzz(func(t *testing.T, p []byte) {
		p = resum(p)
		s, err := RestoreState(r.config, p)
		if err != nil {
			if !errors.Is(err, logbuffer.ErrCorrupt) && !errors.Is(err, ErrVersion) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("class of %v", err)
			}
			return
		}
		s.Ledgers()
		s.Letters(0, 10)
		if err := s.Close(); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	})
}

func TestHashSeesEverything(t *testing.T) {
	t.Parallel()
	base := func(change func(r *stateRig)) uint64 {
		r := grownRig(t, 1<<20, 1<<20)
		if change != nil {
			change(r)
		}
		lane, _ := r.s.Proposer("lane/1")
		b := rigBatch("k", logbuffer.RuleSparse, 5, 6)
		b.IDs = []logbuffer.ID{{}, {9}}
		r.one(command{
			Kind: kindAppend, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1,
			Body: must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{b})),
		})
		return r.s.Hash()
	}
	want := base(nil)
	if again := base(nil); again != want {
		t.Fatalf("equal histories have hashes %x and %x", want, again)
	}
	for name, change := range map[string]func(r *stateRig){
		"another term":     func(r *stateRig) { r.term++ },
		"another time":     func(r *stateRig) { r.now++ },
		"a skipped index":  func(r *stateRig) { r.log = append(r.log, rigEntry{index: r.s.applied + 1}) },
		"another position": func(r *stateRig) { r.s.seen.Judge(positionBatch("k", 6), r.now) },
		"another id":       func(r *stateRig) { r.s.seen.Judge(idBatch(9), r.now) },
		"another source":   func(r *stateRig) { r.s.seen.Judge(positionBatch("other", 1), r.now) },
		"a cursor that moved": func(r *stateRig) {
			_ = r.s.in.Ack("deliver", 1)
			r.s.ledgers["deliver"].delivered++
		},
		"a tuple more": func(r *stateRig) {
			r.s.received(bufferIn, "", 1, 0)
			r.s.in.Append(cloneOfFirst(t, r), true)
		},
		"a letter less": func(r *stateRig) {
			r.s.dead.Resolve(1)
			r.s.ledgers["b"].deadLettered--
			r.s.ledgers["b"].dropped++
		},
	} {
		if got := base(change); got == want {
			t.Errorf("%s: the hash is the same", name)
		}
	}
}

// TestSamples holds that replicas take samples at the same indexes, also when Raft's own entries leave holes.
func TestSamples(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(4, 4))
	r := grownRig(t, 1<<20, 1<<20)
	every := r.s.Settings().HashEvery
	lane, _ := r.s.Proposer("lane/1")
	for range 50 {
		before, last := r.s.Sample(), r.s.Applied()
		if hole := random.Uint64N(5); hole > 0 {
			r.log = append(r.log, rigEntry{index: last + hole})
		}
		lane.Last++
		r.one(command{Kind: kindTick, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last})
		crossed := r.s.Applied()/every > before.Index/every
		if got := r.s.Sample(); crossed != (got == Sample{Index: r.s.Applied(), Hash: r.s.Hash()}) {
			t.Fatalf("at %d, every %d: sample of %d after that of %d", r.s.Applied(), every, got.Index, before.Index)
		}
	}
}

func TestDamagedCommandInWholeEntry(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 1<<20, 1<<20)
	lane, _ := r.s.Proposer("lane/1")
	body := must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{
		rigBatch("new", logbuffer.RuleSparse, 1), rigBatch("new", logbuffer.RuleSparse, 2),
	}))
	body[len(body)-1] ^= 1 // in the second batch
	end := r.s.Cursors(bufferIn).End
	c := command{Kind: kindAppend, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1, Body: body}
	v := r.one(c)
	if v.Code != VerdictRefused || !strings.Contains(v.Reason, logbuffer.ErrCorrupt.Error()) {
		t.Fatalf("%+v", v)
	}
	if _, known := r.s.Position("new"); known || r.s.Cursors(bufferIn).End != end {
		t.Fatal("a part of a damaged command was applied")
	}
	if got := r.s.Verdict("lane/1", lane.Incarnation, lane.Last+1); !reflect.DeepEqual(got, v) {
		t.Fatalf("kept as %+v", got)
	}
}

func TestApplyPanics(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 1<<20, 1<<20)
	good := r.entry(command{Kind: kindTick, Proposer: "p"})
	bad := slices.Clone(good.data)
	bad[3]++
	newer := slices.Clone(good.data)
	newer[0]++
	for name, c := range map[string]struct {
		index uint64
		data  []byte
		class error
	}{
		"a damaged entry":   {good.index, bad, logbuffer.ErrCorrupt},
		"a newer entry":     {good.index, resum(newer), ErrVersion},
		"an entry repeated": {r.s.Applied(), good.data, logbuffer.ErrCorrupt},
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				if !errors.Is(err, c.class) || !strings.Contains(err.Error(), fmt.Sprint(c.index)) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			r.s.Apply(c.index, 1, c.data)
		}()
	}
}
