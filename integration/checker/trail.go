package checker

import (
	"fmt"
	"slices"
)

// Trail audits the headers that ftproxy's Kafka sink puts on records, from the topic alone: the record of each buffer
// offset (and index below it) stands there once, and offsets ascend within a partition.
type Trail struct {
	last     map[string]map[int32]mark  // by lineage and partition
	counts   map[string]map[uint64]bool // offsets seen, by lineage
	problems []string
	found    int
}

// mark is a record's place in ftproxy's buffer.
type mark struct {
	offset uint64
	index  int
}

// NewTrail returns an audit without records.
func NewTrail() *Trail {
	return &Trail{last: make(map[string]map[int32]mark), counts: make(map[string]map[uint64]bool)}
}

// Record adds the next visible record of a partition, in the partition's order.
func (t *Trail) Record(partition int32, lineage string, offset uint64, index int) {
	if lineage == "" || offset == 0 {
		t.problem("partition %d: a record without lineage or offset", partition)
		return
	}
	if t.last[lineage] == nil {
		t.last[lineage] = make(map[int32]mark)
		t.counts[lineage] = make(map[uint64]bool)
	}
	m := mark{offset, index}
	if prev, ok := t.last[lineage][partition]; ok && !prev.before(m) {
		t.problem("partition %d: %s/%d.%d follows %d.%d", partition, lineage, offset, index, prev.offset, prev.index)
	}
	if index == 0 && t.counts[lineage][offset] {
		t.problem("partition %d: %s/%d is there twice", partition, lineage, offset)
	}
	t.last[lineage][partition] = m
	t.counts[lineage][offset] = true
}

// Problems closes the audit and returns how many faults it found and the first of them in words. Offsets must be dense
// from 1 for each lineage, which is so where one topic takes everything that a buffer holds.
func (t *Trail) Problems() (int, []string) {
	for lineage, offsets := range t.counts {
		var highest uint64
		for offset := range offsets {
			highest = max(highest, offset)
		}
		if missing := highest - uint64(len(offsets)); missing > 0 {
			t.problem("%s: %d offsets below %d are missing", lineage, missing, highest)
		}
	}
	return t.found, slices.Clone(t.problems)
}

func (t *Trail) problem(format string, args ...any) {
	t.found++
	if len(t.problems) < maxNotes {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}

func (m mark) before(other mark) bool {
	return m.offset < other.offset || m.offset == other.offset && m.index < other.index
}
