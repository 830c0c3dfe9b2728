package replica

import (
	"context"
	"fmt"
	"sync"

	"ftproxy/logbuffer"
)

// Outlet is a reader's end of a buffer, valid for one tenure. All methods may be called concurrently; after the tenure
// they return an error of class logbuffer.ErrUnavailable or ErrUnknown.
type Outlet struct {
	t      *Tenure
	reader string
	lane   *lane

	mu    sync.Mutex
	queue []*ackGroup   // guarded by mu; the last one may grow
	wake  chan struct{} // capacity 1
}

// ackGroup is acknowledgements that become one command.
type ackGroup struct {
	ack  logbuffer.Ack
	done chan struct{} // closed when err is final
	err  error
}

func newOutlet(t *Tenure, reader string) *Outlet {
	return &Outlet{
		t: t, reader: reader, lane: newLane(sinkProposer+reader, t.term, t.n.log, t.connect), wake: make(chan struct{}, 1),
	}
}

// Reader is the reader's name.
func (o *Outlet) Reader() string { return o.reader }

// Buffer is the name of the buffer that is read.
func (*Outlet) Buffer() string { return bufferIn }

// Lineage is as in Node.
func (o *Outlet) Lineage() string { return o.t.n.Lineage() }

// Barrier returns once all that was committed before the call is applied here and this node is known to lead.
func (o *Outlet) Barrier(ctx context.Context) error {
	if err := o.t.commit.barrier(ctx); err != nil {
		return fmt.Errorf("%w: barrier: %w", logbuffer.ErrUnavailable, err)
	}
	return nil
}

// Cursor returns, behind a barrier, the reader's confirmed offset, the last offset in the buffer, the running hash at
// the confirmed offset, and whether the reader ever confirmed anything.
func (o *Outlet) Cursor(ctx context.Context) (acked, end, hash uint64, everAcked bool, err error) {
	if err = o.Barrier(ctx); err != nil {
		return 0, 0, 0, false, err
	}
	err = fmt.Errorf("%w: the state has no reader %q", logbuffer.ErrUnavailable, o.reader)
	o.t.n.fsm.view(func(s *State) {
		c := s.Cursors(bufferIn)
		for _, r := range c.Readers {
			if r.Name == o.reader {
				acked, end, hash, everAcked, err = r.Acked, c.End, r.Hash, r.EverAcked, nil
			}
		}
	})
	return acked, end, hash, everAcked, err
}

// Read returns the reader's batches above after, in order: at least one, and more while they fit into maxBytes of
// encoded size. It waits until there is one.
func (o *Outlet) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	for {
		var slice logbuffer.Slice
		changed := o.t.n.fsm.watch(func(s *State) { slice = s.Locate(bufferIn, o.reader, after, maxBytes) })
		if !slice.Empty() {
			return slice.Load()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-o.t.over:
			return nil, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, errTenureOver)
		}
	}
}

// HashAt returns the buffer's running hash at offset n if n is the end of a stored batch, confirmed, or trimmed.
func (o *Outlet) HashAt(_ context.Context, n uint64) (hash uint64, ok bool, err error) {
	o.t.n.fsm.view(func(s *State) { hash, ok, err = s.HashAt(bufferIn, n) })
	return hash, ok, err
}

// Ack commits that all up to ack.UpTo is done. It returns when the entry is applied. Acknowledgements that wait for one
// in flight become one.
func (o *Outlet) Ack(ctx context.Context, ack logbuffer.Ack) error {
	ack.Reader = o.reader
	g := o.join(ack)
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return fmt.Errorf("%w: acknowledgement up to %d: %w", logbuffer.ErrUnknown, ack.UpTo, context.Cause(ctx))
	case <-o.t.over:
		return fmt.Errorf("%w: acknowledgement up to %d: %w", logbuffer.ErrUnknown, ack.UpTo, errTenureOver)
	}
}

// join adds an acknowledgement to the last group if neither bears dead letters, which may be refused, else to one of
// its own.
func (o *Outlet) join(ack logbuffer.Ack) *ackGroup {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	if n := len(o.queue); n > 0 && len(ack.Dead) == 0 && len(o.queue[n-1].ack.Dead) == 0 {
		g := o.queue[n-1]
		g.ack.UpTo = max(g.ack.UpTo, ack.UpTo)
		g.ack.Dropped += ack.Dropped
		return g
	}
	g := &ackGroup{ack: ack, done: make(chan struct{})}
	o.queue = append(o.queue, g)
	return g
}

func (o *Outlet) take() *ackGroup {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return nil
	}
	g := o.queue[0]
	o.queue = o.queue[1:]
	return g
}

// run commits one group after the other for the tenure's life.
func (o *Outlet) run(ctx context.Context) {
	for {
		for g := o.take(); g != nil; g = o.take() {
			v, err := o.lane.propose(ctx, kindAck, appendAckBody(nil, g.ack))
			if err == nil && v.Code != VerdictDone {
				err = fmt.Errorf("%w: %s", logbuffer.ErrUnavailable, v.Reason)
			}
			g.err = err
			close(g.done)
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return
		}
	}
}
