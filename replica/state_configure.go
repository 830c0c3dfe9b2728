package replica

import (
	"fmt"
	"maps"
	"slices"

	"ftproxy/logbuffer"
)

// applySettings puts settings into force, as a whole or not at all.
func (s *State) applySettings(settings Settings) Verdict {
	if reason := s.refuseReaders(settings); reason != "" {
		return refused(reason)
	}
	s.settings = settings
	s.proposers.resize(settings.Verdicts)
	s.seen.SetBounds(settings.Dedup, s.now)
	s.dead.SetOptions(settings.letters())
	for _, name := range []string{bufferIn, bufferOut} {
		if err := s.buffer(name).SetReaders(s.readersOf(name)); err != nil {
			panic(fmt.Errorf("settings were checked but buffer %q refuses its readers: %w", name, err))
		}
	}
	s.openLedgers()
	member := func(server string) bool {
		return len(settings.Members) == 0 || slices.Contains(settings.Members, server)
	}
	s.proposers.retain(member, func(reader string) bool { _, _, ok := s.readerCalled(reader); return ok })
	maps.DeleteFunc(s.versions, func(server string, _ int) bool { return !member(server) })
	s.compared.retain(member)
	if len(settings.Voters) == 1 {
		s.compared.acquit()
	}
	return Verdict{}
}

// refuseReaders says why the readers cannot change as settings want; empty if they can. It asks for no less than
// logbuffer.Buffer.SetReaders does, so that the readers of both buffers change or of none.
func (s *State) refuseReaders(settings Settings) string {
	for _, r := range s.settings.readers() {
		_, buffer, _ := s.readerCalled(r.Name)
		b, wanted := s.buffer(buffer), settings.In
		if buffer == bufferOut {
			wanted = settings.Out
		}
		at := slices.IndexFunc(wanted, func(w logbuffer.Reader) bool { return w.Name == r.Name })
		c := b.Cursors()
		own, _ := b.Reader(r.Name)
		pending := own.PendingTuples
		switch {
		case at < 0 && pending > 0:
			return fmt.Sprintf("reader %q of buffer %q is to go but has %d tuples pending: configure it again until they "+
				"are delivered, or let its policy drop them", r.Name, buffer, pending)
		case at >= 0 && !slices.Equal(wanted[at].Sinks, r.Sinks) && c.Trimmed < c.End:
			return fmt.Sprintf("reader %q of buffer %q is to read other sinks than %q while %d tuples are retained: "+
				"configure it as before until they are delivered", r.Name, buffer, r.Sinks, c.End-c.Trimmed)
		}
	}
	return ""
}

// openLedgers begins the account of each new reader with what it found, closes those of readers that are gone, and
// counts what a reader with other sinks than before finds or loses as received or not.
func (s *State) openLedgers() {
	maps.DeleteFunc(s.ledgers, func(reader string, _ *counts) bool { _, _, ok := s.readerCalled(reader); return !ok })
	for _, name := range []string{bufferIn, bufferOut} {
		for _, r := range s.buffer(name).Cursors().Readers {
			l := s.ledgers[r.Name]
			if l == nil {
				l = &counts{deadLettered: s.lettersOf(r.Name)}
				s.ledgers[r.Name] = l
			}
			l.received = l.delivered + l.deduplicated + l.deadLettered + l.dropped + r.PendingTuples
		}
	}
}

// lettersOf counts the unresolved dead letters of a reader.
func (s *State) lettersOf(reader string) (n uint64) {
	for _, l := range s.dead.List(0, s.dead.Len()) {
		if l.Reader == reader {
			n++
		}
	}
	return n
}
