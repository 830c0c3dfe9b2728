package replica

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"ftproxy/logbuffer"
)

// Append makes the batches durable on a quorum, as one command of one entry, and returns a receipt each; it implements
// proxy.Intake. It waits while the buffer is over its limit, the disk is nearly full, or too much is in flight. Errors
// are of class logbuffer.ErrUnavailable, ErrTooLarge or ErrUnknown.
func (n *Node) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	size, err := n.measure(batches)
	if err != nil {
		return nil, err
	}
	if err = n.waitForRoom(ctx); err != nil {
		return nil, err
	}
	if err = n.lane.reserve(ctx, size); err != nil {
		return nil, err
	}
	body, err := appendAppendBody(make([]byte, 0, size), batches)
	if err != nil {
		n.lane.flight.give(flightCost(size))
		return nil, fmt.Errorf("%w: never: %w", logbuffer.ErrTooLarge, err)
	}
	v, err := n.lane.proposeReserved(ctx, kindAppend, body, size)
	if err != nil {
		return nil, err
	}
	if v.Code != VerdictDone {
		return nil, fmt.Errorf("%w: %s", logbuffer.ErrUnavailable, v.Reason)
	}
	return v.Receipts, nil
}

// measure returns about the encoded size of batches, and refuses what is too large.
func (n *Node) measure(batches []logbuffer.Batch) (int, error) {
	const perTuple, perBatch = 48, 256
	tupleBytes := n.config.Limits.TupleBytes
	total := 0
	for i := range batches {
		b := &batches[i]
		total += perBatch + len(b.Source) + len(b.Sink) + len(b.IDs)*len(logbuffer.ID{})
		for j := range b.Tuples {
			t := &b.Tuples[j]
			size := len(t.Key) + len(t.Value)
			for _, h := range t.Headers {
				size += len(h.Key) + len(h.Value) + perTuple/4
			}
			if size > tupleBytes {
				return 0, fmt.Errorf("%w: tuple of %d bytes, the limit is %d: raise the tuple limit",
					logbuffer.ErrTooLarge, size, tupleBytes)
			}
			total += size + perTuple
		}
	}
	if most := max(entryBytes, tupleBytes+commandOverhead); total > most {
		return 0, fmt.Errorf("%w: %d bytes at once, the limit is %d: send less at once", logbuffer.ErrTooLarge, total, most)
	}
	return total, nil
}

// waitForRoom returns when a tuple may be taken in.
func (n *Node) waitForRoom(ctx context.Context) error {
	if err := n.waitForStart(ctx); err != nil {
		return err
	}
	for {
		var bytes uint64
		changed := n.fsm.watch(func(s *State) { bytes = s.Cursors(bufferIn).Bytes })
		if n.stopping.Load() {
			return fmt.Errorf("%w: the node is stopping", logbuffer.ErrUnavailable)
		}
		if bytes < uint64(n.config.Limits.BufferBytes) {
			return n.waitForIntake(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: the buffer holds %d MiB, its limit: %w", logbuffer.ErrUnavailable, bytes>>20,
				context.Cause(ctx))
		case <-n.ctx.Done():
			return fmt.Errorf("%w: the node has stopped", logbuffer.ErrUnavailable)
		}
	}
}

// waitForIntake returns when neither a change of readers, on the leader, nor the disk stands against more tuples.
func (n *Node) waitForIntake(ctx context.Context) error {
	for {
		next := n.turn.next()
		why := n.holding()
		if why == "" {
			return n.waitForDisk(ctx)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", logbuffer.ErrUnavailable, why, context.Cause(ctx))
		case <-n.ctx.Done():
			return fmt.Errorf("%w: the node has stopped", logbuffer.ErrUnavailable)
		}
	}
}

// diskPoll is the time between two looks at a disk that is nearly full.
const diskPoll = 250 * time.Millisecond

// waitForDisk returns when there is free space.
func (n *Node) waitForDisk(ctx context.Context) error {
	for said := false; ; said = true {
		err := n.store.space.check()
		if err == nil {
			return nil
		}
		if !said {
			n.log.WarnContext(ctx, "tuples wait for free space", slog.Any("error", err))
		}
		select {
		case <-time.After(diskPoll):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, err)
		case <-n.ctx.Done():
			return fmt.Errorf("%w: the node has stopped", logbuffer.ErrUnavailable)
		}
	}
}

// waitForStart returns when Raft runs.
func (n *Node) waitForStart(ctx context.Context) error {
	select {
	case <-n.started:
		return nil
	case <-n.ctx.Done():
		return fmt.Errorf("%w: the node has stopped", logbuffer.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w: %w", logbuffer.ErrUnavailable, n.Ready(), context.Cause(ctx))
	}
}

// propose sends a command through the node's lane.
func (n *Node) propose(ctx context.Context, k kind, body []byte) (Verdict, error) {
	if err := n.waitForStart(ctx); err != nil {
		return Verdict{}, err
	}
	if err := n.readable(k); err != nil {
		return Verdict{}, err
	}
	v, err := n.lane.propose(ctx, k, body)
	if err == nil && v.Code == VerdictRefused {
		err = fmt.Errorf("%w: %s", logbuffer.ErrUnavailable, v.Reason)
	}
	return v, err
}

// OpenSession gives a client a session id for numbering its tuples; it implements proxy.Intake.
func (n *Node) OpenSession(ctx context.Context) (string, error) {
	v, err := n.propose(ctx, kindOpenSession, appendOpenSessionBody(nil, newNonce()))
	return v.SessionID, err
}

// Position returns the last position admitted from a source, judged behind a Raft barrier; it implements
// proxy.Intake. On a follower the leader is asked.
func (n *Node) Position(ctx context.Context, source string) (last int64, known bool, err error) {
	if err = n.waitForStart(ctx); err != nil {
		return 0, false, err
	}
	for {
		next := n.turn.next()
		leader := n.leaderID()
		switch {
		case leader == n.identity().id:
			last, known, err = n.position(ctx, source)
		case leader != "":
			reign, cancel := n.whileLeads(ctx, leader)
			var a answer
			a, err = n.ask(reign, leader, question{Ask: askPosition, Source: source})
			cancel()
			last, known = a.Position, a.Known
		default:
			err = errNotLeading
		}
		if err == nil {
			return last, known, nil
		}
		retry, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		select {
		case <-next:
		case <-retry.Done():
		case <-n.ctx.Done():
		}
		cancel()
		if n.ctx.Err() != nil {
			return 0, false, fmt.Errorf("%w: the node has stopped", logbuffer.ErrUnavailable)
		}
		if ctx.Err() != nil {
			return 0, false, fmt.Errorf("%w: no leader to ask for a position: %w: %w", logbuffer.ErrUnavailable, err,
				context.Cause(ctx))
		}
	}
}

// Lineage implements proxy.Intake; it is empty until the node has found its group.
func (n *Node) Lineage() string { return n.identity().lineage }

// Letters returns up to limit unresolved dead letters with offsets above after, in order, as this node knows them.
func (n *Node) Letters(after uint64, limit int) ([]logbuffer.Letter, error) {
	if n.raft() == nil {
		return nil, fmt.Errorf("%w: %w", logbuffer.ErrUnavailable, n.Ready())
	}
	var letters []logbuffer.Letter
	n.fsm.view(func(s *State) { letters = s.Letters(after, limit) })
	return letters, nil
}

// Requeue puts a dead letter back into its reader's buffer, past dedup. If there is no such letter the error is of
// class logbuffer.ErrUnavailable and says so.
func (n *Node) Requeue(ctx context.Context, offset uint64) error {
	_, err := n.propose(ctx, kindRequeue, appendOffsetBody(nil, offset))
	return err
}

// DropLetter discards a dead letter. Errors: as for Requeue.
func (n *Node) DropLetter(ctx context.Context, offset uint64) error {
	_, err := n.propose(ctx, kindDrop, appendOffsetBody(nil, offset))
	return err
}
