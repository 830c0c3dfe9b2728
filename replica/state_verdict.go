package replica

import (
	"encoding/binary"
	"math"

	"ftproxy/logbuffer"
)

// VerdictCode says what the state did with a command.
type VerdictCode uint8

const (
	// VerdictDone means that the command took effect; for an Append, each batch has its own Receipt.
	VerdictDone VerdictCode = iota
	// VerdictGap means that the proposer's numbers up to the command's are not complete; Expected is due. Nothing
	// happened and the number is not consumed.
	VerdictGap
	// VerdictFenced means that the incarnation is not the proposer's present one, which Incarnation gives (0: the
	// proposer is unknown). Nothing happened and the number is not consumed.
	VerdictFenced
	// VerdictForgotten means that the number was consumed, so long ago that its verdict is not kept any more.
	VerdictForgotten
	// VerdictRefused means that nothing happened but that the number is consumed; Reason says why.
	VerdictRefused
)

// Verdict is what the state did with one command. Repeating the command gives an equal one.
type Verdict struct {
	Code VerdictCode
	// Incarnation, of an Open, is the new incarnation; with VerdictFenced it is the present one.
	Incarnation uint64
	// Expected, with VerdictGap, is the number due next.
	Expected uint64
	// Receipts has one for each batch of an Append.
	Receipts []logbuffer.Receipt
	// Offset is where a Requeue or the last output of a Commit went; 0 if there was none.
	Offset uint64
	// SessionID is what OpenSession opened.
	SessionID string
	// Reason, with VerdictRefused, names cause and cure.
	Reason string
}

func refused(reason string) Verdict {
	return Verdict{Code: VerdictRefused, Reason: reason[:min(len(reason), maxReason)]}
}

// The encoding, in which proposers keep their verdicts: code(1) | incarnation | expected | offset | session | reason |
// n | receipt × n, with receipt = code(1) | first | last - first | admitted | duplicates | expected.
//
//nolint:unparam // like every other encoder here
func (v *Verdict) appendTo(dst []byte) []byte {
	dst = append(dst, byte(v.Code))
	dst = binary.AppendUvarint(dst, v.Incarnation)
	dst = binary.AppendUvarint(dst, v.Expected)
	dst = binary.AppendUvarint(dst, v.Offset)
	dst = appendString(dst, v.SessionID)
	dst = appendString(dst, v.Reason)
	dst = binary.AppendUvarint(dst, uint64(len(v.Receipts)))
	for i := range v.Receipts {
		r := &v.Receipts[i]
		dst = append(dst, byte(r.Code))
		dst = binary.AppendUvarint(dst, r.First)
		dst = binary.AppendUvarint(dst, r.Last-r.First)
		dst = binary.AppendUvarint(dst, uint64(r.Admitted))
		dst = binary.AppendUvarint(dst, uint64(r.Duplicates))
		dst = binary.AppendVarint(dst, r.Expected)
	}
	return dst
}

// decodeVerdict reads what Verdict.appendTo wrote; an error wraps logbuffer.ErrCorrupt.
func decodeVerdict(p []byte) (Verdict, error) {
	d := bodyReader{p: p}
	v := Verdict{
		Code:        VerdictCode(d.byte()),
		Incarnation: d.uvarint(),
		Expected:    d.uvarint(),
		Offset:      d.uvarint(),
		SessionID:   d.stringOf(maxName),
		Reason:      d.stringOf(maxReason),
	}
	const smallest = 6 // bytes of a receipt
	if n := d.count(smallest); n > 0 {
		v.Receipts = make([]logbuffer.Receipt, n)
	}
	for i := range v.Receipts {
		r := &v.Receipts[i]
		r.Code = logbuffer.Code(d.byte())
		r.First = d.uvarint()
		r.Last = r.First + d.uvarint()
		r.Admitted = d.int(math.MaxInt32)
		r.Duplicates = d.int(math.MaxInt32)
		r.Expected = d.varint()
	}
	if v.Code > VerdictRefused {
		d.fail("unknown verdict")
	}
	return v, d.end("verdict")
}
