package logbuffer

const (
	blockLen = 256
	// entryBytes is what a batch takes in memory beside its data.
	entryBytes = 64
)

// entry is one batch in the tail. It begins where the one before it ends.
type entry struct {
	end      place
	data     Encoded
	label    *label
	count    uint32
	boundary bool
}

func (e *entry) bytes() int64 { return entryBytes + int64(len(e.data)) }

type block [blockLen]entry

// tail is the newest batches, in memory: a queue in blocks, so that it never moves what it holds.
type tail struct {
	// from is the place where its first batch begins.
	from   place
	blocks []*block
	spare  *block
	head   int // index of the first entry in blocks[0]
	n      int
	bytes  int64
}

func (t *tail) at(i int) *entry {
	i += t.head
	return &t.blocks[i/blockLen][i%blockLen]
}

// start returns the place where entry i begins; i may be n.
func (t *tail) start(i int) place {
	if i == 0 {
		return t.from
	}
	return t.at(i - 1).end
}

func (t *tail) push(e entry) {
	if (t.head+t.n)/blockLen == len(t.blocks) {
		b := t.spare
		if t.spare = nil; b == nil {
			b = new(block)
		}
		t.blocks = append(t.blocks, b)
	}
	t.n++
	t.bytes += e.bytes()
	*t.at(t.n - 1) = e
}

func (t *tail) pop() {
	e := t.at(0)
	t.from = e.end
	t.bytes -= e.bytes()
	*e = entry{}
	t.head++
	t.n--
	if t.head == blockLen || t.n == 0 && t.head > 0 {
		t.dropBlock()
	}
}

func (t *tail) dropBlock() {
	t.spare = t.blocks[0]
	t.head = 0
	n := copy(t.blocks, t.blocks[1:])
	t.blocks[n] = nil
	t.blocks = t.blocks[:n]
}

// search returns the index of the entry that holds offset off + 1, n if there is none.
func (t *tail) search(off uint64) int {
	lo, hi := 0, t.n
	if hi > 0 && t.at(0).end.off > off {
		return 0
	}
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if t.at(mid).end.off > off {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}
