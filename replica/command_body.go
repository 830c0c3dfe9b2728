package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// The bodies of the commands. n is a count (uvarint), a batch is logbuffer's encoding of one, which frames itself.
//
//	open         = term (uvarint) | nonce (16)
//	append       = n | (rule (1) | after (varint) | n | id (16) × n | batch) × n
//	ack          = reader | up to | dropped (uvarints) | n | letter × n
//	letter       = from | attempts (uvarints) | reason | batch of its tuple
//	commit       = ack | n | batch × n
//	requeue,drop = offset of the letter (uvarint)
//	open-session = nonce (16)
//	tick         = nothing
//	hash         = server | index (uvarint) | hash (8, LE)
//	announce     = server | version (uvarint)
//	settings     = see settings.appendTo

const (
	// maxName bounds names of sources, sinks, readers and servers, in bytes.
	maxName = 1024
	// maxReason bounds a dead letter's reason, in bytes; a longer one is cut.
	maxReason = 1024
)

// nonce tells two proposals apart that are equal otherwise. It is random, made by the proposer.
type nonce [16]byte

// appendOpenBody makes the body of Open. The command's Incarnation is the one that it replaces: the proposer's present
// one, or 0 if the state does not know the proposer. Its Number is 0. A term other than 0 must be the Raft term of the
// entry.
//
//nolint:unparam // all bodies are made alike
func appendOpenBody(dst []byte, term uint64, n nonce) []byte {
	return append(binary.AppendUvarint(dst, term), n[:]...)
}

// appendAppendBody makes the body of Append: batches that are judged each alone. An error is the caller's mistake.
func appendAppendBody(dst []byte, batches []logbuffer.Batch) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(len(batches)))
	for i := range batches {
		b := &batches[i]
		if err := checkBatch(b); err != nil {
			return nil, err
		}
		dst = append(dst, byte(b.Rule))
		dst = binary.AppendVarint(dst, b.After)
		dst = binary.AppendUvarint(dst, uint64(len(b.IDs)))
		for _, id := range b.IDs {
			dst = append(dst, id[:]...)
		}
		dst = logbuffer.AppendBatch(dst, b)
	}
	return dst, nil
}

// appendAckBody makes the body of Ack.
func appendAckBody(dst []byte, a logbuffer.Ack) []byte {
	dst = appendString(dst, a.Reader)
	dst = binary.AppendUvarint(dst, a.UpTo)
	dst = binary.AppendUvarint(dst, uint64(a.Dropped))
	dst = binary.AppendUvarint(dst, uint64(len(a.Dead)))
	for i := range a.Dead {
		l := &a.Dead[i]
		dst = binary.AppendUvarint(dst, l.From)
		dst = binary.AppendUvarint(dst, uint64(l.Attempts))
		dst = appendString(dst, l.Reason[:min(len(l.Reason), maxReason)])
		dst = appendLetterTuple(dst, l)
	}
	return dst
}

// appendCommitBody makes the body of Commit: ack acknowledges the operator's reader in IN, and outputs go to OUT.
//
//nolint:unparam // all bodies are made alike
func appendCommitBody(dst []byte, ack logbuffer.Ack, outputs []logbuffer.Batch) ([]byte, error) {
	dst = appendAckBody(dst, ack)
	dst = binary.AppendUvarint(dst, uint64(len(outputs)))
	for i := range outputs {
		if err := checkBatch(&outputs[i]); err != nil {
			return nil, err
		}
		dst = logbuffer.AppendBatch(dst, &outputs[i])
	}
	return dst, nil
}

// appendOffsetBody makes the body of Requeue and of Drop.
//
//nolint:unparam // all bodies are made alike
func appendOffsetBody(dst []byte, offset uint64) []byte { return binary.AppendUvarint(dst, offset) }

// appendOpenSessionBody makes the body of OpenSession; the nonce becomes the session's id.
//
//nolint:unparam // all bodies are made alike
func appendOpenSessionBody(dst []byte, n nonce) []byte { return append(dst, n[:]...) }

// appendHashBody makes the body of Hash: the running hash of a server's state at an index, see State.Sample.
//
//nolint:unparam // all bodies are made alike
func appendHashBody(dst []byte, server string, index, hash uint64) []byte {
	dst = binary.AppendUvarint(appendString(dst, server), index)
	return binary.LittleEndian.AppendUint64(dst, hash)
}

// appendAnnounceBody makes the body of Announce: the newest format that a server reads.
//
//nolint:unparam // all bodies are made alike
func appendAnnounceBody(dst []byte, server string, version int) []byte {
	return binary.AppendUvarint(appendString(dst, server), uint64(version))
}

// checkBatch refuses what a state could not judge.
func checkBatch(b *logbuffer.Batch) error {
	switch {
	case len(b.Tuples) == 0:
		return errors.New("batch without tuples")
	case b.IDs != nil && len(b.IDs) != len(b.Tuples):
		return fmt.Errorf("batch of %d tuples with %d ids: one each or none", len(b.Tuples), len(b.IDs))
	case len(b.Source) > maxName || len(b.Sink) > maxName:
		return fmt.Errorf("names of %d and %d bytes for source and sink: at most %d", len(b.Source), len(b.Sink), maxName)
	case b.Rule > logbuffer.RuleRange:
		return fmt.Errorf("batch with unknown rule %d", b.Rule)
	case b.Rule == logbuffer.RuleNone:
		return nil
	case b.Source == "":
		return errors.New("batch with positions but without a source")
	}
	before := int64(math.MinInt64)
	switch b.Rule {
	case logbuffer.RuleDense, logbuffer.RuleSession:
		before = 0
	case logbuffer.RuleRange:
		if before = b.After; before < 0 {
			return fmt.Errorf("batch of %q follows on %d: positions start at 1", b.Source, before)
		}
	case logbuffer.RuleNone, logbuffer.RuleSparse:
	}
	for i := range b.Tuples {
		at := b.Tuples[i].Position
		if at <= before {
			return fmt.Errorf("batch of %q has position %d after %d: positions ascend", b.Source, at, before)
		}
		before = at
	}
	return nil
}

// appendLetterTuple encodes a letter's tuple with where it came from as a batch of one.
func appendLetterTuple(dst []byte, l *logbuffer.Letter) []byte {
	return logbuffer.AppendBatch(dst, &logbuffer.Batch{
		Source: l.Source, Partition: l.Partition, Sink: l.Sink, Tuples: []logbuffer.Tuple{l.Tuple},
	})
}

// appendItem is one batch of an Append.
type appendItem struct {
	rule  dedup.Rule
	after int64
	ids   []dedup.ID
	batch logbuffer.Encoded
}

// batch reads one encoded batch and checks it, so that it will decode.
func (d *bodyReader) batch() logbuffer.Encoded {
	if d.err != nil {
		return nil
	}
	e, rest, err := logbuffer.NextEncoded(d.p)
	if err == nil {
		err = e.Check()
	}
	if err == nil && e.Count() == 0 {
		err = fmt.Errorf("%w: batch without tuples", logbuffer.ErrCorrupt)
	}
	if errors.Is(err, logbuffer.ErrVersion) {
		err = fmt.Errorf("%w: %w", ErrVersion, err)
	}
	if err != nil {
		d.p, d.err = nil, err
		return nil
	}
	d.p = rest
	return e
}

// decodeAppendBody reads what appendAppendBody wrote.
func decodeAppendBody(p []byte) ([]appendItem, error) {
	d := bodyReader{p: p}
	const smallest = 18 // bytes of an item
	items := make([]appendItem, d.count(smallest))
	for i := range items {
		it := &items[i]
		it.rule = dedup.Rule(d.int(int(dedup.Range)))
		it.after = d.varint()
		if n := d.count(len(dedup.ID{})); n > 0 {
			it.ids = make([]dedup.ID, n)
			for j := range it.ids {
				copy(it.ids[j][:], d.fixed(len(dedup.ID{})))
			}
		}
		it.batch = d.batch()
		if d.err != nil {
			break
		}
		if it.ids != nil && len(it.ids) != it.batch.Count() {
			d.fail("number of ids differs from that of tuples")
		}
	}
	return items, d.end("append")
}

func (d *bodyReader) ack() logbuffer.Ack {
	a := logbuffer.Ack{Reader: d.stringOf(maxName), UpTo: d.uvarint(), Dropped: d.int(math.MaxInt32)}
	for range d.count(4) {
		l := logbuffer.Letter{
			Reader: a.Reader, From: d.uvarint(), Attempts: d.int(math.MaxInt32), Reason: d.stringOf(maxReason),
		}
		e := d.batch()
		if d.err != nil {
			break
		}
		b, err := e.Decode()
		if err != nil || len(b.Tuples) != 1 {
			d.fail("a letter is not one tuple")
			break
		}
		l.Source, l.Partition, l.Sink, l.Tuple = b.Source, b.Partition, b.Sink, b.Tuples[0]
		a.Dead = append(a.Dead, l)
	}
	return a
}

// decodeAckBody reads what appendAckBody wrote.
func decodeAckBody(p []byte) (logbuffer.Ack, error) {
	d := bodyReader{p: p}
	return d.ack(), d.end("ack")
}

// decodeCommitBody reads what appendCommitBody wrote.
func decodeCommitBody(p []byte) (ack logbuffer.Ack, outputs []logbuffer.Encoded, err error) {
	d := bodyReader{p: p}
	ack = d.ack()
	for range d.count(1) {
		e := d.batch()
		if d.err != nil {
			break
		}
		outputs = append(outputs, e)
	}
	return ack, outputs, d.end("commit")
}
