package dedup

import "container/list"

// Rule says how the positions of a batch are judged against the last one of its source.
type Rule uint8

const (
	// None means that the source has no positions.
	None Rule = iota
	// Sparse means that positions ascend and may have holes; what is at or below the last one is a duplicate.
	Sparse
	// Dense means that positions are numbered without holes from 1; a hole before or in a batch refuses it whole.
	Dense
	// Session is Dense for a session, which has to be open.
	Session
	// Range means that the batch covers (After, its last position], holes allowed; After beyond the last position
	// refuses it whole.
	Range
)

// source is what is remembered of one source or session.
type source struct {
	last int64
	// seen is when a session was last used; place is its element in the order of use. Ordinary sources have neither.
	seen  int64
	place *list.Element
}

// positions holds the last position of each source, and of each session in their order of use (oldest first).
type positions struct {
	sources  map[string]*source
	sessions map[string]*source
	order    *list.List // of session names
}

func newPositions() positions {
	return positions{sources: make(map[string]*source), sessions: make(map[string]*source), order: list.New()}
}

// openSession makes name a session that is open; known tells that it already was.
func (p *positions) openSession(name string, now int64) (known bool) {
	if s, ok := p.sessions[name]; ok {
		p.use(s, now)
		return true
	}
	p.sessions[name] = &source{seen: now, place: p.order.PushBack(name)}
	return false
}

func (p *positions) use(s *source, now int64) {
	s.seen = now
	p.order.MoveToBack(s.place)
}

// shrink forgets sessions from the longest unused on until at most limit are left and none was last used before since.
func (p *positions) shrink(limit int, since int64) {
	for front := p.order.Front(); front != nil; front = p.order.Front() {
		name, _ := front.Value.(string)
		if len(p.sessions) <= limit && p.sessions[name].seen >= since {
			return
		}
		p.order.Remove(front)
		delete(p.sessions, name)
	}
}
