package replica

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

// A few new tuples among many repeated ones must not keep the whole entry in memory: the tail counts their bytes only.
func checkSmallBatchesAreCopied(t *testing.T, m mutant) (copied bool) {
	t.Helper()
	r := grownRig(t, 1<<20, 1<<20)
	r.s.mutant = m
	lane, _ := r.s.Proposer("lane/1")
	known := rigBatch("k", logbuffer.RuleSparse, 5)
	known.Tuples[0].Value = bytes.Repeat([]byte("x"), 10_000)
	body := must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{known, rigBatch("k", logbuffer.RuleSparse, 6)}))
	e := r.entry(command{
		Kind: kindAppend, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1, Body: body,
	})
	v := r.s.Apply(e.index, e.term, e.data)[0]
	if len(v.Receipts) != 2 || v.Receipts[0].Duplicates != 1 || v.Receipts[1].Admitted != 1 {
		t.Fatalf("%+v", v)
	}
	clear(e.data)
	stored, err := r.s.Locate(bufferIn, "deliver", v.Receipts[1].First-1, 1<<20).Load()
	if err != nil || len(stored) != 1 {
		t.Fatal(stored, err)
	}
	return stored[0].Data.Check() == nil
}

func TestSmallBatchesAreCopied(t *testing.T) {
	t.Parallel()
	if !checkSmallBatchesAreCopied(t, mutant{}) {
		t.Error("a small batch keeps its large entry in memory")
	}
}

func TestMutantPinnedEntry(t *testing.T) {
	t.Parallel()
	if checkSmallBatchesAreCopied(t, mutant{pinEntries: true}) {
		t.Error("the batch is copied with the protection off: the check proves nothing")
	}
}

// What is wrong with this replica's disk is no verdict: the others apply the entry.
func TestDamagedFileIsNoVerdict(t *testing.T) {
	t.Parallel()
	r := newStateRig(t, 1<<20, 200)
	var reported error
	r.folder.OnDamage(func(err error) { reported = err })
	tenure := command{Kind: kindOpen, Proposer: tenureProposer, Body: appendOpenBody(nil, 0, rigNonce(1))}
	tenure.Incarnation = r.one(tenure).Incarnation
	do := func(k kind, body []byte) Verdict {
		tenure.Kind, tenure.Body = k, body
		tenure.Number++
		return r.one(tenure)
	}
	settings := DefaultSettings()
	settings.In = []logbuffer.Reader{{Name: "a"}}
	do(kindSettings, settings.appendTo(nil))
	for at := range int64(20) {
		b := rigBatch("k", logbuffer.RuleSparse, at)
		do(kindAppend, must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{b})))
	}
	name := r.s.in.SegmentNames()[0]
	p := must[[]byte](t)(r.root.ReadFile(name))
	p[60] ^= 1
	if err := r.root.WriteFile(name, p, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		err, ok := recover().(error)
		if !ok || !errors.Is(err, logbuffer.ErrCorrupt) || !errors.Is(err, reported) || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, reported %v", err, reported)
		}
	}()
	v := do(kindAck, appendAckBody(nil, logbuffer.Ack{Reader: "a", UpTo: 10}))
	t.Errorf("the damage became a verdict: %+v", v)
}

// A letter whose sink its reader lost since must not reach the reader that has that sink now.
func TestRequeueOfALostSink(t *testing.T) {
	t.Parallel()
	r := newStateRig(t, 1<<20, 1<<20)
	tenure := command{Proposer: tenureProposer, Incarnation: r.one(command{
		Kind: kindOpen, Proposer: tenureProposer, Body: appendOpenBody(nil, 0, rigNonce(1)),
	}).Incarnation}
	do := func(k kind, body []byte) Verdict {
		t.Helper()
		tenure.Kind, tenure.Body = k, body
		tenure.Number++
		return r.one(tenure)
	}
	done := func(v Verdict) {
		t.Helper()
		if v.Code != VerdictDone {
			t.Fatalf("%+v", v)
		}
	}
	settings := DefaultSettings()
	settings.In = []logbuffer.Reader{{Name: "a", Sinks: []string{"x", "y"}}, {Name: "b", Sinks: []string{"z"}}}
	done(do(kindSettings, settings.appendTo(nil)))
	b := rigBatch("k", logbuffer.RuleSparse, 1)
	b.Sink = "y"
	done(do(kindAppend, must[[]byte](t)(appendAppendBody(nil, []logbuffer.Batch{b}))))
	letter := logbuffer.Letter{From: 1, Reason: "no", Source: "k", Sink: "y", Tuple: b.Tuples[0]}
	done(do(kindAck, appendAckBody(nil, logbuffer.Ack{Reader: "a", UpTo: 1, Dead: []logbuffer.Letter{letter}})))
	settings.In = []logbuffer.Reader{{Name: "a", Sinks: []string{"x"}}, {Name: "b", Sinks: []string{"z", "y"}}}
	done(do(kindSettings, settings.appendTo(nil)))
	v := do(kindRequeue, appendOffsetBody(nil, 1))
	if v.Code != VerdictRefused || !strings.Contains(v.Reason, `sink "y"`) {
		t.Fatalf("%+v", v)
	}
	if r.s.LetterCount() != 1 || r.s.Cursors(bufferIn).End != 1 {
		t.Fatal("a refused requeue changed something")
	}
	done(do(kindDrop, appendOffsetBody(nil, 1)))
}

// An output without tuples would break every replica at every replay.
func TestBatchWithoutTuplesIsRefused(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 1<<20, 1<<20)
	lane, _ := r.s.Proposer("lane/1")
	body := appendAckBody(nil, logbuffer.Ack{Reader: "deliver", UpTo: 1})
	body = logbuffer.AppendBatch(append(body, 1), &logbuffer.Batch{Sink: "out"})
	v := r.one(command{
		Kind: kindCommit, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1, Body: body,
	})
	if v.Code != VerdictRefused || !strings.Contains(v.Reason, "without tuples") {
		t.Fatalf("%+v", v)
	}
}

// When all had to stop, a human may go on with one node alone. Its judgement must not stop that one again.
func TestVoterAloneIsNotJudged(t *testing.T) {
	t.Parallel()
	r := grownRig(t, 1<<20, 1<<20)
	lane, _ := r.s.Proposer("lane/1")
	for i, server := range []string{"1", "2"} {
		r.one(command{
			Kind: kindHash, Proposer: "lane/1", Incarnation: lane.Incarnation, Number: lane.Last + 1 + uint64(i),
			Body: appendHashBody(nil, server, 9, uint64(i)),
		})
	}
	if judged, _ := r.s.Judged(); len(judged) != 2 {
		t.Fatalf("judged %v", judged)
	}
	settle := func(voters ...string) {
		t.Helper()
		settings := r.s.Settings()
		settings.Members, settings.Voters = voters, voters
		tenure, _ := r.s.Proposer(tenureProposer)
		v := r.one(command{
			Kind: kindSettings, Proposer: tenureProposer, Incarnation: tenure.Incarnation, Number: tenure.Last + 1,
			Body: settings.appendTo(nil),
		})
		if v.Code != VerdictDone {
			t.Fatalf("%+v", v)
		}
	}
	settle("1", "2")
	if judged, _ := r.s.Judged(); len(judged) != 2 {
		t.Fatalf("two voters, judged %v", judged)
	}
	settle("1")
	if judged, reason := r.s.Judged(); len(judged) != 0 || reason != "" {
		t.Fatalf("one voter, judged %v: %s", judged, reason)
	}
}
