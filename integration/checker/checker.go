package checker

import (
	"fmt"
	"maps"
	"slices"
)

// maxNotes bounds how many findings a verdict spells out; all are counted.
const maxNotes = 10

// Checker collects what was sent and what is visible, and judges. Call Sent before or after Seen, in any order.
type Checker struct {
	streams map[string]*stream
	torn    int64
	notes   []string
}

// stream is what is known of one stream. Invariant: distinct is the number of bits set in seen.
type stream struct {
	sent       int64 // tuples 1 to sent were sent
	seen       []uint64
	distinct   int64
	highest    int64
	duplicated int64
	reordered  int64
}

// Verdict is the outcome of a run. All figures count tuples.
type Verdict struct {
	// Sent counts different tuples sent, Delivered different ones seen.
	Sent, Delivered int64
	// Lost were sent and not seen.
	Lost int64
	// Duplicated counts every sighting of a tuple after its first.
	Duplicated int64
	// Reordered counts first sightings after that of a later tuple of the same stream.
	Reordered int64
	// Torn counts what is no tuple that was sent: damaged, mixed or invented.
	Torn int64
	// Notes spells out the first findings.
	Notes []string
}

// New returns a checker of a run in which nothing happened yet.
func New() *Checker {
	return &Checker{streams: make(map[string]*stream)}
}

// Clean tells whether nothing was lost, duplicated, reordered or torn.
func (v Verdict) Clean() bool {
	return v.Lost == 0 && v.Duplicated == 0 && v.Reordered == 0 && v.Torn == 0
}

// String is the verdict on one line.
func (v Verdict) String() string {
	return fmt.Sprintf("sent %d, delivered %d, lost %d, duplicated %d, reordered %d, torn %d",
		v.Sent, v.Delivered, v.Lost, v.Duplicated, v.Reordered, v.Torn)
}

// Sent says that tuples 1 to last of a stream were sent, replays or not.
func (c *Checker) Sent(name string, last int64) {
	s := c.stream(name)
	s.sent = max(s.sent, last)
}

// Seen says that a payload is visible downstream, next in the order that matters.
func (c *Checker) Seen(payload []byte) {
	name, n, err := ParsePayload(payload)
	if err != nil {
		c.Torn(err.Error())
		return
	}
	c.SeenTuple(name, n)
}

// SeenTuple is Seen for tuple n of a stream whose payload was checked already.
func (c *Checker) SeenTuple(name string, n int64) {
	if n < 1 {
		c.Torn(fmt.Sprintf("%s: numbers start at 1", ID(name, n)))
		return
	}
	s := c.stream(name)
	word, bit := int((n-1)/64), uint64(1)<<((n-1)%64)
	if word >= len(s.seen) {
		s.seen = append(s.seen, make([]uint64, word+1-len(s.seen))...)
	}
	if s.seen[word]&bit != 0 {
		s.duplicated++
		c.note("%s is there again", ID(name, n))
		return
	}
	s.seen[word] |= bit
	s.distinct++
	if n < s.highest {
		s.reordered++
		c.note("%s comes after %s", ID(name, n), ID(name, s.highest))
	}
	s.highest = max(s.highest, n)
}

// Torn counts something visible that is no tuple, or parts of something that had to appear whole or not at all.
func (c *Checker) Torn(what string) {
	c.torn++
	c.note("torn: %s", what)
}

// Verdict judges what was collected so far.
func (c *Checker) Verdict() Verdict {
	v := Verdict{Torn: c.torn, Notes: slices.Clone(c.notes)}
	for _, name := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[name]
		v.Sent += s.sent
		v.Duplicated += s.duplicated
		v.Reordered += s.reordered
		for n := int64(1); n <= max(s.sent, s.highest); n++ {
			switch has := s.has(n); {
			case has && n > s.sent:
				v.Torn++
				v.Notes = append(v.Notes, ID(name, n)+" was never sent")
			case has:
				v.Delivered++
			default:
				if n <= s.sent {
					v.Lost++
					v.Notes = append(v.Notes, ID(name, n)+" is lost")
				}
			}
			if len(v.Notes) > maxNotes {
				v.Notes = v.Notes[:maxNotes]
			}
		}
	}
	return v
}

// Delivered returns how many different tuples were seen so far.
func (c *Checker) Delivered() int64 {
	var n int64
	for _, s := range c.streams {
		n += s.distinct
	}
	return n
}

func (c *Checker) stream(name string) *stream {
	s := c.streams[name]
	if s == nil {
		s = &stream{}
		c.streams[name] = s
	}
	return s
}

func (c *Checker) note(format string, args ...any) {
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, fmt.Sprintf(format, args...))
	}
}

func (s *stream) has(n int64) bool {
	word := int((n - 1) / 64)
	return word < len(s.seen) && s.seen[word]&(1<<((n-1)%64)) != 0
}
