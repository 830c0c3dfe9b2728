package checker_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ftproxy/integration/checker"
)

// tuple is one sighting in a made-up run.
type tuple struct {
	stream string
	n      int64
}

const streams, perStream = 3, 400

// run returns a faultless run: streams interleaved at random, each in order.
func run(random *rand.Rand) []tuple {
	var out []tuple
	next := make([]int64, streams)
	for len(out) < streams*perStream {
		i := random.IntN(streams)
		if next[i] == perStream {
			continue
		}
		next[i]++
		out = append(out, tuple{fmt.Sprintf("s%d", i), next[i]})
	}
	return out
}

func judge(seen []tuple, damage func(i int, payload []byte) []byte) checker.Verdict {
	c := checker.New()
	for i := range streams {
		c.Sent(fmt.Sprintf("s%d", i), perStream)
	}
	for i, t := range seen {
		payload := checker.AppendPayload(nil, t.stream, t.n, 90)
		if damage != nil {
			payload = damage(i, payload)
		}
		c.Seen(payload)
	}
	return c.Verdict()
}

func TestFaultlessRunIsClean(t *testing.T) {
	for seed := range uint64(20) {
		v := judge(run(rand.New(rand.NewPCG(seed, 1))), nil)
		if !v.Clean() || v.Sent != streams*perStream || v.Delivered != v.Sent || len(v.Notes) != 0 {
			t.Fatalf("seed %d: %v %q", seed, v, v.Notes)
		}
	}
}

// TestSeededFaultsAreFound puts known numbers of each fault into faultless runs: the checker must count exactly these.
func TestSeededFaultsAreFound(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		seen := run(random)

		lost := random.IntN(5)
		for range lost {
			i := random.IntN(len(seen))
			seen = slices.Delete(seen, i, i+1)
		}
		duplicated := random.IntN(5)
		for range duplicated {
			i := random.IntN(len(seen))
			seen = append(seen, seen[i])
		}
		torn := random.IntN(5)
		for i := range torn {
			at := random.IntN(len(seen))
			seen = slices.Insert(seen, at, tuple{fmt.Sprintf("foreign%d", i), 1})
		}

		v := judge(seen, nil)
		if v.Lost != int64(lost) || v.Duplicated != int64(duplicated) || v.Torn != int64(torn) || v.Reordered != 0 {
			t.Fatalf("seed %d: planted lost %d, duplicated %d, torn %d; found %v", seed, lost, duplicated, torn, v)
		}
		if v.Clean() != (lost+duplicated+torn == 0) || !v.Clean() && len(v.Notes) == 0 {
			t.Fatalf("seed %d: %v, notes %q", seed, v, v.Notes)
		}
	}
}

func TestReorderingIsFoundWithinAStreamOnly(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 3))
		seen := run(random)
		// Moving one tuple to the end makes it come after every later tuple of its stream: one inversion, unless it
		// was the last anyway.
		i := random.IntN(len(seen))
		moved := seen[i]
		seen = append(slices.Delete(seen, i, i+1), moved)
		want := int64(1)
		if moved.n == perStream {
			want = 0
		}
		if v := judge(seen, nil); v.Reordered != want || v.Lost+v.Duplicated+v.Torn != 0 {
			t.Fatalf("seed %d: moved %v, found %v", seed, moved, v)
		}
	}
}

func TestDamageIsTorn(t *testing.T) {
	damages := map[string]func(p []byte) []byte{
		"cut":       func(p []byte) []byte { return p[:len(p)-1] },
		"flipped":   func(p []byte) []byte { p[len(p)-5] ^= 1; return p },
		"empty":     func([]byte) []byte { return nil },
		"two":       func(p []byte) []byte { return append(p, p...) },
		"other id":  func(p []byte) []byte { return bytes.Replace(p, []byte("-"), []byte("-9"), 1) },
		"no number": func(p []byte) []byte { return bytes.Replace(p, []byte("-"), []byte("-x"), 1) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			v := judge(run(rand.New(rand.NewPCG(7, 7))), func(i int, p []byte) []byte {
				if i == 500 {
					return damage(p)
				}
				return p
			})
			if v.Torn != 1 || v.Lost != 1 || v.Clean() {
				t.Fatalf("%v %q", v, v.Notes)
			}
		})
	}
}

func TestNumbersBelowOneAreTorn(t *testing.T) {
	c := checker.New()
	c.Seen(checker.AppendPayload(nil, "s", 0, 80))
	c.Seen(checker.AppendPayload(nil, "s", -3, 80))
	if v := c.Verdict(); v.Torn != 2 || v.Delivered != 0 {
		t.Fatal(v)
	}
}

func TestPayloadHasItsSizeAndReadsBack(t *testing.T) {
	for _, size := range []int{0, 60, 100, 200, 1 << 10} {
		p := checker.AppendPayload([]byte("kept "), "s1", 123_456, size)[len("kept "):]
		if size >= 60 && len(p) != size {
			t.Fatalf("wanted %d bytes, got %d: %s", size, len(p), p)
		}
		stream, n, err := checker.ParsePayload(p)
		if err != nil || stream != "s1" || n != 123_456 {
			t.Fatalf("%s: %s %d %v", p, stream, n, err)
		}
	}
}

func TestTrail(t *testing.T) {
	type record struct {
		partition     int32
		lineage       string
		offset, index uint64
	}
	tests := map[string]struct {
		records []record
		faults  int
	}{
		"clean":           {[]record{{0, "a", 1, 0}, {1, "a", 2, 0}, {0, "a", 3, 1}, {1, "a", 4, 2}, {0, "a", 5, 0}}, 0},
		"twice":           {[]record{{0, "a", 1, 0}, {1, "a", 1, 0}}, 1},
		"out of order":    {[]record{{0, "a", 2, 0}, {0, "a", 1, 0}}, 1},
		"missing":         {[]record{{0, "a", 1, 0}, {0, "a", 3, 0}}, 1},
		"half a batch":    {[]record{{0, "a", 1, 0}, {0, "a", 2, 1}, {0, "a", 4, 3}}, 2},
		"without headers": {[]record{{0, "", 0, 0}, {0, "a", 1, 0}}, 1},
		"two lives":       {[]record{{0, "a", 1, 0}, {0, "b", 1, 0}, {0, "b", 2, 1}}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			trail := checker.NewTrail()
			for _, r := range test.records {
				trail.Record(r.partition, r.lineage, r.offset, r.index)
			}
			if found, problems := trail.Problems(); found != test.faults || (found > 0) != (len(problems) > 0) {
				t.Fatalf("wanted %d faults, found %d: %q", test.faults, found, problems)
			}
		})
	}
}

func FuzzParsePayload(f *testing.F) {
	f.Add(checker.AppendPayload(nil, "s1", 17, 100))
	f.Add([]byte(`{"id":"s-1","sum":"`))
	f.Fuzz(func(t *testing.T, p []byte) {
		stream, n, err := checker.ParsePayload(p)
		if err == nil && !bytes.Equal(p, checker.AppendPayload(nil, stream, n, len(p))) {
			t.Fatalf("accepted %q as %s", p, checker.ID(stream, n))
		}
	})
}
