package dedup_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"ftproxy/dedup"
)

// run makes random calls to a table and the model, with a restore now and then, and compares every answer.
func run(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	b := dedup.Bounds{
		IDs: 1 + r.IntN(30), IDAge: 1 + r.Int64N(50),
		Sessions: 1 + r.IntN(4), SessionAge: 1 + r.Int64N(80), Sources: 1 + r.IntN(6),
	}
	m := &model{bounds: b, sources: map[string]int64{}}
	table := dedup.NewTable(b)
	now := int64(1_700_000_000_000)
	for step := range 400 {
		now += r.Int64N(8)
		table.Expire(now)
		m.expire(now)
		switch r.IntN(12) {
		case 0:
			name := fmt.Sprint("session", r.IntN(6))
			if got, want := table.OpenSession(name, now), m.open(name, now); got != want {
				t.Fatalf("step %d: open %s: new is %v, want %v", step, name, got, want)
			}
		case 1:
			table = restored(t, b, table)
		default:
			batch, at := randomBatch(r, m)
			o := table.Judge(batch, now)
			code, expected, kept := m.judge(batch, at, now)
			compare(t, step, batch, o, code, expected, kept)
		}
		compareUse(t, step, table, m)
	}
}

func compare(t *testing.T, step int, b dedup.Batch, o dedup.Outcome, code dedup.Code, expected int64, kept []bool) {
	t.Helper()
	if o.Code != code || o.Expected != expected {
		t.Fatalf("step %d: %+v: code %d expecting %d, want %d expecting %d", step, b, o.Code, o.Expected, code, expected)
	}
	if code != dedup.Done {
		return
	}
	got := o.Keep
	if got == nil {
		got = slices.Repeat([]bool{o.Duplicates == 0}, b.Count)
	}
	dropped := 0
	for _, k := range kept {
		if !k {
			dropped++
		}
	}
	if !slices.Equal(got, kept) || dropped != o.Duplicates {
		t.Fatalf("step %d: %+v: kept %v with %d duplicates, want %v with %d", step, b, got, o.Duplicates, kept, dropped)
	}
}

func compareUse(t *testing.T, step int, table *dedup.Table, m *model) {
	t.Helper()
	want := dedup.Use{IDs: len(m.ids), Sessions: len(m.sessions), Sources: len(m.sources)}
	if got := table.Use(); got != want {
		t.Fatalf("step %d: use %+v, want %+v", step, got, want)
	}
	for name, last := range m.sources {
		if got, known := table.Position(name); !known || got != last {
			t.Fatalf("step %d: %s is at %d (known %v), want %d", step, name, got, known, last)
		}
	}
	for _, s := range m.sessions {
		if got, known := table.Position(s.name); !known || got != s.last {
			t.Fatalf("step %d: %s is at %d (known %v), want %d", step, s.name, got, known, s.last)
		}
	}
}

// randomBatch makes a batch that is new, repeated, overlapping or gapped, near where its source stands.
func randomBatch(r *rand.Rand, m *model) (b dedup.Batch, at []int64) {
	b = dedup.Batch{Source: fmt.Sprint("source", r.IntN(8)), Rule: dedup.Rule(r.IntN(5)), Count: 1 + r.IntN(6)}
	last := m.sources[b.Source]
	if b.Rule == dedup.Session {
		b.Source = fmt.Sprint("session", r.IntN(6))
		if i := slices.IndexFunc(m.sessions, func(s modelSession) bool { return s.name == b.Source }); i >= 0 {
			last = m.sessions[i].last
		}
	}
	next := max(0, last+r.Int64N(8)-4)
	if r.IntN(2) == 0 {
		next = last
	}
	b.After = next
	for range b.Count {
		next++
		if b.Rule == dedup.Sparse || b.Rule == dedup.Range || r.IntN(20) == 0 {
			next += r.Int64N(3)
		}
		at = append(at, next)
	}
	if b.Rule == dedup.Sparse && r.IntN(10) == 0 {
		at[0] = min(at[0], 0) // Kafka counts from 0
	}
	b.First, b.Last = at[0], at[len(at)-1]
	b.Positions = func() []int64 { return at }
	if r.IntN(2) == 0 {
		b.IDs = make([]dedup.ID, b.Count)
		for i := range b.IDs {
			b.IDs[i][3] = byte(r.IntN(40)) // 0 is none
		}
	}
	return b, at
}

// restored returns the table read back from its encoding, which must be the same again.
func restored(t *testing.T, b dedup.Bounds, table *dedup.Table) *dedup.Table {
	t.Helper()
	p := table.Append(nil)
	again, rest, err := dedup.Restore(b, append(slices.Clone(p), "rest"...))
	if err != nil || string(rest) != "rest" {
		t.Fatalf("restore: %v, rest %q", err, rest)
	}
	if q := again.Append(nil); !bytes.Equal(p, q) {
		t.Fatalf("a restored table of %d bytes encodes to other %d bytes", len(p), len(q))
	}
	return again
}

func TestTableAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		run(t, seed)
	}
}

func TestTwoTablesEncodeAlike(t *testing.T) {
	t.Parallel()
	encode := func() []byte {
		r := rand.New(rand.NewPCG(7, 7))
		m := &model{sources: map[string]int64{}}
		table := dedup.NewTable(dedup.DefaultBounds())
		for i := range int64(2000) {
			b, _ := randomBatch(r, m)
			table.OpenSession(fmt.Sprint("session", i%6), i)
			table.Judge(b, i)
		}
		return table.Append(nil)
	}
	if !bytes.Equal(encode(), encode()) {
		t.Fatal("two tables that saw the same encode differently")
	}
}

func positions(source string, rule dedup.Rule, at ...int64) dedup.Batch {
	return dedup.Batch{
		Source: source, Rule: rule, First: at[0], Last: at[len(at)-1], Count: len(at),
		Positions: func() []int64 { return at },
	}
}

func withIDs(b dedup.Batch, ids ...byte) dedup.Batch {
	b.IDs = make([]dedup.ID, len(ids))
	for i, id := range ids {
		b.IDs[i][0] = id
	}
	return b
}

func TestFirstKafkaOffsetIsZero(t *testing.T) {
	t.Parallel()
	table := dedup.NewTable(dedup.DefaultBounds())
	if o := table.Judge(positions("kafka", dedup.Sparse, 0), 1); o.Duplicates != 0 {
		t.Fatal("offset 0 of a new source was taken for a duplicate")
	}
	if o := table.Judge(positions("kafka", dedup.Sparse, 0, 7), 1); !slices.Equal(o.Keep, []bool{false, true}) {
		t.Fatalf("offsets 0 and 7 after 0: %+v", o)
	}
}

func TestIDsAndPositionsTogether(t *testing.T) {
	t.Parallel()
	table := dedup.NewTable(dedup.DefaultBounds())
	table.Judge(withIDs(positions("s", dedup.Dense, 1, 2), 'a', 'b'), 1)
	// A duplicate id still advances its source's position.
	if o := table.Judge(withIDs(positions("s", dedup.Dense, 3), 'a'), 1); o.Duplicates != 1 {
		t.Fatalf("known id: %+v", o)
	}
	if last, _ := table.Position("s"); last != 3 {
		t.Fatalf("position is %d after a duplicate id, want 3", last)
	}
	// A refused position marks no id, and neither does a duplicate one.
	if o := table.Judge(withIDs(positions("s", dedup.Dense, 9), 'x'), 1); o.Code != dedup.Gap || o.Expected != 4 {
		t.Fatalf("gap: %+v", o)
	}
	table.Judge(withIDs(positions("s", dedup.Dense, 2), 'y'), 1)
	if o := table.Judge(withIDs(positions("t", dedup.None, 0, 0), 'x', 'y'), 1); o.Duplicates != 0 {
		t.Fatalf("ids of refused positions were marked: %+v", o)
	}
	// Equal ids in one batch.
	o := table.Judge(withIDs(positions("t", dedup.None, 0, 0, 0), 'p', 'q', 'p'), 1)
	if !slices.Equal(o.Keep, []bool{true, true, false}) {
		t.Fatalf("equal ids in a batch: %+v", o)
	}
}

func TestIDWindowIsByLastUse(t *testing.T) {
	t.Parallel()
	b := dedup.DefaultBounds()
	b.IDs, b.IDAge = 3, 100
	table := dedup.NewTable(b)
	known := func(id byte, now int64) bool {
		table.Expire(now)
		return table.Judge(withIDs(positions("", dedup.None, 0), id), now).Duplicates == 1
	}
	for _, step := range []struct {
		id   byte
		now  int64
		want bool
	}{
		{'a', 0, false}, {'a', 90, true}, {'a', 190, true}, // a repeat makes it young
		{'a', 291, false},                                                         // not seen for more than its age
		{'b', 292, false}, {'c', 292, false}, {'a', 292, true}, {'d', 292, false}, // b is the oldest of four
		{'c', 292, true}, {'a', 292, true}, {'d', 292, true}, {'b', 292, false},
	} {
		if got := known(step.id, step.now); got != step.want {
			t.Fatalf("id %c at %d: known is %v, want %v", step.id, step.now, got, step.want)
		}
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	b := dedup.DefaultBounds()
	b.Sessions, b.SessionAge = 2, 100
	table := dedup.NewTable(b)
	code := func(name string, at, now int64) dedup.Code {
		table.Expire(now)
		return table.Judge(positions(name, dedup.Session, at), now).Code
	}
	if got := code("a", 1, 0); got != dedup.Expired {
		t.Fatalf("a session that was never opened: code %d", got)
	}
	table.OpenSession("a", 0)
	table.OpenSession("b", 0)
	if got := code("a", 1, 50); got != dedup.Done {
		t.Fatalf("open session: code %d", got)
	}
	table.OpenSession("c", 60) // b was not used for the longest time
	if a, b := code("a", 2, 60), code("b", 1, 60); a != dedup.Done || b != dedup.Expired {
		t.Fatalf("codes %d and %d, want the longest unused to be gone", a, b)
	}
	if got := code("a", 3, 160); got != dedup.Done {
		t.Fatalf("session at its age: code %d", got)
	}
	if got := code("a", 4, 261); got != dedup.Expired {
		t.Fatalf("session beyond its age: code %d", got)
	}
}

func TestSourcesAreBounded(t *testing.T) {
	t.Parallel()
	b := dedup.DefaultBounds()
	b.Sources = 2
	table := dedup.NewTable(b)
	for _, step := range []struct {
		source string
		want   dedup.Code
	}{{"a", dedup.Done}, {"b", dedup.Done}, {"c", dedup.Full}, {"a", dedup.Done}} {
		if o := table.Judge(positions(step.source, dedup.Sparse, 1), 1); o.Code != step.want {
			t.Fatalf("source %s: code %d, want %d", step.source, o.Code, step.want)
		}
	}
	if o := table.Judge(withIDs(positions("c", dedup.Sparse, 1), 'x'), 1); o.Code != dedup.Full || table.Use().IDs != 0 {
		t.Fatal("a batch that was refused for its source marked an id")
	}
	b.Sources = 3
	table.SetBounds(b, 1)
	if o := table.Judge(positions("c", dedup.Sparse, 1), 1); o.Code != dedup.Done {
		t.Fatalf("with a raised bound: code %d", o.Code)
	}
}

func TestWindowMemory(t *testing.T) {
	const ids, most = 200_000, 20 << 20
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	table := dedup.NewTable(dedup.DefaultBounds())
	r := rand.New(rand.NewPCG(1, 1))
	b := positions("", dedup.None, 0)
	b.IDs = make([]dedup.ID, 1)
	for i := range int64(3 * ids) {
		for j := range b.IDs[0] {
			b.IDs[0][j] = byte(r.Uint32())
		}
		table.Judge(b, i/1000)
	}
	used := heap() - before
	t.Logf("%d ids take %.1f MiB, their encoding %.1f MiB", table.Use().IDs, float64(used)/(1<<20),
		float64(len(table.Append(nil)))/(1<<20))
	if table.Use().IDs != ids || used > most {
		t.Fatalf("%d ids in %d bytes, want %d in at most %d", table.Use().IDs, used, ids, most)
	}
}

func TestBoundsCheck(t *testing.T) {
	t.Parallel()
	if err := dedup.DefaultBounds().Check(); err != nil {
		t.Fatal(err)
	}
	for i, change := range []func(*dedup.Bounds){
		func(b *dedup.Bounds) { b.IDs = 0 },
		func(b *dedup.Bounds) { b.IDs = 1 << 31 },
		func(b *dedup.Bounds) { b.IDAge = 0 },
		func(b *dedup.Bounds) { b.Sessions = -1 },
		func(b *dedup.Bounds) { b.SessionAge = 1 << 60 },
		func(b *dedup.Bounds) { b.Sources = 0 },
	} {
		b := dedup.DefaultBounds()
		if change(&b); b.Check() == nil {
			t.Errorf("case %d: %+v passes", i, b)
		}
	}
}

func FuzzRestore(f *testing.F) {
	table := dedup.NewTable(dedup.DefaultBounds())
	f.Add(table.Append(nil))
	table.OpenSession("session", 5)
	table.Judge(positions("session", dedup.Session, 1), 6)
	table.Judge(withIDs(positions("a", dedup.Sparse, 3, 9), 'x', 'y'), 7)
	table.Judge(positions("b", dedup.Range, 4), 8)
	f.Add(table.Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		got, rest, err := dedup.Restore(dedup.DefaultBounds(), p)
		if err != nil {
			return
		}
		// What decodes encodes to something that decodes to the same, and works.
		q := got.Append(nil)
		again, _, err := dedup.Restore(dedup.DefaultBounds(), q)
		if err != nil || !bytes.Equal(q, again.Append(nil)) || len(rest) > len(p) {
			t.Fatalf("%x decodes, but not again: %v", p, err)
		}
		again.Expire(1 << 40)
		again.Judge(withIDs(positions("a", dedup.Dense, 1), 'x'), 1<<40)
	})
}

func BenchmarkJudgeIDs(b *testing.B) {
	table := dedup.NewTable(dedup.DefaultBounds())
	r := rand.New(rand.NewPCG(1, 1))
	batch := positions("", dedup.None, make([]int64, 100)...)
	batch.IDs = make([]dedup.ID, 100)
	for b.Loop() {
		for i := range batch.IDs {
			v := r.Uint64()
			for j := range 8 {
				batch.IDs[i][j] = byte(v >> (8 * j))
			}
		}
		table.Judge(batch, 1)
	}
}
