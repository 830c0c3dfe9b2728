package kafkaio

import (
	"context"
	"slices"
	"sync"
	"time"

	"ftproxy/logbuffer"
)

// readsAhead is how many reads wait at most while a transaction is under way.
const readsAhead = 4

// feed reads ahead of what is written, bounded to a few reads, and cuts what it read into ranges.
type feed struct {
	reads  chan []logbuffer.Stored
	failed error // valid once reads is closed
	stop   context.CancelFunc
	wg     sync.WaitGroup

	items []logbuffer.Stored // read, and not in a range yet
	bytes int                // of items, encoded
}

func (r *run) startFeed(ctx context.Context, after uint64) *feed {
	ctx, stop := context.WithCancel(ctx)
	f := &feed{reads: make(chan []logbuffer.Stored, readsAhead), stop: stop}
	f.wg.Go(func() {
		defer close(f.reads)
		for {
			got, err := r.out.Read(ctx, after, r.cfg.TxnBytes/readsAhead+1)
			if err != nil {
				f.failed = stepDownError{err}
				return
			}
			after = got[len(got)-1].Last
			select {
			case f.reads <- got:
			case <-ctx.Done():
				f.failed = context.Cause(ctx)
				return
			}
		}
	})
	return f
}

func (f *feed) close() {
	f.stop()
	f.wg.Wait()
}

// cuts says where ranges end.
type cuts struct {
	limit    int           // bytes after which a range ends as soon as it may
	linger   time.Duration // how long it waits for more
	anywhere bool          // it may end anywhere, not only where a Commit ended
}

// next returns the next range, or nothing if idle fires first.
func (f *feed) next(ctx context.Context, c cuts, idle <-chan time.Time) ([]logbuffer.Stored, error) {
	var ripe <-chan time.Time
	for {
		end := len(f.items)
		for end > 0 && !f.items[end-1].Boundary && !c.anywhere {
			end--
		}
		if end > 0 && f.bytes >= c.limit {
			return f.cut(end), nil
		}
		if end > 0 && ripe == nil {
			timer := time.NewTimer(c.linger)
			defer timer.Stop()
			ripe = timer.C
		}
		if len(f.items) > 0 {
			idle = nil
		}
		select {
		case got, ok := <-f.reads:
			if !ok {
				return nil, f.failed
			}
			f.items = append(f.items, got...)
			f.bytes += size(got)
		case <-ripe:
			return f.cut(end), nil
		case <-idle:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *feed) cut(end int) []logbuffer.Stored {
	taken := slices.Clone(f.items[:end])
	f.items = slices.Clone(f.items[end:])
	f.bytes = size(f.items)
	return taken
}

// giveBack puts items of the last range in front of what is read.
func (f *feed) giveBack(items []logbuffer.Stored) {
	f.items = slices.Concat(items, f.items)
	f.bytes = size(f.items)
}

// shorten gives back what a range has beyond limit, if that is less than the usual one.
func (f *feed) shorten(items []logbuffer.Stored, limit, usual int) []logbuffer.Stored {
	if limit >= usual {
		return items
	}
	for n := 1; n < len(items); n++ {
		if items[n-1].Boundary && size(items[:n+1]) > limit {
			f.giveBack(items[n:])
			return items[:n]
		}
	}
	return items
}

// middle is the place of a Commit's end nearest to the middle of a range, 0 if it has none but its own end.
func middle(items []logbuffer.Stored) int {
	half := len(items) / 2
	for i := range half + 1 {
		for _, n := range []int{half - i, half + i} {
			if n > 0 && n < len(items) && items[n-1].Boundary {
				return n
			}
		}
	}
	return 0
}

func size(items []logbuffer.Stored) (bytes int) {
	for i := range items {
		bytes += len(items[i].Data)
	}
	return bytes
}
