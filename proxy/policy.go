package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ftproxy/logbuffer"
)

// Policy says what happens when a sink leaves more than MaxBytes behind it.
//
//	Outlet ─▶ sink ─▶ downstream            while it keeps up
//	Outlet ─▶ Ack(dropped | dead letters)   while it is behind: the sink is stopped, the oldest tuples are given up
//	                                        until nine tenths of MaxBytes are left, the sink starts again
//
// The sink never runs while tuples are given up, so that a tuple is either delivered or given up, except for a delivery
// whose outcome was unknown when the sink was stopped. A transactional Kafka sink must not have a policy: its marker
// would fall behind the acknowledged offset.
type Policy struct {
	// Over is "wait" (or empty: the buffer fills up and the sources wait), "drop" or "dead-letter".
	Over string
	// MaxBytes is what may be retained for the sink.
	MaxBytes int64
	// Retained returns the bytes that are retained for the sink now.
	Retained func() int64
	// Every is how often Retained is looked at; 0: each second.
	Every time.Duration
	// Logger is told what is given up.
	Logger *slog.Logger
}

// Wrap returns sink with the policy applied, or an error that names what is wrong with the policy.
func (p Policy) Wrap(sink Sink) (Sink, error) {
	switch p.Over {
	case "", "wait":
		return sink, nil
	case "drop", "dead-letter":
	default:
		return nil, fmt.Errorf("sink policy %q: unknown; use wait, drop or dead-letter", p.Over)
	}
	if p.MaxBytes <= 0 || p.Retained == nil || p.Logger == nil {
		return nil, fmt.Errorf("sink policy %q: it needs a limit in bytes above 0", p.Over)
	}
	if p.Every <= 0 {
		p.Every = time.Second
	}
	return &shedder{Policy: p, sink: sink}, nil
}

// shedder is a sink with a policy other than wait.
type shedder struct {
	Policy
	sink Sink
}

// Trouble is the sink's own, if it tells of any.
func (s *shedder) Trouble() error { return troubleOf(s.sink)() }

var errBehind = errors.New("the sink leaves too much behind it")

// Run runs the sink and stops it whenever it is too far behind.
func (s *shedder) Run(ctx context.Context, out Outlet) error {
	for {
		if err := s.shed(ctx, out); err != nil {
			return err
		}
		err := s.runWhileBelow(ctx, out)
		if !errors.Is(err, errBehind) {
			return err
		}
	}
}

// runWhileBelow runs the sink until it ends, or until it was stopped for being behind: errBehind.
func (s *shedder) runWhileBelow(ctx context.Context, out Outlet) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	ended := make(chan error, 1)
	running.Go(func() { ended <- s.sink.Run(ctx, out) })
	defer running.Wait()
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
			if s.Retained() <= s.MaxBytes {
				continue
			}
			cancel(errBehind)
			err := <-ended
			if _, halted := errors.AsType[*Halt](err); halted || errors.Is(err, logbuffer.ErrCorrupt) {
				return err
			}
			return errBehind
		}
	}
}

// shed gives up the oldest tuples if more than the limit is retained.
func (s *shedder) shed(ctx context.Context, out Outlet) error {
	retained := s.Retained()
	if retained <= s.MaxBytes {
		return nil
	}
	cursor, err := out.Cursor(ctx)
	if err != nil {
		return err
	}
	after, surplus, given := cursor.Acked, retained-s.MaxBytes/10*9, 0
	for surplus > 0 && after < cursor.End {
		batches, err := out.Read(ctx, after, 256<<10)
		if err != nil {
			return err
		}
		ack, bytes, err := s.giveUp(batches, after)
		if err != nil {
			return err
		}
		if err := out.Ack(ctx, ack); err != nil {
			return err
		}
		after, surplus, given = ack.UpTo, surplus-bytes, given+ack.Dropped+len(ack.Dead)
	}
	s.Logger.WarnContext(ctx, "sink is too far behind, tuples given up by policy",
		slog.String("reader", out.Reader()), slog.String("policy", s.Over), slog.Int("tuples", given),
		slog.Int64("retained_bytes", retained), slog.Int64("limit_bytes", s.MaxBytes))
	return nil
}

// giveUp makes the acknowledgement of all that the batches hold above after, and counts their encoded bytes.
func (s *shedder) giveUp(batches []logbuffer.Stored, after uint64) (ack logbuffer.Ack, bytes int64, err error) {
	for _, stored := range batches {
		batch, err := stored.Decode()
		if err != nil {
			return ack, 0, err
		}
		bytes += int64(len(stored.Data))
		ack.UpTo = stored.Last
		for i := range batch.Tuples {
			offset := stored.First + uint64(i)
			if offset <= after {
				continue
			}
			if s.Over == "drop" {
				ack.Dropped++
				continue
			}
			ack.Dead = append(ack.Dead, logbuffer.Letter{
				From: offset, Reason: "sink too far behind (policy dead-letter)", Source: batch.Source,
				Partition: batch.Partition, Sink: batch.Sink, Tuple: batch.Tuples[i],
			})
		}
	}
	return ack, bytes, nil
}
