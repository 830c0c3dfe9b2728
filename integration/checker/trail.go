package checker

import (
	"fmt"
	"slices"
)

// Trail audits the headers that ftproxy's Kafka sink puts on records, from a topic alone: each record says which life
// of the log it is from, its offset in the buffer, and its index in the batch that was committed with it. Each offset
// stands in the topic once, offsets ascend within a partition, and batches are whole.
type Trail struct {
	lives    map[string]*life
	problems []string
	found    int
}

// life is what is known of one lineage.
type life struct {
	last    map[int32]uint64  // offset, by partition
	indexes map[uint64]uint64 // index, by offset
}

// NewTrail returns an audit without records.
func NewTrail() *Trail { return &Trail{lives: make(map[string]*life)} }

// Record adds the next visible record of a partition, in the partition's order.
func (t *Trail) Record(partition int32, lineage string, offset, index uint64) {
	if lineage == "" || offset == 0 || index >= offset {
		t.problem("partition %d: lineage %q, offset %d, index %d cannot be", partition, lineage, offset, index)
		return
	}
	l := t.lives[lineage]
	if l == nil {
		l = &life{last: make(map[int32]uint64), indexes: make(map[uint64]uint64)}
		t.lives[lineage] = l
	}
	if _, there := l.indexes[offset]; there {
		t.problem("partition %d: %s/%d is there twice", partition, lineage, offset)
	} else if offset < l.last[partition] {
		t.problem("partition %d: %s/%d follows %d", partition, lineage, offset, l.last[partition])
	}
	l.last[partition] = max(l.last[partition], offset)
	l.indexes[offset] = index
}

// Problems closes the audit and returns how many faults it found and the first of them in words. Offsets must be dense
// from 1 for each lineage, which is so where one topic takes everything that a buffer holds.
func (t *Trail) Problems() (int, []string) {
	for lineage, l := range t.lives {
		var highest uint64
		for offset, index := range l.indexes {
			highest = max(highest, offset)
			if before, there := l.indexes[offset-1]; index > 0 && (!there || before != index-1) {
				t.problem("%s/%d has index %d, but what is before it belongs to another batch", lineage, offset, index)
			}
		}
		if missing := highest - uint64(len(l.indexes)); missing > 0 {
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
