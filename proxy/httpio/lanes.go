package httpio

import (
	"slices"

	"ftproxy/logbuffer"
)

// item is one tuple on its way.
type item struct {
	offset uint64
	lane   string
	size   int64
	tuple  *logbuffer.Tuple
	batch  *heldBatch // what it was read with: source, partition, sink
	alone  bool       // must be delivered by itself
}

// heldBatch is a batch in memory. All its tuples alias it, so it stays there until the last is done.
type heldBatch struct {
	*logbuffer.Batch

	size int64
	left int // tuples that are not done
}

// maxPostBytes bounds the tuples of one POST, unless a single one is larger.
const maxPostBytes = 512 << 10

// laneOf names the lane of a tuple: its key's, or the one of all tuples without a key.
func laneOf(t *logbuffer.Tuple) string {
	if t.Key == nil {
		return "-"
	}
	return "k" + string(t.Key)
}

// lanes keep the order of tuples by key.
//
//	key a: 3 7 9     busy: 1       take(2) ─▶ 4, 5: all of the lane that was ready first, and so on
//	key b: 4 5       ready
//
// Invariant: a lane is in ready exactly if it has items and is not busy; a lane without items that is not busy is not
// in the map. It has no lock and no goroutine.
type lanes struct {
	byName map[string]*lane
	ready  []*lane
}

type lane struct {
	items []item
	busy  bool
}

func newLanes() *lanes { return &lanes{byName: map[string]*lane{}} }

// put queues an item behind those of its lane.
func (l *lanes) put(it item) {
	q := l.byName[it.lane]
	if q == nil {
		q = &lane{}
		l.byName[it.lane] = q
	}
	q.items = append(q.items, it)
	if !q.busy && len(q.items) == 1 {
		l.ready = append(l.ready, q)
	}
}

// take returns up to n items, and marks their lanes as busy. Items of one lane come in order.
func (l *lanes) take(n int) []item {
	var taken []item
	bytes := int64(0)
	for len(l.ready) > 0 && len(taken) < n && bytes < maxPostBytes {
		q := l.ready[0]
		if q.items[0].alone && len(taken) > 0 {
			break
		}
		l.ready = l.ready[1:]
		q.busy = true
		for len(q.items) > 0 && len(taken) < n && (bytes == 0 || bytes+q.items[0].size <= maxPostBytes) {
			it := q.items[0]
			if it.alone && len(taken) > 0 {
				break
			}
			taken, q.items, bytes = append(taken, it), q.items[1:], bytes+it.size
			if it.alone {
				return taken
			}
		}
	}
	return taken
}

// release ends what take began: the items are done.
func (l *lanes) release(items []item) {
	for _, it := range items {
		q := l.byName[it.lane]
		if q == nil || !q.busy {
			continue // an item of a lane that was released already
		}
		q.busy = false
		if len(q.items) == 0 {
			delete(l.byName, it.lane)
			continue
		}
		l.ready = append(l.ready, q)
	}
}

// putBack undoes what take did: the items are the first of their lanes again, each to be delivered alone.
func (l *lanes) putBack(items []item) {
	for _, it := range slices.Backward(items) {
		it.alone = true
		q := l.byName[it.lane]
		q.items = append([]item{it}, q.items...)
	}
	l.release(items)
}
