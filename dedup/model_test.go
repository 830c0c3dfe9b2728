package dedup_test

import (
	"math"
	"slices"

	"ftproxy/dedup"
)

// model is what a Table should do, said as plainly as possible: tuple by tuple, with lists that are searched.
type model struct {
	bounds   dedup.Bounds
	sources  map[string]int64
	sessions []modelSession // by last use
	ids      []modelID      // by last use
}

type modelSession struct {
	name string
	last int64
	seen int64
}

type modelID struct {
	id   dedup.ID
	seen int64
}

func (m *model) expire(now int64) {
	m.ids = slices.DeleteFunc(m.ids, func(i modelID) bool { return i.seen < now-m.bounds.IDAge })
	m.ids = m.ids[max(0, len(m.ids)-m.bounds.IDs):]
	m.sessions = slices.DeleteFunc(m.sessions, func(s modelSession) bool { return s.seen < now-m.bounds.SessionAge })
	m.sessions = m.sessions[max(0, len(m.sessions)-m.bounds.Sessions):]
}

func (m *model) open(name string, now int64) bool {
	i := slices.IndexFunc(m.sessions, func(s modelSession) bool { return s.name == name })
	s := modelSession{name: name}
	if i >= 0 {
		s = m.sessions[i]
		m.sessions = slices.Delete(m.sessions, i, i+1)
	}
	s.seen = now
	m.sessions = append(m.sessions, s)
	m.expire(now)
	return i < 0
}

// judge returns the code, what is expected, and which tuples are kept.
func (m *model) judge(b dedup.Batch, at []int64, now int64) (code dedup.Code, expected int64, kept []bool) {
	last, known := m.sources[b.Source]
	session := -1
	switch {
	case b.Rule == dedup.Session:
		session = slices.IndexFunc(m.sessions, func(s modelSession) bool { return s.name == b.Source })
		if session < 0 {
			return dedup.Expired, 0, nil
		}
		s := m.sessions[session]
		s.seen = now
		m.sessions = append(slices.Delete(m.sessions, session, session+1), s)
		session = len(m.sessions) - 1
		last = s.last
	case b.Rule != dedup.None && !known && len(m.sources) >= m.bounds.Sources:
		return dedup.Full, 0, nil
	case b.Rule == dedup.Sparse && !known:
		last = math.MinInt64
	}
	switch b.Rule {
	case dedup.Dense, dedup.Session:
		if holes(at, last) {
			return dedup.Gap, last + 1, nil
		}
	case dedup.Range:
		if b.After > last {
			return dedup.Gap, last, nil
		}
	case dedup.None, dedup.Sparse:
	}
	for i, p := range at {
		keep := true
		if b.Rule != dedup.None {
			if keep = p > last; keep {
				last = p
			}
		}
		if keep && b.IDs != nil {
			keep = m.fresh(b.IDs[i], now)
		}
		kept = append(kept, keep)
	}
	m.expire(now)
	switch {
	case session >= 0:
		m.sessions[session].last = last
	case b.Rule != dedup.None:
		m.sources[b.Source] = last
	}
	return dedup.Done, 0, kept
}

// holes tells whether a batch that brings something new has a hole, in it or before it.
func holes(at []int64, last int64) bool {
	if at[len(at)-1] <= last {
		return false
	}
	for i := 1; i < len(at); i++ {
		if at[i] != at[i-1]+1 {
			return true
		}
	}
	return at[0] > last+1
}

func (m *model) fresh(id dedup.ID, now int64) bool {
	if id == (dedup.ID{}) {
		return true
	}
	i := slices.IndexFunc(m.ids, func(k modelID) bool { return k.id == id })
	if i >= 0 {
		m.ids = slices.Delete(m.ids, i, i+1)
	}
	m.ids = append(m.ids, modelID{id: id, seen: now})
	return i < 0
}
