package httpio

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// tracker knows which tuples are done, out of order, and up to where all are. Invariant: pending holds the tuples taken
// in and not yet acknowledged, by ascending offset. Safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	pending []tracked
	moved   chan struct{} // holds one signal once the front may have moved
	loose   bool          // mutant: a tuple that is done takes those before it along
}

type tracked struct {
	offset uint64
	done   bool
	letter *logbuffer.Letter
}

func newTracker(loose bool) *tracker {
	return &tracker{moved: make(chan struct{}, 1), loose: loose}
}

// add takes a tuple in; offsets ascend.
func (t *tracker) add(offset uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, tracked{offset: offset})
}

// finish marks a tuple as delivered, or as dead if there is a letter.
func (t *tracker) finish(offset uint64, letter *logbuffer.Letter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := slices.BinarySearchFunc(t.pending, offset, func(p tracked, o uint64) int { return cmp.Compare(p.offset, o) })
	if !ok {
		return
	}
	t.pending[i].done, t.pending[i].letter = true, letter
	for j := 0; t.loose && j < i; j++ {
		t.pending[j].done = true
	}
	if i == 0 || t.loose {
		signal(t.moved)
	}
}

// span returns how many tuples are not acknowledged.
func (t *tracker) span() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pending)
}

// maxLetterBytes bounds the dead letters in one acknowledgement, unless a single one is larger.
const maxLetterBytes = 256 << 10

// take removes the tuples at the front that are done, and returns their acknowledgement; ok is false if there are none.
// more tells that the letters did not all fit.
func (t *tracker) take() (ack logbuffer.Ack, more, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, bytes := 0, 0
	for n < len(t.pending) && t.pending[n].done {
		if letter := t.pending[n].letter; letter != nil {
			size := len(letter.Tuple.Value) + len(letter.Tuple.Key)
			if bytes > 0 && bytes+size > maxLetterBytes {
				more = true
				break
			}
			bytes += size + 1
			ack.Dead = append(ack.Dead, *letter)
		}
		ack.UpTo = t.pending[n].offset
		n++
	}
	t.pending = t.pending[n:]
	return ack, more, n > 0
}

// acker commits acknowledgements, many tuples at once: while one is on its way the next gathers.
//
//	tracker ─take─▶ Outlet.Ack ─▶ wait ─▶ take …
type acker struct {
	tracker *tracker
	out     proxy.Outlet
	every   time.Duration
	acked   func() // called after each acknowledgement
	waits   func(ctx context.Context, why error)
}

// run commits until ctx ends (nil) or an acknowledgement fails for good.
func (a *acker) run(ctx context.Context) error {
	for {
		select {
		case <-a.tracker.moved:
		case <-ctx.Done():
			return nil
		}
		if err := a.flush(ctx); err != nil {
			return err
		}
		pause(ctx, a.every)
	}
}

// flush commits all that is done by now.
func (a *acker) flush(ctx context.Context) error {
	for more := true; more; {
		var ack logbuffer.Ack
		var ok bool
		if ack, more, ok = a.tracker.take(); !ok {
			return nil
		}
		if err := a.commit(ctx, ack); err != nil {
			return err
		}
		a.acked()
	}
	return nil
}

// commit repeats an acknowledgement that was refused for now (DEAD is full, say). After an unknown outcome the cursor
// tells whether it was written.
func (a *acker) commit(ctx context.Context, ack logbuffer.Ack) error {
	var backoff proxy.Backoff
	for {
		err := a.out.Ack(ctx, ack)
		if err == nil {
			return nil
		}
		unknown := errors.Is(err, logbuffer.ErrUnknown)
		if ctx.Err() != nil || !unknown && !errors.Is(err, logbuffer.ErrUnavailable) {
			return err
		}
		a.waits(ctx, err)
		if backoff.Wait(ctx) != nil {
			return err
		}
		if !unknown {
			continue
		}
		cursor, cursorErr := a.out.Cursor(ctx)
		if cursorErr != nil {
			return errors.Join(err, cursorErr)
		}
		if cursor.Acked >= ack.UpTo {
			return nil
		}
	}
}

// pause waits for d; it returns early, and false, if ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
