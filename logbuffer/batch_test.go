package logbuffer_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

// fullBatch uses every field, and every kind of null and empty.
func fullBatch() logbuffer.Batch {
	return logbuffer.Batch{
		Source: "kafka/6f1e/3", Partition: -3, Sink: "enriched",
		Tuples: []logbuffer.Tuple{
			{Key: []byte("k"), Value: []byte("value"), Time: 1_700_000_000_123, Position: 41},
			{Key: nil, Value: nil, Time: 1_700_000_000_100, Position: 45},
			{Key: []byte{}, Value: []byte{}, Time: 0, Position: 46, Headers: []logbuffer.Header{
				{Key: "traceparent", Value: []byte("00-1")}, {Key: "", Value: nil}, {Key: "e", Value: []byte{}},
			}},
			{Time: math.MinInt64, Position: math.MaxInt64},
			{Time: math.MaxInt64, Position: math.MinInt64},
		},
	}
}

func TestBatchRoundTrip(t *testing.T) {
	t.Parallel()
	want := fullBatch()
	given := fullBatch()
	given.Rule, given.After, given.IDs = logbuffer.RuleRange, 40, make([]logbuffer.ID, 5)
	p := logbuffer.AppendBatch([]byte("before"), &given)
	p = append(p, "behind"...)
	e, rest, err := logbuffer.NextEncoded(p[len("before"):])
	if err != nil || string(rest) != "behind" {
		t.Fatalf("NextEncoded: %v, rest %q", err, rest)
	}
	must(t, e.Check())
	got, err := e.Decode()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("Decode: %v\n got %+v\nwant %+v", err, got, want)
	}
	if e.Count() != 5 || e.FirstPosition() != 41 || e.LastPosition() != math.MinInt64 || e.Source() != want.Source ||
		e.Sink() != want.Sink || e.Partition() != want.Partition {
		t.Errorf("peeks: %d %d %d %q %q %d",
			e.Count(), e.FirstPosition(), e.LastPosition(), e.Source(), e.Sink(), e.Partition())
	}
	var empty logbuffer.Batch
	got, err = logbuffer.Encoded(logbuffer.AppendBatch(nil, &empty)).Decode()
	if err != nil || !reflect.DeepEqual(got, empty) {
		t.Errorf("an empty batch: %+v, %v", got, err)
	}
}

// TestBatchDamage flips every bit and cuts at every length: nothing passes, nothing panics.
func TestBatchDamage(t *testing.T) {
	t.Parallel()
	for _, b := range []logbuffer.Batch{fullBatch(), sharingBatch()} {
		testDamage(t, logbuffer.AppendBatch(nil, &b))
	}
}

func testDamage(t *testing.T, whole logbuffer.Encoded) {
	t.Helper()
	for i := range len(whole) * 8 {
		e := slices.Clone(whole)
		e[i/8] ^= 1 << (i % 8)
		peek(e)
		if err := e.Check(); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("bit %d: %v", i, err)
		}
		if _, err := e.Decode(); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for n := range whole {
		peek(whole[:n])
		if err := whole[:n].Check(); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
		if _, _, err := logbuffer.NextEncoded(whole[:n]); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

func peek(e logbuffer.Encoded) {
	_, _, _, _, _, _ = e.Count(), e.FirstPosition(), e.LastPosition(), e.Source(), e.Sink(), e.Partition()
}

// resum makes the checksum of a tampered batch right.
func resum(e logbuffer.Encoded) logbuffer.Encoded {
	binary.LittleEndian.PutUint32(e, uint32(len(e)-8))
	binary.LittleEndian.PutUint32(e[4:], crc32.Checksum(e[8:], crc32.MakeTable(crc32.Castagnoli)))
	return e
}

func TestBatchStructure(t *testing.T) {
	t.Parallel()
	b := logbuffer.Batch{Source: "s", Tuples: []logbuffer.Tuple{{Value: []byte("v"), Position: 1}, {Position: 2}}}
	whole := logbuffer.Encoded(logbuffer.AppendBatch(nil, &b))
	tamper := func(i int, v byte) logbuffer.Encoded {
		e := slices.Clone(whole)
		e[i] = v
		return resum(e)
	}
	for name, e := range map[string]logbuffer.Encoded{
		"too many tuples":        tamper(9, 3),
		"too few tuples":         tamper(9, 1),
		"a huge count":           tamper(9, 0x7f),
		"another last":           tamper(11, 6),
		"a source too long":      tamper(12, 200),
		"bytes behind the end":   resum(append(slices.Clone(whole), 0)),
		"bytes missing":          resum(slices.Clone(whole[:len(whole)-1])),
		"a partition of 33 bits": resum(slices.Concat(whole[:14], binary.AppendVarint(nil, 1<<32), whole[15:])),
	} {
		if err := e.Check(); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("%s: Check gives %v", name, err)
		}
		if _, err := e.Decode(); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("%s: Decode gives %v", name, err)
		}
	}
	newer := tamper(8, 2)
	err := newer.Check()
	if !errors.Is(err, logbuffer.ErrVersion) || errors.Is(err, logbuffer.ErrCorrupt) ||
		!strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer version: %v", err)
	}
}

func TestNextEncodedLength(t *testing.T) {
	t.Parallel()
	for _, n := range []uint32{0, 2, logbuffer.MaxBatchBytes, math.MaxUint32} {
		p := binary.LittleEndian.AppendUint32(nil, n)
		p = append(p, 0, 0, 0, 0, 1)
		if _, _, err := logbuffer.NextEncoded(p); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Errorf("length %d: %v", n, err)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, b := range []logbuffer.Batch{fullBatch(), sharingBatch()} {
		testCut(t, b)
	}
}

func testCut(t *testing.T, b logbuffer.Batch) {
	t.Helper()
	e := logbuffer.Encoded(logbuffer.AppendBatch(nil, &b))
	for mask := range 1 << len(b.Tuples) {
		keep := make([]bool, len(b.Tuples))
		want := b
		want.Tuples = nil
		for i := range keep {
			if keep[i] = mask>>i&1 == 1; keep[i] {
				want.Tuples = append(want.Tuples, b.Tuples[i])
			}
		}
		got, err := logbuffer.Cut(e, keep)
		if err != nil {
			t.Fatal(err)
		}
		switch len(want.Tuples) {
		case 0:
			if got != nil {
				t.Errorf("nothing kept: %x", got)
			}
		case len(keep):
			if &got[0] != &e[0] {
				t.Error("all kept: it was copied")
			}
		default:
			if w := logbuffer.AppendBatch(nil, &want); !bytes.Equal(got, w) {
				t.Errorf("mask %b:\n got %x\nwant %x", mask, got, w)
			}
			if cap(got) > 2*len(got)+64 {
				t.Errorf("mask %b: %d bytes hold %d", mask, len(got), cap(got))
			}
		}
	}
	if _, err := logbuffer.Cut(e, make([]bool, len(b.Tuples)-1)); !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("a judgement missing: %v", err)
	}
	e = slices.Clone(e)
	e[20] ^= 1
	if _, err := logbuffer.Cut(e, make([]bool, len(b.Tuples))); !errors.Is(err, logbuffer.ErrCorrupt) {
		t.Errorf("a damaged batch: %v", err)
	}
}

func TestPeeksDoNotAllocate(t *testing.T) {
	b := fullBatch()
	e := logbuffer.Encoded(logbuffer.AppendBatch(nil, &b))
	if n := testing.AllocsPerRun(100, func() { _, _, _ = e.Count(), e.FirstPosition(), e.LastPosition() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzBatch(f *testing.F) {
	b := fullBatch()
	f.Add(logbuffer.AppendBatch(nil, &b)[8:])
	sharing := sharingBatch()
	f.Add(logbuffer.AppendBatch(nil, &sharing)[8:])
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		if e, rest, err := logbuffer.NextEncoded(body); err == nil && len(e)+len(rest) != len(body) {
			t.Fatalf("%d bytes became %d and %d", len(body), len(e), len(rest))
		}
		e := resum(append(make(logbuffer.Encoded, 8), body...))
		peek(e)
		got, err := e.Decode()
		if (err == nil) != (e.Check() == nil) {
			t.Fatalf("Decode: %v, Check: %v", err, e.Check())
		}
		if err != nil {
			return
		}
		again, err := logbuffer.Encoded(logbuffer.AppendBatch(nil, &got)).Decode()
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, again, got)
		}
	})
}
