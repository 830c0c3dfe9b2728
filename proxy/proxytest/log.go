package proxytest

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// Fault is one way in which an append or an acknowledgement fails.
type Fault uint8

const (
	// FaultNone lets the call pass.
	FaultNone Fault = iota
	// FaultUnavailable refuses the call: nothing is written, logbuffer.ErrUnavailable.
	FaultUnavailable
	// FaultTooLarge refuses the call: nothing is written, logbuffer.ErrTooLarge.
	FaultTooLarge
	// FaultUnknownLost writes nothing, and returns logbuffer.ErrUnknown.
	FaultUnknownLost
	// FaultUnknownWritten writes, and returns logbuffer.ErrUnknown all the same.
	FaultUnknownWritten
)

// Log is a log in memory. All methods may be called concurrently.
type Log struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every change
	lineage  string
	stored   []logbuffer.Stored
	batches  []logbuffer.Batch // as admitted; Tuples only, ids and rules dropped
	calls    int
	end      uint64
	trimmed  uint64
	trimHash uint64
	judge    judge
	faults   []Fault
	full     bool
	sessions int
}

var _ proxy.Intake = (*Log)(nil)

// NewLog returns an empty log of that lineage.
func NewLog(lineage string) *Log {
	return &Log{lineage: lineage, changed: make(chan struct{}), judge: newJudge()}
}

// change runs f under the lock and wakes all who wait.
func (l *Log) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// until waits until ok, which is called under the lock, says so.
func (l *Log) until(ctx context.Context, ok func() bool) error {
	for {
		l.mu.Lock()
		done, changed := ok(), l.changed
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// FailAppend makes the next calls of Append fail, one a fault, in that order.
func (l *Log) FailAppend(faults ...Fault) {
	l.change(func() { l.faults = append(l.faults, faults...) })
}

// SetFull makes Append wait, as it does when the buffer is full, until it is unset.
func (l *Log) SetFull(full bool) {
	l.change(func() { l.full = full })
}

// Expire ends a session: its batches get logbuffer.CodeExpired from now on.
func (l *Log) Expire(session string) {
	l.change(func() { delete(l.judge.sessions, session) })
}

// Append judges and stores the batches as one entry.
func (l *Log) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	if err := l.until(ctx, func() bool { return !l.full }); err != nil {
		return nil, fmt.Errorf("%w: buffer full: %w", logbuffer.ErrUnavailable, err)
	}
	var receipts []logbuffer.Receipt
	fault := FaultNone
	l.change(func() {
		l.calls++
		if len(l.faults) > 0 {
			fault, l.faults = l.faults[0], l.faults[1:]
		}
		if fault != FaultNone && fault != FaultUnknownWritten {
			return
		}
		for i := range batches {
			receipts = append(receipts, l.admit(&batches[i]))
		}
	})
	if err := fault.err(); err != nil {
		return nil, err
	}
	return receipts, nil
}

// Calls tells how often Append came to the point of writing or failing.
func (l *Log) Calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func (f Fault) err() error {
	switch f {
	case FaultUnavailable:
		return fmt.Errorf("%w: test fault", logbuffer.ErrUnavailable)
	case FaultTooLarge:
		return fmt.Errorf("%w: test fault", logbuffer.ErrTooLarge)
	case FaultUnknownLost, FaultUnknownWritten:
		return fmt.Errorf("%w: test fault", logbuffer.ErrUnknown)
	default:
		return nil
	}
}

// admit judges one batch and stores what is new of it.
func (l *Log) admit(b *logbuffer.Batch) logbuffer.Receipt {
	fresh, receipt := l.judge.admit(b)
	if receipt.Code != logbuffer.CodeDone || len(fresh) == 0 {
		return receipt
	}
	receipt.First, receipt.Last = l.store(logbuffer.Batch{
		Source: b.Source, Partition: b.Partition, Sink: b.Sink, Tuples: fresh,
	})
	return receipt
}

// store adds one batch and gives it its offsets.
func (l *Log) store(b logbuffer.Batch) (first, last uint64) {
	data := logbuffer.Encoded(logbuffer.AppendBatch(nil, &b))
	first, last = l.end+1, l.end+uint64(len(b.Tuples))
	var hash uint64
	if n := len(l.stored); n > 0 {
		hash = l.stored[n-1].Hash
	}
	hash = hash*0x9e3779b97f4a7c15 + uint64(crc32.ChecksumIEEE(data)) + last
	stored := logbuffer.Stored{First: first, Last: last, Hash: hash, Boundary: true, Data: data}
	l.stored, l.batches, l.end = append(l.stored, stored), append(l.batches, b), last
	return first, last
}

// Feed stores batches past deduplication, each with the offsets that follow.
func (l *Log) Feed(batches ...logbuffer.Batch) {
	l.change(func() {
		for _, b := range batches {
			l.store(b)
		}
	})
}

// Trim forgets what stands at or below offset n, up to the end of the last batch that lies wholly below.
func (l *Log) Trim(n uint64) {
	l.change(func() {
		for len(l.stored) > 0 && l.stored[0].Last <= n {
			l.trimmed, l.trimHash = l.stored[0].Last, l.stored[0].Hash
			l.stored = l.stored[1:]
		}
	})
}

// Position returns the last position admitted from a source.
func (l *Log) Position(ctx context.Context, source string) (last int64, known bool, err error) {
	if err := ctx.Err(); err != nil {
		return 0, false, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known = l.judge.last[source]
	return last, known, nil
}

// OpenSession opens a client session.
func (l *Log) OpenSession(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
	}
	var id string
	l.change(func() {
		l.sessions++
		id = "session-" + strconv.Itoa(l.sessions)
		l.judge.sessions[id] = true
	})
	return id, nil
}

// Lineage returns the lineage that NewLog was given.
func (l *Log) Lineage() string { return l.lineage }

// End returns the offset of the last tuple.
func (l *Log) End() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Batches returns every batch that was ever stored, in order.
func (l *Log) Batches() []logbuffer.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.batches)
}

// Tuples returns every tuple that was ever stored, in order: index i has offset i+1.
func (l *Log) Tuples() []logbuffer.Tuple {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []logbuffer.Tuple
	for i := range l.batches {
		all = append(all, l.batches[i].Tuples...)
	}
	return all
}

// WaitEnd waits until the log holds a tuple with offset n.
func (l *Log) WaitEnd(ctx context.Context, n uint64) error {
	return l.until(ctx, func() bool { return l.end >= n })
}
