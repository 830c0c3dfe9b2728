package replica

import (
	"fmt"
	"testing"

	"ftproxy/logbuffer"
)

// BenchmarkApply applies entries of 512 KiB whose tuples are acknowledged at once.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, ids := range []bool{false, true} {
			b.Run(fmt.Sprintf("tuple=%d/ids=%v", size, ids), func(b *testing.B) { benchmarkApply(b, size, ids) })
		}
	}
}

func benchmarkApply(b *testing.B, size int, ids bool) {
	b.Helper()
	r := newStateRig(b, 64<<20, 32<<20)
	settings := DefaultSettings()
	settings.In = []logbuffer.Reader{{Name: "sink"}}
	lane := command{Kind: kindOpen, Proposer: tenureProposer, Body: appendOpenBody(nil, 0, rigNonce(1))}
	lane.Incarnation = r.one(lane).Incarnation
	lane.Kind, lane.Body, lane.Number = kindSettings, settings.appendTo(nil), 1
	r.one(lane)
	batch := logbuffer.Batch{Source: "s", Rule: logbuffer.RuleSparse}
	for range (512 << 10) / size {
		batch.Tuples = append(batch.Tuples, logbuffer.Tuple{Value: make([]byte, size)})
	}
	if ids {
		batch.IDs = make([]logbuffer.ID, len(batch.Tuples))
	}
	position := int64(0)
	b.SetBytes(int64(size * len(batch.Tuples)))
	for b.Loop() {
		b.StopTimer()
		for i := range batch.Tuples {
			position++
			batch.Tuples[i].Position = position
			if ids {
				batch.IDs[i] = logbuffer.ID(rigNonce(uint64(position)))
			}
		}
		lane.Number++
		ack := lane
		ack.Kind, ack.Number = kindAck, lane.Number+1
		ack.Body = appendAckBody(nil, logbuffer.Ack{Reader: "sink", UpTo: uint64(position)})
		lane.Kind, lane.Body = kindAppend, must[[]byte](b)(appendAppendBody(nil, []logbuffer.Batch{batch}))
		e := r.entry(lane, ack)
		lane.Number++
		r.log = r.log[len(r.log)-1:]
		b.StartTimer()
		v := r.s.Apply(e.index, e.term, e.data)
		if v[0].Receipts[0].Admitted != len(batch.Tuples) || v[1].Code != VerdictDone {
			b.Fatal(v)
		}
	}
}
