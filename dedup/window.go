package dedup

// ID identifies a tuple: a 128-bit hash. The zero ID means "none" and is never a duplicate.
type ID [16]byte

// none marks the end of the window's list.
const none = -1

// window is the set of ids seen lately, ordered by last use. Each operation takes constant time, plus what it evicts.
//
// The ids stand in slots that form a doubly linked list from the oldest to the newest; freed slots are used again, so
// that the memory is that of the largest number of ids ever held (about 60 bytes an id with the index).
type window struct {
	index  map[ID]int32
	slots  []slot
	free   []int32
	oldest int32
	newest int32
}

type slot struct {
	id         ID
	seen       int64
	prev, next int32
}

func newWindow() window {
	return window{index: make(map[ID]int32), oldest: none, newest: none}
}

// see tells whether id is in the window and makes it the newest.
func (w *window) see(id ID, now int64) (known bool) {
	at, known := w.index[id]
	if known {
		w.unlink(at)
	} else {
		at = w.take(id)
	}
	w.slots[at].seen = now
	w.link(at)
	return known
}

// shrink forgets ids from the oldest on until at most limit are left and none was last seen before since.
func (w *window) shrink(limit int, since int64) {
	for w.oldest != none && (len(w.index) > limit || w.slots[w.oldest].seen < since) {
		at := w.oldest
		w.unlink(at)
		delete(w.index, w.slots[at].id)
		w.free = append(w.free, at)
	}
	if len(w.index) == 0 && len(w.slots) > 0 {
		*w = newWindow() // an idle window gives its memory back
	}
}

func (w *window) take(id ID) int32 {
	var at int32
	if n := len(w.free); n > 0 {
		at = w.free[n-1]
		w.free = w.free[:n-1]
	} else {
		at = int32(len(w.slots))
		w.slots = append(w.slots, slot{})
	}
	w.slots[at].id = id
	w.index[id] = at
	return at
}

func (w *window) link(at int32) {
	w.slots[at].prev, w.slots[at].next = w.newest, none
	if w.newest == none {
		w.oldest = at
	} else {
		w.slots[w.newest].next = at
	}
	w.newest = at
}

func (w *window) unlink(at int32) {
	s := &w.slots[at]
	if s.prev == none {
		w.oldest = s.next
	} else {
		w.slots[s.prev].next = s.next
	}
	if s.next == none {
		w.newest = s.prev
	} else {
		w.slots[s.next].prev = s.prev
	}
}
