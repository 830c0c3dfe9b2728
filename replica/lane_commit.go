package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// eagerEntries is how many entries may be in flight whatever their size. More go out only when full, so that small
	// commands gather while the disk is busy.
	eagerEntries = 2
	// flightEntries is how many entries are in flight at most.
	flightEntries = 8
)

// committer makes entries of the commands of all proposers while this node leads, for one tenure:
//
//	submit ─▶ queue ─▶ entry of up to 512 KiB ─▶ Raft ─▶ verdicts
//
// Several entries are in flight. It is a link: that of the leader's own proposers, and what forwarded commands end at.
type committer struct {
	raft    *raft.Raft
	futures *futures
	// view runs f with the state, which must not be kept.
	view func(f func(*State))
	// now is replicated time in milliseconds.
	now func() int64
	// maxEntry bounds coalescing, in bytes; a larger command goes alone.
	maxEntry int

	mu       sync.Mutex
	queue    []submission
	queued   int // bytes in queue
	inFlight int // entries
	closed   bool
	wake     chan struct{} // capacity 1
	gone     chan struct{} // closed with closed
	wg       sync.WaitGroup
}

type submission struct {
	command command
	done    func(Verdict, error)
}

// flight is an entry on its way, with the commands in it.
type flight struct {
	future      raft.ApplyFuture
	submissions []submission
}

var errNotLeading = errors.New("this node does not lead")

func newCommitter(r *raft.Raft, f *futures, view func(func(*State)), now func() int64) *committer {
	c := &committer{
		raft: r, futures: f, view: view, now: now, maxEntry: entryBytes,
		wake: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	flights := make(chan flight, flightEntries)
	c.wg.Go(func() { c.build(flights) })
	c.wg.Go(func() { c.collect(flights) })
	return c
}

// submit implements link; it does not block, because every proposer bounds what it has in flight.
func (c *committer) submit(_ context.Context, cmd command, done func(Verdict, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errNotLeading
	}
	c.queue = append(c.queue, submission{command: cmd, done: done})
	c.queued += cmd.size()
	c.poke()
	return nil
}

func (c *committer) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// stand implements link. A proposer asks for no more than it has in flight.
func (c *committer) stand(ctx context.Context, proposer string, from uint64) (standing, error) {
	if err := c.barrier(ctx); err != nil {
		return standing{}, err
	}
	var st standing
	c.view(func(s *State) {
		st.Proposer, st.Known = s.Proposer(proposer)
		for n := from; n <= st.Last && n-from < window; n++ {
			st.Verdicts = append(st.Verdicts, s.Verdict(proposer, st.Incarnation, n))
		}
	})
	return st, nil
}

// barrier returns once all that was committed before the call is applied here, and proves that this node still leads.
func (c *committer) barrier(ctx context.Context) error {
	return c.futures.await(ctx, c.gone, c.raft.Barrier(0))
}

// failed implements link.
func (c *committer) failed() <-chan struct{} { return c.gone }

// close implements link. A committer serves many proposers and outlives their sessions: end ends it.
func (*committer) close() {}

// build makes entries until the committer ends.
func (c *committer) build(flights chan<- flight) {
	defer close(flights)
	for {
		batch := c.take()
		if batch == nil {
			select {
			case <-c.wake:
				continue
			case <-c.gone:
				c.refuse()
				return
			}
		}
		var b entryBuilder
		size := 0
		for i := range batch {
			size += batch[i].command.size()
		}
		b.grow(size)
		for i := range batch {
			b.add(batch[i].command)
		}
		flights <- flight{future: c.raft.Apply(b.seal(c.now()), 0), submissions: batch}
	}
}

// take returns the commands of the next entry, or nil if none is due.
func (c *committer) take() []submission {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.queued >= c.maxEntry
	if c.closed || len(c.queue) == 0 || c.inFlight >= flightEntries || c.inFlight >= eagerEntries && !full {
		return nil
	}
	n, size := 0, 0
	for n < len(c.queue) {
		s := c.queue[n].command.size()
		if n > 0 && size+s > c.maxEntry {
			break
		}
		size += s
		n++
	}
	batch := append([]submission{}, c.queue[:n]...)
	clear(c.queue[:n])
	c.queue = c.queue[n:]
	c.queued -= size
	c.inFlight++
	return batch
}

// refuse answers what was not proposed.
func (c *committer) refuse() {
	c.mu.Lock()
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, s := range queue {
		s.done(Verdict{}, errNotLeading)
	}
}

// collect waits for the entries in flight, in order.
func (c *committer) collect(flights <-chan flight) {
	for f := range flights {
		err := f.future.Error()
		c.mu.Lock()
		c.inFlight--
		c.poke()
		c.mu.Unlock()
		var verdicts []Verdict
		if err == nil {
			verdicts, err = verdictsOf(f)
		}
		for i, s := range f.submissions {
			if err != nil {
				s.done(Verdict{}, err)
			} else {
				s.done(verdicts[i], nil)
			}
		}
	}
}

func verdictsOf(f flight) ([]Verdict, error) {
	switch r := f.future.Response().(type) {
	case []Verdict:
		if len(r) == len(f.submissions) {
			return r, nil
		}
		return nil, fmt.Errorf("%d verdicts for %d commands", len(r), len(f.submissions))
	case error:
		return nil, r
	default:
		return nil, fmt.Errorf("the state answered %T", r)
	}
}

// end refuses what is not yet proposed and waits until what is has come to an end. Raft must still run: it answers all
// that was proposed within its lease.
func (c *committer) end() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.gone)
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// futures owns the goroutines that wait for Raft's answers. Raft answers all that it was asked while it runs.
type futures struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// await waits for a future of Raft. One that is given up is still waited for, by close.
func (w *futures) await(ctx context.Context, gone <-chan struct{}, f raft.Future) error {
	answer := make(chan error, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errStopped
	}
	w.wg.Go(func() { answer <- f.Error() })
	w.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-gone:
		return errNotLeading
	}
}

// close waits until all futures are answered; none is awaited any more. Raft must still run.
func (w *futures) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wg.Wait()
}

// clock is replicated time on the leader: the last time in the state and the monotonic time since the barrier that
// began the tenure. Clocks of different nodes are never compared; the very first leader's wall clock gives the start.
type clock struct {
	base  int64
	start time.Time
}

func newClock(last int64) clock {
	start := time.Now()
	if last == 0 {
		last = start.UnixMilli()
	}
	return clock{base: last, start: start}
}

func (c clock) now() int64 { return c.base + time.Since(c.start).Milliseconds() }
