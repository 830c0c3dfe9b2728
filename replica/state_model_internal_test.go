package replica

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

// naive is what a State should do, said as plainly as possible: everything is kept for ever, in lists of single tuples.
type naive struct {
	now       int64
	window    int
	opened    uint64
	proposers map[string]*naiveProposer
	last      map[string]int64 // positions; sessions too
	sessions  map[string]bool
	ids       map[logbuffer.ID]bool
	buffers   map[string]*naiveBuffer
	dead      map[uint64]logbuffer.Letter
	letters   uint64
	limit     int
}

type naiveProposer struct {
	incarnation, last uint64
	nonce             nonce
	verdicts          map[uint64]Verdict
}

type naiveBuffer struct {
	tuples  []rigTuple
	readers map[string]*naiveReader
}

type naiveReader struct {
	sinks                                   []string
	acked, done                             uint64
	received, delivered, dups, dead, policy uint64
}

// own returns the reader's tuples in (after, upTo].
func (b *naiveBuffer) own(r *naiveReader, after, upTo uint64) []rigTuple {
	var own []rigTuple
	for _, t := range b.tuples {
		if t.Offset > after && t.Offset <= upTo && r.reads(t.Sink) {
			own = append(own, t)
		}
	}
	return own
}

func (r *naiveReader) reads(sink string) bool {
	return sink == "" || len(r.sinks) == 0 || slices.Contains(r.sinks, sink)
}

func (b *naiveBuffer) end() uint64 { return uint64(len(b.tuples)) }

// add appends the tuples of one batch.
func (b *naiveBuffer) add(batch *logbuffer.Batch, tuples []logbuffer.Tuple) (first, last uint64) {
	if len(tuples) == 0 {
		return 0, 0
	}
	first = b.end() + 1
	for _, r := range b.readers {
		if len(b.own(r, r.done, b.end())) == 0 && r.reads(batch.Sink) {
			r.done = max(r.done, first-1)
		}
	}
	for _, t := range tuples {
		b.tuples = append(b.tuples, rigTuple{Offset: b.end() + 1, Source: batch.Source, Sink: batch.Sink, Tuple: t})
	}
	return first, b.end()
}

func (m *naive) reader(name string) (b *naiveBuffer, r *naiveReader) {
	for _, b := range m.buffers {
		if r := b.readers[name]; r != nil {
			return b, r
		}
	}
	return nil, nil
}

// step is a command with what it says, for the model.
type step struct {
	command
	batches []logbuffer.Batch
	ack     logbuffer.Ack
	outputs []logbuffer.Batch
	offset  uint64
	nonce   nonce
}

// do returns the verdict that is due. The text of a refusal is not modelled.
func (m *naive) do(s *step) Verdict {
	p := m.proposers[s.Proposer]
	if s.Kind == kindOpen {
		switch {
		case p != nil && p.nonce == s.nonce:
			return Verdict{Incarnation: p.incarnation}
		case p == nil && s.Incarnation != 0:
			return Verdict{Code: VerdictFenced}
		case p != nil && p.incarnation != s.Incarnation:
			return Verdict{Code: VerdictFenced, Incarnation: p.incarnation}
		}
		m.opened++
		m.proposers[s.Proposer] = &naiveProposer{incarnation: m.opened, nonce: s.nonce, verdicts: map[uint64]Verdict{}}
		return Verdict{Incarnation: m.opened}
	}
	switch {
	case p == nil:
		return Verdict{Code: VerdictFenced}
	case p.incarnation != s.Incarnation:
		return Verdict{Code: VerdictFenced, Incarnation: p.incarnation}
	case s.Number > p.last+1:
		return Verdict{Code: VerdictGap, Expected: p.last + 1}
	case s.Number+uint64(m.window) <= p.last || s.Number == 0:
		return Verdict{Code: VerdictForgotten}
	case s.Number <= p.last:
		return p.verdicts[s.Number]
	}
	p.last++
	p.verdicts[p.last] = m.effect(s)
	return p.verdicts[p.last]
}

func (m *naive) effect(s *step) (v Verdict) {
	switch s.Kind {
	case kindAppend:
		for i := range s.batches {
			v.Receipts = append(v.Receipts, m.admit(&s.batches[i]))
		}
	case kindAck:
		v.Code = m.acknowledge(&s.ack)
	case kindCommit:
		if s.ack.UpTo < m.buffers[bufferIn].readers[s.ack.Reader].acked {
			return Verdict{Code: VerdictRefused}
		}
		if v.Code = m.acknowledge(&s.ack); v.Code != VerdictDone {
			return v
		}
		for i := range s.outputs {
			m.receive(bufferOut, s.outputs[i].Sink, len(s.outputs[i].Tuples), 0)
			_, v.Offset = m.buffers[bufferOut].add(&s.outputs[i], s.outputs[i].Tuples)
		}
	case kindRequeue, kindDrop:
		return m.resolve(s.offset, s.Kind == kindRequeue)
	case kindOpenSession:
		v.SessionID = fmt.Sprintf("%x", s.nonce[:])
		if m.sessions[v.SessionID] {
			return Verdict{Code: VerdictRefused}
		}
		m.sessions[v.SessionID] = true
	default:
	}
	return v
}

func (m *naive) receive(buffer, sink string, tuples, dups int) {
	for _, r := range m.buffers[buffer].readers {
		if r.reads(sink) {
			r.received += uint64(tuples)
			r.dups += uint64(dups)
		}
	}
}

func (m *naive) admit(b *logbuffer.Batch) (r logbuffer.Receipt) {
	last, known := m.last[b.Source]
	first := b.Tuples[0].Position
	final := b.Tuples[len(b.Tuples)-1].Position
	switch b.Rule {
	case logbuffer.RuleSession, logbuffer.RuleDense:
		if b.Rule == logbuffer.RuleSession && !m.sessions[b.Source] {
			return logbuffer.Receipt{Code: logbuffer.CodeExpired}
		}
		if final > last && first > last+1 {
			return logbuffer.Receipt{Code: logbuffer.CodeGap, Expected: last + 1}
		}
	case logbuffer.RuleRange:
		if b.After > last {
			return logbuffer.Receipt{Code: logbuffer.CodeGap, Expected: last}
		}
	case logbuffer.RuleSparse:
		if !known {
			last = -1
		}
	case logbuffer.RuleNone:
	}
	var kept []logbuffer.Tuple
	for i, t := range b.Tuples {
		if b.Rule != logbuffer.RuleNone {
			if t.Position <= last {
				continue
			}
			last = t.Position
		}
		if b.IDs != nil && b.IDs[i] != (logbuffer.ID{}) {
			if m.ids[b.IDs[i]] {
				continue
			}
			m.ids[b.IDs[i]] = true
		}
		kept = append(kept, t)
	}
	if b.Rule != logbuffer.RuleNone {
		m.last[b.Source] = last
	}
	r.Admitted, r.Duplicates = len(kept), len(b.Tuples)-len(kept)
	m.receive(bufferIn, b.Sink, len(b.Tuples), r.Duplicates)
	r.First, r.Last = m.buffers[bufferIn].add(b, kept)
	return r
}

func (m *naive) acknowledge(a *logbuffer.Ack) VerdictCode {
	b, r := m.reader(a.Reader)
	if r == nil || a.UpTo > b.end() || len(a.Dead) > 0 && len(m.dead) >= m.limit {
		return VerdictRefused
	}
	own, pending := b.own(r, r.done, a.UpTo), b.own(r, r.done, b.end())
	if len(a.Dead)+a.Dropped > len(own) {
		return VerdictRefused // the generator makes no cases that only the count of own tuples can refuse
	}
	if len(pending) > 0 && a.UpTo > r.done {
		r.acked, r.done = a.UpTo, a.UpTo
	}
	for _, l := range a.Dead {
		m.letters++
		l.Offset, l.Reader, l.Time = m.letters, a.Reader, m.now
		m.dead[m.letters] = l
	}
	r.dead += uint64(len(a.Dead))
	r.policy += uint64(a.Dropped)
	r.delivered += uint64(len(own) - len(a.Dead) - a.Dropped)
	return VerdictDone
}

func (m *naive) resolve(offset uint64, requeue bool) (v Verdict) {
	l, ok := m.dead[offset]
	if !ok {
		return Verdict{Code: VerdictRefused}
	}
	b, r := m.reader(l.Reader)
	delete(m.dead, offset)
	r.dead--
	if !requeue {
		r.policy++
		return v
	}
	sink := l.Sink
	if sink == "" && len(r.sinks) > 0 {
		sink = r.sinks[0]
	}
	_, v.Offset = b.add(&logbuffer.Batch{Source: l.Source, Sink: sink}, []logbuffer.Tuple{l.Tuple})
	return v
}

// sameVerdict compares a verdict with the model's.
func sameVerdict(got, want Verdict) bool {
	if want.Code == VerdictRefused {
		return got.Code == VerdictRefused && got.Reason != ""
	}
	return reflect.DeepEqual(got, want)
}

// compareState checks everything that the state tells against the model; the buffers' contents only if asked to.
func compareState(t *testing.T, r *stateRig, m *naive, contents bool) {
	t.Helper()
	for name, p := range m.proposers {
		got, ok := r.s.Proposer(name)
		if want := (Proposer{Incarnation: p.incarnation, Nonce: p.nonce, Last: p.last}); !ok || got != want {
			t.Fatalf("proposer %s: %+v, want %+v", name, got, want)
		}
	}
	for source, last := range m.last {
		if got, known := r.s.Position(source); !known || got != last {
			t.Fatalf("position of %s: %d (known %v), want %d", source, got, known, last)
		}
	}
	ledgers := map[string]Ledger{}
	for _, l := range r.s.Ledgers() {
		if err := l.balance(); err != nil {
			t.Fatal(err)
		}
		ledgers[l.Reader] = l
	}
	for buffer, b := range m.buffers {
		if c := r.s.Cursors(buffer); c.End != b.end() {
			t.Fatalf("%s ends at %d, want %d", buffer, c.End, b.end())
		}
		for name, reader := range b.readers {
			pending := b.own(reader, reader.done, b.end())
			want := Ledger{
				Buffer: buffer, Reader: name, Received: reader.received, Delivered: reader.delivered,
				Deduplicated: reader.dups, DeadLettered: reader.dead, Dropped: reader.policy, Retained: uint64(len(pending)),
			}
			if ledgers[name] != want {
				t.Fatalf("ledger %+v, want %+v", ledgers[name], want)
			}
			if !contents {
				continue
			}
			if got := r.read(buffer, name, reader.done); !reflect.DeepEqual(got, pending) {
				t.Fatalf("reader %s has\n%v\nwant\n%v", name, got, pending)
			}
		}
	}
	compareLetters(t, r, m)
}

func compareLetters(t *testing.T, r *stateRig, m *naive) {
	t.Helper()
	var want []logbuffer.Letter
	for offset := range m.letters {
		if l, ok := m.dead[offset+1]; ok {
			want = append(want, l)
		}
	}
	if got := r.s.Letters(0, 1000); !reflect.DeepEqual(got, want) {
		t.Fatalf("dead letters\n%v\nwant\n%v", got, want)
	}
}

// TestStateAgainstModel runs random histories with crashes. A twin with other file sizes, which never crashes, applies
// the same entries and must have the same hash after each.
func TestStateAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Parallel()
			runHistory(t, rand.New(rand.NewPCG(seed, 5)))
		})
	}
}

func runHistory(t *testing.T, random *rand.Rand) {
	t.Helper()
	r, twin := newStateRig(t, 600, 1500), newStateRig(t, 1<<20, 1<<20)
	g := newGenerator(t, random)
	apply := func(steps ...*step) []Verdict {
		commands := make([]command, len(steps))
		for i, s := range steps {
			commands[i] = s.command
		}
		e := r.entry(commands...)
		got := r.s.Apply(e.index, e.term, e.data)
		if again := twin.s.Apply(e.index, e.term, e.data); !reflect.DeepEqual(got, again) || r.s.Hash() != twin.s.Hash() {
			t.Fatalf("entry %d: the twin has hash %x and verdicts %v, not %x and %v", e.index, twin.s.Hash(), again,
				r.s.Hash(), got)
		}
		return got
	}
	for _, s := range g.prologue() {
		if got := apply(s)[0]; !sameVerdict(got, g.m.do(s)) {
			t.Fatalf("prologue: %s: %+v", s.Kind, got)
		}
	}
	for i := range 250 {
		r.now += random.Int64N(20)
		g.m.now = r.now
		var steps []*step
		var want []Verdict
		for range 1 + random.IntN(3) {
			s := g.next()
			steps = append(steps, s)
			want = append(want, g.m.do(s))
			g.learn(s, want[len(want)-1])
		}
		for j, got := range apply(steps...) {
			if !sameVerdict(got, want[j]) {
				t.Fatalf("step %d.%d: %s by %s %d/%d: %+v, want %+v", i, j, steps[j].Kind, steps[j].Proposer,
					steps[j].Incarnation, steps[j].Number, got, want[j])
			}
		}
		switch random.IntN(12) {
		case 0:
			r.seal()
		case 1:
			r.crash()
		}
		compareState(t, r, g.m, i%5 == 0)
	}
	one, two := r.s.seen.Append(r.s.appendCore(nil)), twin.s.seen.Append(twin.s.appendCore(nil))
	if !slices.Equal(one, two) {
		t.Fatal("the twins' manifests differ")
	}
}
