package proxytest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// Outlet is one reader's end of a Log, for one tenure after another. All methods may be called concurrently.
type Outlet struct {
	log    *Log
	reader logbuffer.Reader
	cursor proxy.Cursor
	ended  bool
	faults []Fault
	acks   []logbuffer.Ack
	held   bool
}

var _ proxy.Outlet = (*Outlet)(nil)

// Outlet returns a new reader's end of the log; the reader starts at the trimmed offset.
func (l *Log) Outlet(name string, sinks ...string) *Outlet {
	o := &Outlet{log: l, reader: logbuffer.Reader{Name: name, Sinks: sinks}}
	l.change(func() {
		o.cursor = proxy.Cursor{Acked: l.trimmed, Hash: l.trimHash}
	})
	return o
}

// EndTenure makes every method fail, calls that wait included, until BeginTenure.
func (o *Outlet) EndTenure() {
	o.log.change(func() { o.ended = true })
}

// BeginTenure lets the methods work again, from the acknowledged offset.
func (o *Outlet) BeginTenure() {
	o.log.change(func() { o.ended = false })
}

// FailAck makes the next calls of Ack fail, one a fault, in that order.
func (o *Outlet) FailAck(faults ...Fault) {
	o.log.change(func() { o.faults = append(o.faults, faults...) })
}

// HoldAcks makes Ack wait until it is let go.
func (o *Outlet) HoldAcks(held bool) {
	o.log.change(func() { o.held = held })
}

// Reader returns the reader's name.
func (o *Outlet) Reader() string { return o.reader.Name }

// Buffer returns "in".
func (*Outlet) Buffer() string { return "in" }

// Lineage returns the log's lineage.
func (o *Outlet) Lineage() string { return o.log.lineage }

func (o *Outlet) tenure(ctx context.Context) error {
	if o.ended {
		return fmt.Errorf("%w: the tenure has ended", logbuffer.ErrUnavailable)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
	}
	return nil
}

// Barrier returns at once.
func (o *Outlet) Barrier(ctx context.Context) error {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	return o.tenure(ctx)
}

// Cursor returns the reader's place.
func (o *Outlet) Cursor(ctx context.Context) (proxy.Cursor, error) {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	c := o.cursor
	c.End = o.log.end
	return c, o.tenure(ctx)
}

// Read waits for batches of this reader above after, and returns at least one.
func (o *Outlet) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	var found []logbuffer.Stored
	var failed error
	err := o.log.until(ctx, func() bool {
		if failed = o.tenure(ctx); failed != nil {
			return true
		}
		if after < o.log.trimmed {
			failed = fmt.Errorf("%w: offset %d, trimmed %d", logbuffer.ErrTrimmed, after, o.log.trimmed)
			return true
		}
		found = o.find(after, maxBytes)
		return len(found) > 0
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
	}
	return found, failed
}

func (o *Outlet) find(after uint64, maxBytes int) []logbuffer.Stored {
	var found []logbuffer.Stored
	for _, s := range o.log.stored {
		if s.Last <= after || !o.reads(s.Data.Sink()) {
			continue
		}
		maxBytes -= len(s.Data)
		if len(found) > 0 && maxBytes < 0 {
			break
		}
		found = append(found, s)
	}
	return found
}

func (o *Outlet) reads(sink string) bool {
	return sink == "" || len(o.reader.Sinks) == 0 || slices.Contains(o.reader.Sinks, sink)
}

// HashAt returns the running hash at the end of a batch or at the trimmed offset.
func (o *Outlet) HashAt(ctx context.Context, n uint64) (hash uint64, ok bool, err error) {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	if err := o.tenure(ctx); err != nil {
		return 0, false, err
	}
	if n == o.log.trimmed {
		return o.log.trimHash, true, nil
	}
	if o.cursor.EverAcked && n == o.cursor.Acked {
		return o.cursor.Hash, true, nil
	}
	i := slices.IndexFunc(o.log.stored, func(s logbuffer.Stored) bool { return s.Last == n })
	if i < 0 {
		return 0, false, nil
	}
	return o.log.stored[i].Hash, true, nil
}

// Ack moves the cursor and remembers the acknowledgement. Going back is a no-op, going past the end an error.
func (o *Outlet) Ack(ctx context.Context, ack logbuffer.Ack) error {
	if err := o.log.until(ctx, func() bool { return !o.held || o.ended }); err != nil {
		return fmt.Errorf("%w: %w", logbuffer.ErrUnknown, err)
	}
	ack.Reader = o.reader.Name
	var err error
	o.log.change(func() {
		if err = o.tenure(ctx); err != nil {
			return
		}
		fault := FaultNone
		if len(o.faults) > 0 {
			fault, o.faults = o.faults[0], o.faults[1:]
		}
		if fault == FaultNone || fault == FaultUnknownWritten {
			err = o.apply(ack)
		}
		err = errors.Join(err, fault.err())
	})
	return err
}

func (o *Outlet) apply(ack logbuffer.Ack) error {
	if ack.UpTo > o.log.end {
		return fmt.Errorf("%w: ack of %d, end %d", logbuffer.ErrCorrupt, ack.UpTo, o.log.end)
	}
	o.acks = append(o.acks, ack)
	o.cursor.EverAcked = true
	if ack.UpTo <= o.cursor.Acked {
		return nil
	}
	o.cursor.Acked, o.cursor.Hash = ack.UpTo, 0
	for _, s := range o.log.stored {
		if s.Last <= ack.UpTo {
			o.cursor.Hash = s.Hash
		}
	}
	return nil
}

// Acks returns the acknowledgements that were applied, in order.
func (o *Outlet) Acks() []logbuffer.Ack {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	return slices.Clone(o.acks)
}

// Acked returns the acknowledged offset.
func (o *Outlet) Acked() uint64 {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	return o.cursor.Acked
}

// Letters returns the dead letters of all acknowledgements, in order.
func (o *Outlet) Letters() []logbuffer.Letter {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	var all []logbuffer.Letter
	for _, a := range o.acks {
		all = append(all, a.Dead...)
	}
	return all
}

// WaitAcked waits until everything up to offset n is acknowledged.
func (o *Outlet) WaitAcked(ctx context.Context, n uint64) error {
	return o.log.until(ctx, func() bool { return o.cursor.Acked >= n })
}
