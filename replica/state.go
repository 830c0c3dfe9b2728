package replica

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// The names of the two buffers.
const (
	bufferIn  = "in"
	bufferOut = "out"
)

// StateConfig is what a State needs from its surroundings. It may differ between replicas.
type StateConfig struct {
	// Folder holds the segment files.
	Folder *logbuffer.Folder
	// Buffer is the size of segments and memory tail of each buffer.
	Buffer logbuffer.Options
}

// State is the replicated state: a pure function of the entries applied to it, in their order. Two states that applied
// the same entries are equal in all but the names of their files.
//
//	Append ─▶ dedup ─▶ IN ─▶ readers ─Ack──▶ trimmed
//	                    │       └─▶ DEAD ─Requeue─▶ IN or OUT, for the reader that gave up
//	                    └─▶ operator ─Commit─▶ IN acknowledged, OUT and DEAD grown, together
//
// It is not safe for concurrent use: the caller holds a lock around every method, and loads what Locate found without
// it. It has no clock: time is what the entries say. It panics on what cannot be (an entry that fails its checksum, a
// broken invariant, a file that cannot be written), since a replica must not go on from there.
type State struct {
	config   StateConfig
	settings Settings

	// applied is the index of the last entry applied; now is replicated time in ms, which never goes back.
	applied uint64
	now     int64
	// hash runs over all entries and over the cursors after each.
	hash uint64
	// entryBytes is the size of the entry being applied.
	entryBytes int

	proposers proposers
	seen      *dedup.Table
	in, out   *logbuffer.Buffer
	dead      *logbuffer.Dead
	ledgers   ledgers
	versions  map[string]int
	compared  comparison

	mutant mutant
}

// mutant switches protections off, for the tests that show that they are needed.
type mutant struct {
	// forgetVerdicts answers a repeat with a bare done.
	forgetVerdicts bool
	// unnumbered, if not nil, applies commands in any order, each once: it holds the identities that were seen.
	unnumbered map[string]bool
	// admitAll leaves deduplication to who proposes.
	admitAll bool
	// requeueDedup judges a requeued letter like a new tuple.
	requeueDedup bool
	// pinEntries keeps batches where their entry is.
	pinEntries bool
}

// NewState returns the state before the first entry.
func NewState(c StateConfig) *State {
	s := &State{
		config:   c,
		settings: DefaultSettings(),
		ledgers:  ledgers{},
		versions: make(map[string]int),
		in:       logbuffer.NewBuffer(bufferIn, c.Folder, c.Buffer),
		out:      logbuffer.NewBuffer(bufferOut, c.Folder, c.Buffer),
	}
	s.proposers = newProposers(s.settings.Verdicts)
	s.seen = dedup.NewTable(s.settings.Dedup)
	s.dead = logbuffer.NewDead(s.settings.letters())
	return s
}

// Apply applies the entry of an index and a Raft term and returns a verdict for each of its commands. Indexes ascend;
// they may have holes (Raft's own entries). It panics on an entry that is damaged (the error wraps
// logbuffer.ErrCorrupt) or that a newer build wrote (ErrVersion). A command that was damaged before its entry was made
// is refused.
func (s *State) Apply(index, term uint64, data []byte) []Verdict {
	e, err := decodeEntry(data)
	if err == nil && index <= s.applied {
		err = fmt.Errorf("%w: it was applied already, the last one is %d", logbuffer.ErrCorrupt, s.applied)
	}
	if err != nil {
		panic(fmt.Errorf("log entry %d: %w", index, err))
	}
	s.now, s.entryBytes = max(s.now, e.Time), len(data)
	s.seen.Expire(s.now)
	s.hash = mix(mix(mix(s.hash, index), term), uint64(e.CRC))
	verdicts := make([]Verdict, len(e.Commands))
	for i := range e.Commands {
		v, err := s.command(&e.Commands[i], term)
		if err != nil {
			panic(fmt.Errorf("log entry %d, command %d (%s of %s): %w", index, i, e.Commands[i].Kind,
				e.Commands[i].Proposer, err))
		}
		verdicts[i] = v
	}
	s.applied = index
	s.finish()
	return verdicts
}

// command judges one command by its number and applies it if it is due.
func (s *State) command(c *command, term uint64) (v Verdict, err error) {
	if c.Kind == kindOpen {
		return s.open(c, term), nil
	}
	p, v, due := s.proposers.check(c)
	if s.mutant.unnumbered != nil && v.Code != VerdictFenced {
		id := fmt.Sprint(c.Proposer, c.Number)
		p, due = s.proposers.known[c.Proposer], !s.mutant.unnumbered[id]
		s.mutant.unnumbered[id] = true
	}
	if !due && s.mutant.forgetVerdicts && v.Code != VerdictGap && v.Code != VerdictFenced {
		return Verdict{}, nil
	}
	if !due {
		return v, nil
	}
	switch v, err = s.effect(c); {
	case errors.Is(err, ErrVersion):
		return v, err
	case err != nil:
		// The entry is whole, so the command was damaged before it got there. Every replica sees the same; to stop all of
		// them would not make it better.
		v = refused(err.Error())
	}
	encoded := v.appendTo(nil)
	p.Last = max(p.Last, c.Number)
	p.keep(c.Number, encoded)
	s.hash = mix(s.hash, uint64(crc32.Checksum(encoded, castagnoli)))
	return v, nil
}

func (s *State) open(c *command, term uint64) Verdict {
	d := bodyReader{p: c.Body}
	wanted := d.uvarint()
	var n nonce
	copy(n[:], d.fixed(len(n)))
	switch err := d.end("open"); {
	case err != nil:
		return refused(err.Error())
	case c.Proposer == "":
		return refused("a proposer needs a name")
	case wanted != 0 && wanted != term:
		return refused(fmt.Sprintf("opened for term %d in term %d: the tenure is over", wanted, term))
	}
	return s.proposers.open(c.Proposer, c.Incarnation, n)
}

// effect applies a command that is due. An error means that its body is damaged (ErrCorrupt) or of a newer format
// (ErrVersion); nothing was changed then.
func (s *State) effect(c *command) (Verdict, error) {
	switch c.Kind {
	case kindAppend:
		return s.applyAppend(c.Body)
	case kindCommit:
		return s.applyCommit(c.Body)
	case kindAck:
		return s.applyAck(c.Body)
	case kindRequeue, kindDrop:
		return s.applyLetter(c.Body, c.Kind == kindRequeue)
	case kindOpenSession:
		return s.applyOpenSession(c.Body)
	case kindHash:
		return s.applyHash(c.Body)
	case kindAnnounce:
		return s.applyAnnounce(c.Body)
	case kindSettings:
		d := bodyReader{p: c.Body}
		settings := d.settings()
		if err := d.end("settings"); err != nil {
			return Verdict{}, err
		}
		return s.applySettings(settings.normal()), nil
	case kindTick:
		return Verdict{}, nil // the entry's time is all
	default: // kindOpen has no number; decodeEntry refused the unknown ones
		return Verdict{}, fmt.Errorf("%w: %s is no numbered command", logbuffer.ErrCorrupt, c.Kind)
	}
}

// finish adds the cursors to the running hash and asserts what must hold between any two entries.
func (s *State) finish() {
	for _, name := range []string{bufferIn, bufferOut} {
		c := s.buffer(name).Cursors()
		if c.Trimmed > c.End {
			panic(fmt.Errorf("%w: buffer %q is trimmed to %d beyond its end %d", logbuffer.ErrCorrupt, name, c.Trimmed,
				c.End))
		}
		s.hash = mix(mix(s.hash, c.Trimmed), c.End)
		for i := range c.Readers {
			r := &c.Readers[i]
			l := s.ledger(name, r.Name, r.PendingTuples)
			for _, v := range []uint64{r.Acked, r.Hash, l.Received, l.Delivered, l.Deduplicated, l.DeadLettered, l.Dropped} {
				s.hash = mix(s.hash, v)
			}
			if err := l.balance(); err != nil {
				panic(fmt.Errorf("after entry %d: %w", s.applied, err))
			}
		}
	}
	use := s.seen.Use()
	for _, n := range []int{use.IDs, use.Sessions, use.Sources, s.dead.Len()} {
		s.hash = mix(s.hash, uint64(n))
	}
	s.compared.take(s.applied, s.hash, s.settings.HashEvery)
}

func (s *State) buffer(name string) *logbuffer.Buffer {
	switch name {
	case bufferIn:
		return s.in
	case bufferOut:
		return s.out
	}
	panic(fmt.Errorf("no buffer is called %q", name))
}

// readersOf returns the readers of a buffer.
func (s *State) readersOf(buffer string) []logbuffer.Reader {
	if buffer == bufferIn {
		return s.settings.In
	}
	return s.settings.Out
}

// readerCalled finds a reader in either buffer.
func (s *State) readerCalled(name string) (r logbuffer.Reader, buffer string, ok bool) {
	for _, buffer = range []string{bufferIn, bufferOut} {
		readers := s.readersOf(buffer)
		if at := slices.IndexFunc(readers, func(r logbuffer.Reader) bool { return r.Name == name }); at >= 0 {
			return readers[at], buffer, true
		}
	}
	return logbuffer.Reader{}, "", false
}
