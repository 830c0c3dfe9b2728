package dedup

import (
	"fmt"
	"math"
)

// Bounds limits what a Table remembers. Every field must be above zero.
type Bounds struct {
	// IDs and IDAge bound the id window: ids, and milliseconds since an id was last seen.
	IDs   int
	IDAge int64
	// Sessions and SessionAge bound the sessions: sessions, and milliseconds since one was last used.
	Sessions   int
	SessionAge int64
	// Sources bounds the sources that are no sessions and have positions.
	Sources int
}

// DefaultBounds returns 200,000 ids or 1 h, 100,000 sessions or 24 h, and 100,000 sources.
func DefaultBounds() Bounds {
	const hour = 60 * 60 * 1000
	return Bounds{IDs: 200_000, IDAge: hour, Sessions: 100_000, SessionAge: 24 * hour, Sources: 100_000}
}

// Check returns an error that names the first field that is out of range.
func (b Bounds) Check() error {
	const most = 1 << 30
	for _, f := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"ids", int64(b.IDs), most},
		{"id age in ms", b.IDAge, 1 << 50},
		{"sessions", int64(b.Sessions), most},
		{"session age in ms", b.SessionAge, 1 << 50},
		{"sources", int64(b.Sources), most},
	} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("dedup bound %q is %d, must be 1 to %d", f.name, f.value, f.most)
		}
	}
	return nil
}

// Use is how much of its Bounds a Table uses at present.
type Use struct{ IDs, Sessions, Sources int }

// Code is a Table's verdict on a batch.
type Code uint8

const (
	// Done means that every tuple is new or a duplicate.
	Done Code = iota
	// Gap means that positions are missing before or in the batch.
	Gap
	// Expired means that the session is unknown.
	Expired
	// Full means that the source is new and there is no room for one more.
	Full
)

// Batch is what a Table has to know of a batch. Positions ascend strictly.
type Batch struct {
	Source string
	Rule   Rule
	// After is the position that the batch follows on, for Range.
	After int64
	// First and Last are the positions of the first and the last of Count tuples.
	First, Last int64
	Count       int
	// Positions returns all positions. It is called only if the batch is neither all new nor all known.
	Positions func() []int64
	// IDs holds an id a tuple, or nothing.
	IDs []ID
}

// Outcome is what became of a batch.
type Outcome struct {
	Code Code
	// Expected, with Gap, is the position due next (Range: the After that is due next).
	Expected int64
	// Duplicates counts the tuples that are to be dropped, with Done.
	Duplicates int
	// Keep is false for each of them; nil if it is all or none. It is valid until the next Judge.
	Keep []bool
}

// Table remembers positions and ids. See the package comment.
type Table struct {
	bounds    Bounds
	positions positions
	ids       window
	keep      []bool // scratch
}

// NewTable returns an empty table. It panics on bounds that fail their Check.
func NewTable(b Bounds) *Table {
	t := &Table{positions: newPositions(), ids: newWindow()}
	t.SetBounds(b, 0)
	return t
}

// SetBounds changes the bounds and forgets at once what is beyond them; sources beyond a lowered bound stay. It panics
// on bounds that fail their Check.
func (t *Table) SetBounds(b Bounds, now int64) {
	if err := b.Check(); err != nil {
		panic(err)
	}
	t.bounds = b
	t.Expire(now)
}

// Bounds returns the bounds in force.
func (t *Table) Bounds() Bounds { return t.bounds }

// Use returns how much is in use.
func (t *Table) Use() Use {
	return Use{IDs: len(t.ids.index), Sessions: len(t.positions.sessions), Sources: len(t.positions.sources)}
}

// Expire forgets the ids and sessions that are too old at now.
func (t *Table) Expire(now int64) {
	t.ids.shrink(t.bounds.IDs, now-t.bounds.IDAge)
	t.positions.shrink(t.bounds.Sessions, now-t.bounds.SessionAge)
}

// OpenSession makes name an open session; if there are too many now, the one longest unused is forgotten. It returns
// false, and changes nothing but the session's last use, if the session was open already.
func (t *Table) OpenSession(name string, now int64) bool {
	known := t.positions.openSession(name, now)
	t.positions.shrink(t.bounds.Sessions, now-t.bounds.SessionAge)
	return !known
}

// Position returns the last position admitted from a source or session.
func (t *Table) Position(name string) (last int64, known bool) {
	s, known := t.positions.sources[name]
	if !known {
		s, known = t.positions.sessions[name]
	}
	if !known {
		return 0, false
	}
	return s.last, true
}

// Sources calls yield for each source that is no session, in no particular order, until it returns false.
func (t *Table) Sources(yield func(name string, last int64) bool) {
	for name, s := range t.positions.sources {
		if !yield(name, s.last) {
			return
		}
	}
}

// Judge decides on a batch and remembers its tuples as seen. With any code but Done nothing was remembered, except that
// the session was used.
func (t *Table) Judge(b Batch, now int64) Outcome {
	last := int64(0)
	if b.Rule != None {
		var o Outcome
		if last, o = t.admit(b, now); o.Code != Done {
			return o
		}
	}
	keep, dropped := t.cutPositions(b, last)
	if b.IDs != nil && dropped < b.Count {
		keep, dropped = t.cutIDs(b, keep, dropped, now)
	}
	if dropped == 0 || dropped == b.Count {
		keep = nil
	}
	return Outcome{Duplicates: dropped, Keep: keep}
}

// admit refuses a batch, or advances its source and returns the position it had before.
func (t *Table) admit(b Batch, now int64) (last int64, o Outcome) {
	p := &t.positions
	known := p.sources
	if b.Rule == Session {
		known = p.sessions
	}
	s := known[b.Source]
	switch {
	case s == nil && b.Rule == Session:
		return 0, Outcome{Code: Expired}
	case s != nil && b.Rule == Session:
		p.use(s, now)
	case s == nil && len(p.sources) >= t.bounds.Sources:
		return 0, Outcome{Code: Full}
	}
	switch {
	case s != nil:
		last = s.last
	case b.Rule == Sparse:
		last = math.MinInt64 // whatever a new source starts with is new; Kafka's first offset is 0
	}
	if expected, gap := b.gap(last); gap {
		return 0, Outcome{Code: Gap, Expected: expected}
	}
	if s == nil {
		s = &source{last: b.Last}
		known[b.Source] = s
	}
	s.last = max(s.last, b.Last)
	return last, Outcome{}
}

// gap tells whether positions are missing between last and the batch or within it, and what is due.
func (b Batch) gap(last int64) (expected int64, gap bool) {
	switch b.Rule {
	case Dense, Session:
		return last + 1, b.Last > last && (b.First > last+1 || b.Last-b.First != int64(b.Count)-1)
	case Range:
		return last, b.After > last
	default:
		return 0, false
	}
}

// cutPositions says which tuples lie above last; keep is nil if it is all or none.
func (t *Table) cutPositions(b Batch, last int64) (keep []bool, dropped int) {
	switch {
	case b.Rule == None || b.First > last:
		return nil, 0
	case b.Last <= last:
		return nil, b.Count
	}
	keep = t.scratch(b.Count)
	for i, p := range b.Positions() {
		if p <= last {
			keep[i] = false
			dropped++
		}
	}
	return keep, dropped
}

// cutIDs drops the tuples with a known id from those that are kept so far, and remembers the others' ids.
func (t *Table) cutIDs(b Batch, keep []bool, dropped int, now int64) ([]bool, int) {
	if keep == nil {
		keep = t.scratch(b.Count)
	}
	for i, id := range b.IDs {
		if keep[i] && id != (ID{}) && t.ids.see(id, now) {
			keep[i] = false
			dropped++
		}
	}
	t.ids.shrink(t.bounds.IDs, now-t.bounds.IDAge)
	return keep, dropped
}

// scratch returns n times true.
func (t *Table) scratch(n int) []bool {
	t.keep = t.keep[:0]
	for range n {
		t.keep = append(t.keep, true)
	}
	return t.keep
}
