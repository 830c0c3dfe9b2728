package replica

import (
	"maps"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// This file is what the state tells. Nothing here changes it.

// Applied returns the index of the last entry applied, 0 if none.
func (s *State) Applied() uint64 { return s.applied }

// Now returns replicated time in milliseconds since the Unix epoch, 0 before the first entry.
func (s *State) Now() int64 { return s.now }

// Hash returns the running hash over all entries and the cursors after each.
func (s *State) Hash() uint64 { return s.hash }

// Proposer tells where a proposer stands; ok is false if the state does not know it.
func (s *State) Proposer(name string) (p Proposer, ok bool) {
	known, ok := s.proposers.known[name]
	if !ok {
		return Proposer{}, false
	}
	return known.Proposer, true
}

// Verdict returns the verdict that a proposer's command got, or what the command would get now if it has none:
// VerdictFenced for another incarnation than the present one, VerdictGap for a number that was not applied (also if it
// is the one due), VerdictForgotten for one that was consumed too long ago.
func (s *State) Verdict(name string, incarnation, number uint64) Verdict {
	c := command{Proposer: name, Incarnation: incarnation, Number: number}
	p, v, due := s.proposers.check(&c)
	if due {
		return Verdict{Code: VerdictGap, Expected: p.Last + 1}
	}
	return v
}

// Position returns the last position admitted from a source or a session.
func (s *State) Position(source string) (last int64, known bool) { return s.seen.Position(source) }

// Positions calls yield for every source with positions that is no session, in no particular order.
func (s *State) Positions(yield func(source string, last int64) bool) { s.seen.Sources(yield) }

// DedupUse returns how much of the bounds in Settings is used.
func (s *State) DedupUse() dedup.Use { return s.seen.Use() }

// Cursors returns the cursors of the buffer "in" or "out".
func (s *State) Cursors(buffer string) logbuffer.Cursors { return s.buffer(buffer).Cursors() }

// Locate finds what a reader has above an offset; the slice is loaded without the lock. See logbuffer.Buffer.Locate.
func (s *State) Locate(buffer, reader string, after uint64, maxBytes int) logbuffer.Slice {
	return s.buffer(buffer).Locate(reader, after, maxBytes)
}

// HashAt returns a buffer's running hash at an offset. See logbuffer.Buffer.HashAt.
func (s *State) HashAt(buffer string, n uint64) (hash uint64, ok bool, err error) {
	return s.buffer(buffer).HashAt(n)
}

// Ledgers returns the account of every reader: those of IN, then those of OUT.
func (s *State) Ledgers() []Ledger {
	var all []Ledger
	for _, name := range []string{bufferIn, bufferOut} {
		for _, r := range s.buffer(name).Cursors().Readers {
			all = append(all, s.ledger(name, r.Name, r.PendingTuples))
		}
	}
	return all
}

func (s *State) ledger(buffer, reader string, retained uint64) Ledger {
	c := s.ledgers[reader]
	return Ledger{
		Buffer: buffer, Reader: reader,
		Received: c.received, Delivered: c.delivered, Deduplicated: c.deduplicated,
		DeadLettered: c.deadLettered, Dropped: c.dropped, Retained: retained,
	}
}

// Letters returns up to limit unresolved dead letters with offsets above after, in order.
func (s *State) Letters(after uint64, limit int) []logbuffer.Letter { return s.dead.List(after, limit) }

// LetterCount returns the number of unresolved dead letters.
func (s *State) LetterCount() int { return s.dead.Len() }

// Settings returns the settings in force. The slices must not be changed.
func (s *State) Settings() Settings { return s.settings }

// Versions returns the format that each server announced.
func (s *State) Versions() map[string]int { return maps.Clone(s.versions) }

// Sample returns the running hash at the last index that is to be compared. Each server proposes a Hash of each sample
// that it gets to.
func (s *State) Sample() Sample { return s.compared.sample }

// Judged returns the ids of the servers that must stop because their state differs from the majority's (all members, if
// there is no majority), and why. A server stops if it is among them once it has applied all that was committed.
func (s *State) Judged() (servers []string, reason string) {
	return s.compared.judged, s.compared.reason
}
