package replica

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

// goldenCommands has one command of each kind.
func goldenCommands(tb testing.TB) []command {
	tb.Helper()
	get := must[[]byte](tb)
	tuple := logbuffer.Tuple{
		Key: []byte("k"), Headers: []logbuffer.Header{{Key: "h", Value: []byte{}}, {Key: "null"}}, Time: 5, Position: 7,
	}
	letter := logbuffer.Letter{
		From: 9, Reason: "status 400", Attempts: 3, Source: "s", Partition: 2, Sink: "a", Tuple: tuple,
	}
	ack := logbuffer.Ack{Reader: "a", UpTo: 9, Dead: []logbuffer.Letter{letter}, Dropped: 1}
	batch := logbuffer.Batch{
		Source: "s", Partition: 2, Rule: logbuffer.RuleRange, After: 3, Tuples: []logbuffer.Tuple{tuple},
	}
	withID := rigBatch("t", logbuffer.RuleNone, 0)
	withID.IDs = []logbuffer.ID{{1, 2, 3}}
	settings := genSettings()
	settings.Members, settings.Voters = []string{"a#1", "b#2"}, []string{"a#1"}
	bodies := []command{
		{Kind: kindOpen, Proposer: "tenure", Incarnation: 4, Body: appendOpenBody(nil, 3, rigNonce(1))},
		{Kind: kindAppend, Body: get(appendAppendBody(nil, []logbuffer.Batch{batch, withID}))},
		{Kind: kindCommit, Body: get(appendCommitBody(nil, ack, []logbuffer.Batch{batch}))},
		{Kind: kindAck, Body: appendAckBody(nil, ack)},
		{Kind: kindRequeue, Body: appendOffsetBody(nil, 300)},
		{Kind: kindDrop, Body: appendOffsetBody(nil, 1)},
		{Kind: kindOpenSession, Body: appendOpenSessionBody(nil, rigNonce(2))},
		{Kind: kindTick},
		{Kind: kindHash, Body: appendHashBody(nil, "a#1", 4096, 0x0123456789abcdef)},
		{Kind: kindAnnounce, Body: appendAnnounceBody(nil, "a#1", formatVersion)},
		{Kind: kindSettings, Body: settings.appendTo(nil)},
	}
	for i := range bodies {
		if i > 0 {
			bodies[i].Proposer, bodies[i].Incarnation, bodies[i].Number = "lane/a#1", 5, uint64(100+i)
		}
	}
	return bodies
}

// TestGoldenEntries holds the format of version 1: what once was written must be read for ever.
func TestGoldenEntries(t *testing.T) {
	t.Parallel()
	const file = "testdata/entries.golden"
	var lines []string
	for _, c := range goldenCommands(t) {
		var b entryBuilder
		b.add(c)
		lines = append(lines, fmt.Sprintf("%s %s", c.Kind, hex.EncodeToString(b.seal(1_700_000_000_000))))
	}
	got := strings.Join(lines, "\n") + "\n"
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Fatalf("the format of entries has changed (%v); a changed one needs a new version:\n%s", err, got)
	}
	for line := range strings.Lines(string(want)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		e, err := decodeEntry(must[[]byte](t)(hex.DecodeString(digits)))
		if err != nil || len(e.Commands) != 1 || e.Commands[0].Kind.String() != name || e.Time != 1_700_000_000_000 {
			t.Errorf("%s: %v %+v", name, err, e)
		}
	}
}

func TestEntryRoundTrip(t *testing.T) {
	t.Parallel()
	commands := goldenCommands(t)
	for n := range len(commands) + 1 {
		var b entryBuilder
		total := 0
		for _, c := range commands[:n] {
			total += c.size()
			b.add(c)
		}
		promised, count := b.size(), b.count()
		p := b.seal(12345)
		if n > 0 && (len(p) > promised || promised > total+entryHead+entryTail) || count != n {
			t.Fatalf("%d commands: %d bytes, promised %d; count %d", n, len(p), promised, count)
		}
		if b.count() != 0 || b.size() != 0 {
			t.Fatal("a sealed builder is not empty")
		}
		e, err := decodeEntry(p)
		if err != nil {
			t.Fatal(err)
		}
		if e.Time != 12345 || len(e.Commands) != n {
			t.Fatalf("%d commands at 12345: %d at %d", n, len(e.Commands), e.Time)
		}
		for i, c := range e.Commands {
			want := commands[i]
			if len(want.Body) == 0 {
				want.Body = []byte{}
			}
			if !reflect.DeepEqual(c, want) {
				t.Fatalf("command %d: %+v, want %+v", i, c, want)
			}
		}
	}
}

func TestBodiesRoundTrip(t *testing.T) {
	t.Parallel()
	commands := goldenCommands(t)
	items, err := decodeAppendBody(commands[1].Body)
	if err != nil || len(items) != 2 || items[0].after != 3 || items[0].batch.Count() != 1 || items[1].ids[0][2] != 3 {
		t.Fatalf("append: %v %+v", err, items)
	}
	ack, outputs, err := decodeCommitBody(commands[2].Body)
	if err != nil || len(outputs) != 1 || len(ack.Dead) != 1 || ack.Dropped != 1 || ack.UpTo != 9 {
		t.Fatalf("commit: %v %+v %v", err, ack, outputs)
	}
	again, err := decodeAckBody(commands[3].Body)
	if err != nil || !reflect.DeepEqual(ack, again) {
		t.Fatalf("ack: %v %+v, want %+v", err, again, ack)
	}
	l := ack.Dead[0]
	if l.Tuple.Value != nil || l.Tuple.Headers[0].Value == nil || l.Tuple.Headers[1].Value != nil || l.Partition != 2 {
		t.Fatalf("letter: %+v", l)
	}
	d := bodyReader{p: commands[10].Body}
	s := d.settings()
	if err := d.end("settings"); err != nil || !reflect.DeepEqual(s.appendTo(nil), commands[10].Body) {
		t.Fatalf("settings: %v %+v", err, s)
	}
}

// TestEveryFlippedBitIsSeen is what the CRC of an entry is for.
func TestEveryFlippedBitIsSeen(t *testing.T) {
	t.Parallel()
	var b entryBuilder
	for _, c := range goldenCommands(t) {
		b.add(c)
	}
	p := b.seal(1)
	for i := range p {
		for bit := range 8 {
			p[i] ^= 1 << bit
			if _, err := decodeEntry(p); !errors.Is(err, logbuffer.ErrCorrupt) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
			p[i] ^= 1 << bit
		}
		if _, err := decodeEntry(p[:i]); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
}

// resum makes an entry's or a manifest's CRC right again.
func resum(p []byte) []byte {
	if len(p) < 4 {
		return p
	}
	body := p[:len(p)-4]
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
}

func TestUnknownVersions(t *testing.T) {
	t.Parallel()
	var b entryBuilder
	b.add(command{Kind: kindTick, Proposer: "p"})
	newer := b.seal(1)
	newer[0] = formatVersion + 6
	b.add(command{Kind: kindEnd + 2, Proposer: "p"})
	for name, c := range map[string]struct {
		entry []byte
		says  string
	}{
		"version": {resum(newer), fmt.Sprintf("upgrade this node to a build of format %d", formatVersion+6)},
		"kind":    {b.seal(1), "upgrade this node"},
	} {
		_, err := decodeEntry(c.entry)
		if !errors.Is(err, ErrVersion) || errors.Is(err, logbuffer.ErrCorrupt) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("unknown %s: %v", name, err)
		}
	}
}

func TestBatchesThatCannotBeJudged(t *testing.T) {
	t.Parallel()
	good := rigBatch("s", logbuffer.RuleDense, 1, 2)
	for name, change := range map[string]func(b *logbuffer.Batch){
		"no tuples":       func(b *logbuffer.Batch) { b.Tuples = nil },
		"too few ids":     func(b *logbuffer.Batch) { b.IDs = make([]logbuffer.ID, 1) },
		"long source":     func(b *logbuffer.Batch) { b.Source = strings.Repeat("s", maxName+1) },
		"long sink":       func(b *logbuffer.Batch) { b.Sink = strings.Repeat("s", maxName+1) },
		"unknown rule":    func(b *logbuffer.Batch) { b.Rule = 9 },
		"no source":       func(b *logbuffer.Batch) { b.Source = "" },
		"position 0":      func(b *logbuffer.Batch) { b.Tuples[0].Position = 0 },
		"going back":      func(b *logbuffer.Batch) { b.Tuples[1].Position = 1 },
		"before after":    func(b *logbuffer.Batch) { b.Rule, b.After = logbuffer.RuleRange, 1 },
		"negative after":  func(b *logbuffer.Batch) { b.Rule, b.After = logbuffer.RuleRange, -1 },
		"sparse backward": func(b *logbuffer.Batch) { b.Rule, b.Tuples[0].Position = logbuffer.RuleSparse, 9 },
	} {
		b := good
		b.Tuples = append([]logbuffer.Tuple(nil), good.Tuples...)
		change(&b)
		if _, err := appendAppendBody(nil, []logbuffer.Batch{b}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := appendCommitBody(nil, logbuffer.Ack{}, []logbuffer.Batch{b}); err == nil {
			t.Errorf("%s: no error in a commit", name)
		}
	}
	if _, err := appendAppendBody(nil, []logbuffer.Batch{good}); err != nil {
		t.Error(err)
	}
}

// FuzzEntry feeds a state whatever comes: with a right CRC it may be anything that is refused, but no panic other than
// for damage or an unknown version.
func FuzzEntry(f *testing.F) {
	for _, c := range goldenCommands(f) {
		var b entryBuilder
		b.add(c)
		f.Add(b.seal(1))
	}
	r := newStateRig(f, 1<<20, 1<<20)
	f.Fuzz(func(t *testing.T, p []byte) {
		_, _ = decodeEntry(p)
		p = resum(p)
		e, err := decodeEntry(p)
		if err != nil && !errors.Is(err, logbuffer.ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("class of %v", err)
		}
		s := NewState(r.config)
		defer func() {
			if v := recover(); v != nil {
				if err, ok := v.(error); !ok || !errors.Is(err, logbuffer.ErrCorrupt) && !errors.Is(err, ErrVersion) {
					panic(v)
				}
			}
		}()
		s.Apply(1, 1, p)
		for _, c := range e.Commands { // as if each were due
			if c.Kind != kindOpen {
				if v, err := s.effect(&c); err == nil {
					_ = must[Verdict](t)(decodeVerdict(v.appendTo(nil)))
				}
			}
		}
		s.finish()
	})
}

func TestVerdictRoundTrip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		v := Verdict{Code: VerdictCode(r.IntN(5)), Incarnation: r.Uint64(), Expected: r.Uint64N(500), Offset: r.Uint64()}
		if r.IntN(2) == 0 {
			v.SessionID, v.Reason = "session", "reason"
		}
		for range r.IntN(4) {
			first := r.Uint64N(1 << 40)
			v.Receipts = append(v.Receipts, logbuffer.Receipt{
				Code: logbuffer.Code(r.IntN(3)), First: first, Last: first + r.Uint64N(100), Admitted: r.IntN(100),
				Duplicates: r.IntN(100), Expected: r.Int64() - r.Int64(),
			})
		}
		if got := must[Verdict](t)(decodeVerdict(v.appendTo(nil))); !reflect.DeepEqual(got, v) {
			t.Fatalf("%+v, want %+v", got, v)
		}
	}
}
