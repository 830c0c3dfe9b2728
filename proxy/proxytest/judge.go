package proxytest

import "ftproxy/logbuffer"

// judge decides what is new, by the rules that logbuffer.Rule states. Its window of ids never ends.
type judge struct {
	last     map[string]int64
	ids      map[logbuffer.ID]bool
	sessions map[string]bool
}

func newJudge() judge {
	return judge{last: map[string]int64{}, ids: map[logbuffer.ID]bool{}, sessions: map[string]bool{}}
}

// admit returns the tuples of b that are new. A refused batch changes nothing; a tuple with a duplicate id still
// advances the position, and a duplicate position marks no id.
func (j *judge) admit(b *logbuffer.Batch) ([]logbuffer.Tuple, logbuffer.Receipt) {
	if b.Rule == logbuffer.RuleSession && !j.sessions[b.Source] {
		return nil, logbuffer.Receipt{Code: logbuffer.CodeExpired}
	}
	if expected, gap := j.gap(b); gap {
		return nil, logbuffer.Receipt{Code: logbuffer.CodeGap, Expected: expected}
	}
	var fresh []logbuffer.Tuple
	for i := range b.Tuples {
		if j.fresh(b, i) {
			fresh = append(fresh, b.Tuples[i])
		}
	}
	return fresh, logbuffer.Receipt{Admitted: len(fresh), Duplicates: len(b.Tuples) - len(fresh)}
}

// gap tells whether positions are missing before b, and which is due.
func (j *judge) gap(b *logbuffer.Batch) (expected int64, gap bool) {
	last := j.last[b.Source]
	switch b.Rule {
	case logbuffer.RuleDense, logbuffer.RuleSession:
		for i := range b.Tuples {
			p := b.Tuples[i].Position
			if p > last+1 {
				return last + 1, true
			}
			last = max(last, p)
		}
		return 0, false
	case logbuffer.RuleRange:
		return last, b.After > last
	case logbuffer.RuleNone, logbuffer.RuleSparse:
	}
	return 0, false
}

// fresh judges one tuple and marks it as seen.
func (j *judge) fresh(b *logbuffer.Batch, i int) bool {
	if b.Rule != logbuffer.RuleNone {
		p := b.Tuples[i].Position
		last, known := j.last[b.Source]
		if known && p <= last {
			return false
		}
		j.last[b.Source] = p
	}
	if len(b.IDs) == 0 || b.IDs[i] == (logbuffer.ID{}) {
		return true
	}
	if j.ids[b.IDs[i]] {
		return false
	}
	j.ids[b.IDs[i]] = true
	return true
}
