package proxytest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/proxytest"
)

func batch(rule logbuffer.Rule, after int64, positions ...int64) logbuffer.Batch {
	b := logbuffer.Batch{Source: "s", Rule: rule, After: after}
	for _, p := range positions {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Position: p})
	}
	return b
}

func TestRules(t *testing.T) {
	type step struct {
		batch logbuffer.Batch
		want  logbuffer.Receipt
	}
	done := func(first, last uint64, admitted, duplicates int) logbuffer.Receipt {
		return logbuffer.Receipt{First: first, Last: last, Admitted: admitted, Duplicates: duplicates}
	}
	gap := func(expected int64) logbuffer.Receipt {
		return logbuffer.Receipt{Code: logbuffer.CodeGap, Expected: expected}
	}
	for name, steps := range map[string][]step{
		"none": {
			{batch(logbuffer.RuleNone, 0, 1, 1), done(1, 2, 2, 0)}, {batch(logbuffer.RuleNone, 0, 1), done(3, 3, 1, 0)},
		},
		"sparse": {
			{batch(logbuffer.RuleSparse, 0, 0, 7), done(1, 2, 2, 0)}, {batch(logbuffer.RuleSparse, 0, 7, 9), done(3, 3, 1, 1)},
		},
		"dense": {
			{batch(logbuffer.RuleDense, 0, 2), gap(1)},
			{batch(logbuffer.RuleDense, 0, 1, 2), done(1, 2, 2, 0)},
			{batch(logbuffer.RuleDense, 0, 2, 3), done(3, 3, 1, 1)},
			{batch(logbuffer.RuleDense, 0, 5), gap(4)},
		},
		"range": {
			{batch(logbuffer.RuleRange, 5, 6), gap(0)},
			{batch(logbuffer.RuleRange, 0, 3, 9), done(1, 2, 2, 0)},
			{batch(logbuffer.RuleRange, 3, 9, 12), done(3, 3, 1, 1)},
			{batch(logbuffer.RuleRange, 12, 20), done(4, 4, 1, 0)},
			{batch(logbuffer.RuleRange, 21, 22), gap(20)},
		},
		"session": {{batch(logbuffer.RuleSession, 0, 1), logbuffer.Receipt{Code: logbuffer.CodeExpired}}},
	} {
		log := proxytest.NewLog("l")
		for i, s := range steps {
			got, err := log.Append(t.Context(), s.batch)
			if err != nil || got[0] != s.want {
				t.Errorf("%s, step %d: %+v, %v, want %+v", name, i, got, err, s.want)
			}
		}
	}
}

func TestIDs(t *testing.T) {
	log := proxytest.NewLog("l")
	b := batch(logbuffer.RuleDense, 0, 1, 2, 3)
	b.IDs = []logbuffer.ID{{1}, {1}, {}}
	if got, err := log.Append(t.Context(), b); err != nil || got[0].Admitted != 2 || got[0].Duplicates != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if last, known, err := log.Position(t.Context(), "s"); last != 3 || !known || err != nil {
		t.Errorf("a duplicate id does not advance the position: %d", last)
	}
}

func TestOutletReadsItsOwn(t *testing.T) {
	log := proxytest.NewLog("l")
	out := log.Outlet("r", "mine")
	mine := logbuffer.Batch{Sink: "mine", Tuples: make([]logbuffer.Tuple, 2)}
	other := logbuffer.Batch{Sink: "other", Tuples: make([]logbuffer.Tuple, 3)}
	log.Feed(other, mine, other, logbuffer.Batch{Tuples: make([]logbuffer.Tuple, 1)})
	got, err := out.Read(t.Context(), 0, 1<<20)
	if err != nil || len(got) != 2 || got[0].First != 4 || got[0].Last != 5 || got[1].First != 9 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := out.Ack(t.Context(), logbuffer.Ack{UpTo: 10}); !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("ack beyond the end: %v", err)
	}
	if err := out.Ack(t.Context(), logbuffer.Ack{UpTo: 5}); err != nil {
		t.Error(err)
	}
	log.Trim(5)
	if _, err := out.Read(t.Context(), 4, 1); !errors.Is(err, logbuffer.ErrTrimmed) {
		t.Errorf("read of what is trimmed: %v", err)
	}
	if hash, ok, err := out.HashAt(t.Context(), 5); !ok || hash == 0 || err != nil {
		t.Errorf("hash %d, %v, %v", hash, ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := out.Read(ctx, 9, 1); !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Errorf("read at the end: %v", err)
	}
	out.EndTenure()
	if _, err := out.Cursor(t.Context()); !errors.Is(err, logbuffer.ErrUnavailable) {
		t.Errorf("cursor after the tenure: %v", err)
	}
}
