package replica

import (
	"encoding/hex"
	"fmt"
	"slices"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// applyAppend judges each batch alone.
func (s *State) applyAppend(body []byte) (Verdict, error) {
	items, err := decodeAppendBody(body)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Receipts: make([]logbuffer.Receipt, len(items))}
	for i := range items {
		v.Receipts[i] = s.admit(&items[i])
	}
	return v, nil
}

// admit puts a batch's new tuples into IN.
func (s *State) admit(it *appendItem) logbuffer.Receipt {
	sink := it.batch.Sink()
	o := s.judge(it)
	switch o.Code {
	case dedup.Done:
	case dedup.Gap:
		return logbuffer.Receipt{Code: logbuffer.CodeGap, Expected: o.Expected}
	case dedup.Expired:
		return logbuffer.Receipt{Code: logbuffer.CodeExpired}
	case dedup.Full:
		return logbuffer.Receipt{Code: logbuffer.CodeFull}
	}
	r := logbuffer.Receipt{Duplicates: o.Duplicates, Admitted: it.batch.Count() - o.Duplicates}
	s.received(bufferIn, sink, it.batch.Count(), o.Duplicates)
	if r.Admitted > 0 {
		r.First, r.Last = s.in.Append(s.detach(cut(it.batch, o.Keep)), true)
	}
	return r
}

func (s *State) judge(it *appendItem) dedup.Outcome {
	if s.mutant.admitAll {
		return dedup.Outcome{}
	}
	return s.seen.Judge(dedup.Batch{
		Source: it.batch.Source(), Rule: it.rule, After: it.after,
		First: it.batch.FirstPosition(), Last: it.batch.LastPosition(), Count: it.batch.Count(),
		Positions: func() []int64 {
			b := decode(it.batch)
			at := make([]int64, len(b.Tuples))
			for i := range b.Tuples {
				at[i] = b.Tuples[i].Position
			}
			return at
		},
		IDs: it.ids,
	}, s.now)
}

// cut encodes a batch anew without the tuples that are not to be kept.
func cut(e logbuffer.Encoded, keep []bool) logbuffer.Encoded {
	if keep == nil {
		return e
	}
	e, err := logbuffer.Cut(e, keep)
	if err != nil {
		panic(err) // it was checked before
	}
	return e
}

// detach copies a batch that is the smaller part of its entry, so that it does not keep the whole entry in memory.
func (s *State) detach(e logbuffer.Encoded) logbuffer.Encoded {
	if s.mutant.pinEntries || 2*len(e) >= s.entryBytes {
		return e
	}
	return slices.Clone(e)
}

// decode decodes a batch that was checked before.
func decode(e logbuffer.Encoded) logbuffer.Batch {
	b, err := e.Decode()
	if err != nil {
		panic(err)
	}
	return b
}

// received counts tuples that arrived in a buffer, for each reader of theirs.
func (s *State) received(buffer, sink string, tuples, duplicates int) {
	for _, r := range s.readersOf(buffer) {
		if reads(r, sink) {
			s.ledgers[r.Name].received += uint64(tuples)
			s.ledgers[r.Name].deduplicated += uint64(duplicates)
		}
	}
}

// applyAck moves a reader's cursor, stores its dead letters and counts what it dropped, or does nothing of it. Going
// back does nothing.
func (s *State) applyAck(body []byte) (Verdict, error) {
	a, err := decodeAckBody(body)
	if err != nil {
		return Verdict{}, err
	}
	if reason := s.refuseAck(&a); reason != "" {
		return refused(reason), nil
	}
	s.ack(&a)
	return Verdict{}, nil
}

// applyCommit acknowledges inputs and appends the outputs that came of them, or does neither.
func (s *State) applyCommit(body []byte) (Verdict, error) {
	a, outputs, err := decodeCommitBody(body)
	if err != nil {
		return Verdict{}, err
	}
	if reason := s.refuseAck(&a); reason != "" {
		return refused(reason), nil
	}
	if _, buffer, _ := s.readerCalled(a.Reader); buffer != bufferIn {
		return refused(fmt.Sprintf("reader %q does not read buffer %q, which outputs come of", a.Reader, bufferIn)), nil
	}
	if at, _ := s.in.Reader(a.Reader); a.UpTo < at.Acked {
		return refused(fmt.Sprintf("inputs up to %d, but up to %d they are acknowledged and their outputs are there", a.UpTo,
			at.Acked)), nil
	}
	s.ack(&a)
	var v Verdict
	for i, e := range outputs {
		s.received(bufferOut, e.Sink(), e.Count(), 0)
		_, v.Offset = s.out.Append(s.detach(e), i == len(outputs)-1)
	}
	return v, nil
}

// refuseAck says why an Ack cannot be applied; empty if it can.
func (s *State) refuseAck(a *logbuffer.Ack) string {
	_, buffer, ok := s.readerCalled(a.Reader)
	if !ok {
		return fmt.Sprintf("no reader is called %q: it is not in the settings", a.Reader)
	}
	b := s.buffer(buffer)
	at, _ := b.Reader(a.Reader)
	switch {
	case a.UpTo > b.End():
		return fmt.Sprintf("acknowledged up to %d, buffer %q ends at %d", a.UpTo, buffer, b.End())
	case len(a.Dead) > 0 && s.dead.Full(): // an Ack may go over the bound: one of many letters would else never fit
		return fmt.Sprintf("no room for %d dead letters: %d of %d bytes are unresolved, the bounds are %d and %d; "+
			"requeue or drop some", len(a.Dead), s.dead.Len(), s.dead.Bytes(), s.settings.Letters, s.settings.LetterBytes)
	}
	before := at.Acked
	for i := range a.Dead {
		if a.Dead[i].From <= before || a.Dead[i].From > a.UpTo {
			return fmt.Sprintf("dead letter of offset %d after %d, acknowledged up to %d", a.Dead[i].From, before, a.UpTo)
		}
		before = a.Dead[i].From
	}
	given, most := uint64(len(a.Dead)+a.Dropped), min(max(a.UpTo, at.Acked)-at.Acked, at.PendingTuples)
	if given > most {
		return fmt.Sprintf("%d tuples given up or dropped of %d", given, most)
	}
	return ""
}

// ack applies an Ack that is not to be refused. It panics if a file cannot be read: that is this replica's trouble, and
// no verdict.
func (s *State) ack(a *logbuffer.Ack) {
	_, buffer, _ := s.readerCalled(a.Reader)
	b, l := s.buffer(buffer), s.ledgers[a.Reader]
	before, _ := b.Reader(a.Reader)
	if err := b.Ack(a.Reader, a.UpTo); err != nil {
		panic(err)
	}
	after, _ := b.Reader(a.Reader)
	for _, letter := range a.Dead {
		letter.Time = s.now
		s.dead.Add(letter)
	}
	dead, dropped := uint64(len(a.Dead)), uint64(a.Dropped)
	moved := before.PendingTuples - after.PendingTuples
	if moved < dead+dropped {
		// The reader gave up tuples that were not its own. They are dead letters all the same, so they were received.
		l.received += dead + dropped - moved
		moved = dead + dropped
	}
	l.delivered += moved - dead - dropped
	l.deadLettered += dead
	l.dropped += dropped
}

// applyLetter resolves a dead letter: it goes back to its reader, past dedup, or away.
func (s *State) applyLetter(body []byte, requeue bool) (Verdict, error) {
	d := bodyReader{p: body}
	offset := d.uvarint()
	if err := d.end("letter"); err != nil {
		return Verdict{}, err
	}
	letter, ok := s.dead.Get(offset)
	if !ok {
		return refused(fmt.Sprintf("no unresolved dead letter has offset %d", offset)), nil
	}
	reader, buffer, ok := s.readerCalled(letter.Reader)
	if requeue && !ok {
		return refused(fmt.Sprintf("reader %q, which the dead letter is for, is not in the settings: drop the letter",
			letter.Reader)), nil
	}
	if requeue && !reads(reader, letter.Sink) {
		return refused(fmt.Sprintf("the dead letter is for sink %q, which reader %q does not have any more: drop the "+
			"letter, or configure the sink as before", letter.Sink, letter.Reader)), nil
	}
	var v Verdict
	if requeue {
		v.Offset = s.requeue(&letter, reader, buffer)
	}
	s.dead.Resolve(offset)
	if l := s.ledgers[letter.Reader]; l != nil {
		l.deadLettered--
		if !requeue {
			l.dropped++
		}
	}
	return v, nil
}

// requeue appends a letter's tuple to the buffer it was read from, labelled so that only its reader gets it.
func (s *State) requeue(letter *logbuffer.Letter, reader logbuffer.Reader, buffer string) uint64 {
	if letter.Sink == "" && len(reader.Sinks) > 0 {
		letter.Sink = reader.Sinks[0]
	}
	e := logbuffer.Encoded(appendLetterTuple(nil, letter))
	if s.mutant.requeueDedup {
		return s.admit(&appendItem{rule: dedup.Sparse, batch: e}).Last
	}
	_, last := s.buffer(buffer).Append(e, true)
	return last
}

func (s *State) applyOpenSession(body []byte) (Verdict, error) {
	d := bodyReader{p: body}
	id := hex.EncodeToString(d.fixed(len(nonce{})))
	if err := d.end("open session"); err != nil {
		return Verdict{}, err
	}
	if !s.seen.OpenSession(id, s.now) {
		return refused("the session is open already: sessions need random nonces"), nil
	}
	return Verdict{SessionID: id}, nil
}

func (s *State) applyHash(body []byte) (Verdict, error) {
	d := bodyReader{p: body}
	server, index, hash := d.stringOf(maxName), d.uvarint(), d.uint64()
	if err := d.end("hash"); err != nil {
		return Verdict{}, err
	}
	if !slices.Contains(s.settings.Members, server) {
		return refused(fmt.Sprintf("server %q is not a member", server)), nil
	}
	s.compared.vote(server, index, hash, &s.settings)
	return Verdict{}, nil
}

func (s *State) applyAnnounce(body []byte) (Verdict, error) {
	d := bodyReader{p: body}
	server, version := d.stringOf(maxName), d.int(1<<16)
	if err := d.end("announce"); err != nil {
		return Verdict{}, err
	}
	if _, known := s.versions[server]; !known && len(s.versions) >= maxList {
		return refused(fmt.Sprintf("%d servers have announced a version, the bound", maxList)), nil
	}
	s.versions[server] = version
	return Verdict{}, nil
}
