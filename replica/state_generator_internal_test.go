package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"ftproxy/logbuffer"
)

// generator makes random commands: mostly ones that are due, and repeats, gaps, old incarnations and contradictions.
type generator struct {
	t        *testing.T
	random   *rand.Rand
	m        *naive
	nonces   uint64
	values   int
	sessions []string
	past     []*step
}

const (
	genWindow  = 6
	genLetters = 5
)

func newGenerator(t *testing.T, random *rand.Rand) *generator {
	t.Helper()
	m := &naive{
		window: DefaultSettings().Verdicts, limit: genLetters,
		proposers: map[string]*naiveProposer{}, last: map[string]int64{}, sessions: map[string]bool{},
		ids: map[logbuffer.ID]bool{}, dead: map[uint64]logbuffer.Letter{},
		buffers: map[string]*naiveBuffer{
			bufferIn:  {readers: map[string]*naiveReader{"deliver": {sinks: []string{"deliver"}}, "b": {sinks: []string{"b"}}}},
			bufferOut: {readers: map[string]*naiveReader{"x": {sinks: []string{"x1", "x2"}}, "y": {sinks: []string{"y"}}}},
		},
	}
	return &generator{t: t, random: random, m: m}
}

func genSettings() Settings {
	s := DefaultSettings()
	s.Verdicts, s.Letters = genWindow, genLetters
	s.In = []logbuffer.Reader{{Name: "deliver"}, {Name: "b"}}
	s.Out = []logbuffer.Reader{{Name: "x", Sinks: []string{"x1", "x2"}}, {Name: "y"}}
	return s
}

// prologue opens the proposers and sets the readers.
func (g *generator) prologue() []*step {
	steps := []*step{g.open("tenure")}
	steps = append(steps, &step{command: command{
		Kind: kindSettings, Proposer: "tenure", Incarnation: 1, Number: 1, Body: genSettings().appendTo(nil),
	}})
	for _, name := range []string{"lane/1", "lane/2", "sink/deliver", "sink/b", "sink/x", "sink/y"} {
		steps = append(steps, g.open(name))
	}
	g.m.window = genWindow
	return steps
}

func (g *generator) pick(names ...string) string { return names[g.random.IntN(len(names))] }

func (g *generator) open(name string) *step {
	g.nonces++
	s := &step{command: command{Kind: kindOpen, Proposer: name}, nonce: rigNonce(g.nonces)}
	if p := g.m.proposers[name]; p != nil {
		s.Incarnation = p.incarnation
	}
	s.Body = appendOpenBody(nil, 0, s.nonce)
	return s
}

// next makes a step. What it proposes is due by the model as it stands.
func (g *generator) next() *step {
	switch g.random.IntN(16) {
	case 0:
		if len(g.past) > 0 { // exactly as it was sent before
			return g.past[len(g.past)-1-g.random.IntN(min(len(g.past), 3*genWindow))]
		}
	case 1:
		s := g.open(g.pick("lane/1", "lane/2", "sink/deliver", "sink/b", "sink/x", "sink/y"))
		if g.random.IntN(3) == 0 {
			s.Incarnation += uint64(g.random.IntN(3)) - 1
		}
		return s
	case 2:
		s := g.numbered(g.pick("lane/1", "lane/2", "lane/unknown"), kindTick)
		s.Number += uint64(g.random.IntN(3))
		s.Incarnation -= uint64(g.random.IntN(2))
		return s
	case 3:
		s := g.numbered(g.pick("lane/1", "lane/2"), kindOpenSession)
		g.nonces++
		s.nonce = rigNonce(g.nonces)
		s.Body = appendOpenSessionBody(nil, s.nonce)
		return s
	case 4, 5:
		s := g.numbered(g.pick("lane/1", "lane/2"), kindRequeue)
		if g.random.IntN(3) == 0 {
			s.Kind = kindDrop
		}
		s.offset = 1 + g.random.Uint64N(g.m.letters+2)
		s.Body = appendOffsetBody(nil, s.offset)
		return s
	case 6, 7, 8, 9:
		reader := g.pick("b", "x", "y")
		s := g.numbered("sink/"+reader, kindAck)
		s.ack = g.ack(reader)
		s.Body = appendAckBody(nil, s.ack)
		return s
	case 10, 11:
		s := g.numbered("sink/deliver", kindCommit)
		s.ack = g.ack("deliver")
		for range g.random.IntN(3) {
			b := g.batch("out", logbuffer.RuleNone, 0)
			b.Sink = g.pick("", "x1", "x2", "y")
			s.outputs = append(s.outputs, b)
		}
		s.Body = must[[]byte](g.t)(appendCommitBody(nil, s.ack, s.outputs))
		return s
	}
	s := g.numbered(g.pick("lane/1", "lane/2"), kindAppend)
	for range 1 + g.random.IntN(3) {
		s.batches = append(s.batches, g.input())
	}
	s.Body = must[[]byte](g.t)(appendAppendBody(nil, s.batches))
	return s
}

// learn remembers what came of a step.
func (g *generator) learn(s *step, v Verdict) {
	g.past = append(g.past, s)
	if v.SessionID != "" {
		g.sessions = append(g.sessions, v.SessionID)
	}
}

func (g *generator) numbered(name string, k kind) *step {
	s := &step{command: command{Kind: k, Proposer: name, Number: 1, Incarnation: 1}}
	if p := g.m.proposers[name]; p != nil {
		s.Incarnation, s.Number = p.incarnation, p.last+1
	}
	return s
}

// input makes a batch near where its source stands.
func (g *generator) input() logbuffer.Batch {
	rule := logbuffer.Rule(g.random.IntN(5))
	source := fmt.Sprintf("%d/source%d", rule, g.random.IntN(2))
	if rule == logbuffer.RuleSession {
		source = "no session"
		if len(g.sessions) > 0 && g.random.IntN(8) > 0 {
			source = g.sessions[g.random.IntN(len(g.sessions))]
		}
	}
	after := g.m.last[source]
	if g.random.IntN(2) == 0 {
		after = max(0, after+g.random.Int64N(7)-4)
	}
	b := g.batch(source, rule, after)
	b.Sink = g.pick("", "", "deliver", "b")
	if g.random.IntN(3) == 0 {
		b.IDs = make([]logbuffer.ID, len(b.Tuples))
		for i := range b.IDs {
			b.IDs[i][0], b.IDs[i][1] = byte(g.random.IntN(60)), byte(g.random.IntN(2))
		}
	}
	return b
}

func (g *generator) batch(source string, rule logbuffer.Rule, after int64) logbuffer.Batch {
	b := logbuffer.Batch{Source: source, Rule: rule, After: after}
	position := after
	for range 1 + g.random.IntN(5) {
		position++
		if rule == logbuffer.RuleSparse || rule == logbuffer.RuleRange {
			position += g.random.Int64N(3)
		}
		g.values++
		b.Tuples = append(b.Tuples, logbuffer.Tuple{
			Key: []byte{byte(g.random.IntN(3))}, Value: fmt.Appendf(nil, "value %d", g.values), Position: position,
			Time: int64(g.values),
		})
	}
	return b
}

// ack makes an acknowledgement of some of a reader's tuples, rarely one that contradicts itself.
func (g *generator) ack(reader string) logbuffer.Ack {
	b, r := g.m.reader(reader)
	a := logbuffer.Ack{Reader: reader, UpTo: r.acked}
	if end := b.end(); end > r.acked {
		a.UpTo += 1 + g.random.Uint64N(end-r.acked)
	}
	switch g.random.IntN(20) {
	case 0:
		a.UpTo = b.end() + 1
		return a
	case 1:
		a.Dropped = int(b.end()) + 1
		return a
	case 2:
		a.UpTo = r.acked - min(r.acked, 1)
		return a
	}
	for _, t := range b.own(r, r.done, a.UpTo) {
		switch g.random.IntN(8) {
		case 0:
			a.Dead = append(a.Dead, logbuffer.Letter{
				From: t.Offset, Reader: reader, Reason: "refused with 400", Attempts: 1 + g.random.IntN(3),
				Source: t.Source, Sink: t.Sink, Tuple: t.Tuple,
			})
		case 1:
			a.Dropped++
		}
	}
	return a
}
