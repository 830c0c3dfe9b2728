package replica

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxProposers bounds the proposers that a state knows.
const maxProposers = 1024

// The names of proposers. A lane's name goes on with a server id, a sink's with a reader's name.
const (
	laneProposer   = "lane/"
	sinkProposer   = "sink/"
	tenureProposer = "tenure"
)

// Proposer is where a proposer stands.
type Proposer struct {
	// Incarnation is the present one. Incarnations ascend over the whole state and are never given twice.
	Incarnation uint64
	// Nonce is that of the Open that gave it, by which a proposer recognises an Open whose outcome it did not learn.
	Nonce [16]byte
	// Last is the last number consumed, 0 if none.
	Last uint64
}

// proposer is a Proposer with its last verdicts.
type proposer struct {
	Proposer
	// kept holds the verdicts of the last numbers, encoded: that of number n is at n % len, empty if there is none.
	kept [][]byte
}

func (p *proposer) keep(number uint64, verdict []byte) {
	p.kept[number%uint64(len(p.kept))] = verdict
}

// recall returns the verdict of a consumed number.
func (p *proposer) recall(number uint64) Verdict {
	if number+uint64(len(p.kept)) <= p.Last {
		return Verdict{Code: VerdictForgotten}
	}
	encoded := p.kept[number%uint64(len(p.kept))]
	if len(encoded) == 0 {
		return Verdict{Code: VerdictForgotten} // the window was smaller when it was consumed
	}
	v, err := decodeVerdict(encoded)
	if err != nil {
		panic(fmt.Errorf("kept verdict of number %d: %w", number, err))
	}
	return v
}

// resize changes how many verdicts are kept.
func (p *proposer) resize(window int) {
	if len(p.kept) == window {
		return
	}
	old := p.kept
	p.kept = make([][]byte, window)
	for n := p.Last; n > 0 && p.Last-n < uint64(min(window, len(old))); n-- {
		p.keep(n, old[n%uint64(len(old))])
	}
}

// proposers is the table of all of them.
type proposers struct {
	window int
	// opened is the last incarnation given.
	opened uint64
	known  map[string]*proposer
}

func newProposers(window int) proposers {
	return proposers{window: window, known: make(map[string]*proposer)}
}

// open gives name its next incarnation if replaces is its present one, and fences the latter.
func (t *proposers) open(name string, replaces uint64, n nonce) Verdict {
	p := t.known[name]
	switch {
	case p != nil && p.Nonce == n:
		return Verdict{Incarnation: p.Incarnation} // a repeat
	case p != nil && p.Incarnation != replaces:
		return Verdict{Code: VerdictFenced, Incarnation: p.Incarnation}
	case p == nil && replaces != 0:
		return Verdict{Code: VerdictFenced}
	case p == nil && len(t.known) >= maxProposers:
		return refused(fmt.Sprintf("%d proposers are known, the bound: remove servers and sinks that are gone",
			maxProposers))
	}
	t.opened++
	t.known[name] = &proposer{
		Proposer: Proposer{Incarnation: t.opened, Nonce: n},
		kept:     make([][]byte, t.window),
	}
	return Verdict{Incarnation: t.opened}
}

// check tells whether a command with this number is to be applied. If not, the verdict is what it gets.
func (t *proposers) check(c *command) (p *proposer, v Verdict, apply bool) {
	p = t.known[c.Proposer]
	switch {
	case p == nil:
		return nil, Verdict{Code: VerdictFenced}, false
	case p.Incarnation != c.Incarnation:
		return nil, Verdict{Code: VerdictFenced, Incarnation: p.Incarnation}, false
	case c.Number > p.Last+1:
		return nil, Verdict{Code: VerdictGap, Expected: p.Last + 1}, false
	case c.Number <= p.Last:
		return nil, p.recall(c.Number), false
	}
	return p, Verdict{}, true
}

// retain drops the lanes whose server and the sinks whose reader does not satisfy its predicate.
func (t *proposers) retain(server, reader func(string) bool) {
	maps.DeleteFunc(t.known, func(name string, _ *proposer) bool {
		if id, ok := strings.CutPrefix(name, laneProposer); ok {
			return !server(id)
		}
		if id, ok := strings.CutPrefix(name, sinkProposer); ok {
			return !reader(id)
		}
		return false
	})
}

func (t *proposers) resize(window int) {
	t.window = window
	for _, p := range t.known {
		p.resize(window)
	}
}

// appendTo encodes: opened | n | (name | incarnation | nonce | last | n | verdict × n, by number) × n, by name. A
// verdict is its length and its bytes.
func (t *proposers) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, t.opened)
	dst = binary.AppendUvarint(dst, uint64(len(t.known)))
	for _, name := range slices.Sorted(maps.Keys(t.known)) {
		p := t.known[name]
		dst = appendString(dst, name)
		dst = binary.AppendUvarint(dst, p.Incarnation)
		dst = append(dst, p.Nonce[:]...)
		dst = binary.AppendUvarint(dst, p.Last)
		n := min(p.Last, uint64(len(p.kept)))
		dst = binary.AppendUvarint(dst, n)
		for number := p.Last - n + 1; number <= p.Last; number++ {
			dst = appendBytes(dst, p.kept[number%uint64(len(p.kept))])
		}
	}
	return dst
}

// restoreProposers reads what appendTo wrote, for a window that is in force already.
func restoreProposers(d *bodyReader, window int) proposers {
	t := newProposers(window)
	t.opened = d.uvarint()
	for range d.count(len(nonce{}) + 4) {
		name := d.stringOf(maxProposer)
		p := &proposer{kept: make([][]byte, window)}
		p.Incarnation = d.uvarint()
		copy(p.Nonce[:], d.fixed(len(p.Nonce)))
		p.Last = d.uvarint()
		n := uint64(d.count(1))
		if t.known[name] != nil || len(t.known) >= maxProposers || p.Incarnation > t.opened || n > p.Last ||
			n > uint64(window) {
			d.fail("proposer contradicts itself")
			return t
		}
		for number := p.Last - n + 1; number <= p.Last && d.err == nil; number++ {
			b := slices.Clone(d.bytes())
			if _, err := decodeVerdict(b); len(b) > 0 && err != nil {
				d.fail("kept verdict does not decode")
			}
			p.keep(number, b)
		}
		t.known[name] = p
	}
	return t
}
