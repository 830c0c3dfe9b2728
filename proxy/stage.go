package proxy

import (
	"context"
	"sync"
	"time"

	"ftproxy/logbuffer"
)

// Stage is one thing that a Supervisor runs.
type Stage struct {
	// Name is unique among the stages of its kind.
	Name string
	// Kind is "source" or "sink".
	Kind string
	// Guarantee says in words what holds at this edge, and on what condition.
	Guarantee string
	// Run is the stage's work until its context ends.
	Run func(ctx context.Context) error

	progress *progress
	trouble  func() error
}

// SourceStage makes a stage of a source that appends to in.
//
//	upstream ─▶ source ─Append─▶ IN
//	    ▲          │
//	    └── ack ───┘ once Append returned
//
// If the source has a method Trouble() error, what it returns is shown as the present trouble of a running stage.
func SourceStage(name, guarantee string, source Source, in Intake) Stage {
	p := &progress{}
	return Stage{
		Name: name, Kind: "source", Guarantee: guarantee, progress: p, trouble: troubleOf(source),
		Run: func(ctx context.Context) error { return source.Run(ctx, watchedIntake{Intake: in, progress: p}) },
	}
}

// SinkStage makes a stage of a sink that reads from out.
//
//	IN or OUT ─Read─▶ sink ─▶ downstream
//	    ▲               │
//	    └────── Ack ────┘ once downstream has it for good
//
// Trouble: as for SourceStage.
func SinkStage(name, guarantee string, sink Sink, out Outlet) Stage {
	p := &progress{}
	return Stage{
		Name: name, Kind: "sink", Guarantee: guarantee, progress: p, trouble: troubleOf(sink),
		Run: func(ctx context.Context) error {
			p.forget()
			return sink.Run(ctx, watchedOutlet{Outlet: out, progress: p})
		},
	}
}

func troubleOf(stage any) func() error {
	if t, ok := stage.(interface{ Trouble() error }); ok {
		return t.Trouble
	}
	return func() error { return nil }
}

// progress knows since when a stage owes something without any of it getting done.
type progress struct {
	mu    sync.Mutex
	calls int    // appends in flight
	read  uint64 // highest offset handed to a sink
	acked uint64 // highest offset acknowledged by it
	done  uint64 // tuples appended, or offsets acknowledged
	since time.Time
}

func (p *progress) owes() bool { return p.calls > 0 || p.read > p.acked }

// update runs f; moved tells whether that got something done.
func (p *progress) update(f func() (moved bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	owed := p.owes()
	if f() || !owed {
		p.since = time.Now()
	}
}

// forget drops what an earlier run of a sink had read.
func (p *progress) forget() {
	p.update(func() bool { p.read = p.acked; return false })
}

// stuck returns for how long the stage has owed something, 0 if it owes nothing, and what it got done in all.
func (p *progress) stuck(now time.Time) (time.Duration, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.owes() {
		return 0, p.done
	}
	return now.Sub(p.since), p.done
}

type watchedIntake struct {
	Intake
	progress *progress
}

func (w watchedIntake) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	w.progress.update(func() bool { w.progress.calls++; return false })
	receipts, err := w.Intake.Append(ctx, batches...)
	w.progress.update(func() bool {
		w.progress.calls--
		for i := range receipts {
			w.progress.done += uint64(receipts[i].Admitted + receipts[i].Duplicates)
		}
		return err == nil
	})
	return receipts, err
}

type watchedOutlet struct {
	Outlet
	progress *progress
}

func (w watchedOutlet) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	w.progress.update(func() bool {
		if w.progress.read == 0 { // the first read shows where the reader stands
			w.progress.read, w.progress.acked = after, after
		}
		return false
	})
	batches, err := w.Outlet.Read(ctx, after, maxBytes)
	if len(batches) > 0 {
		w.progress.update(func() bool {
			w.progress.read = max(w.progress.read, batches[len(batches)-1].Last)
			return false
		})
	}
	return batches, err
}

func (w watchedOutlet) Ack(ctx context.Context, ack logbuffer.Ack) error {
	err := w.Outlet.Ack(ctx, ack)
	if err == nil {
		w.progress.update(func() bool {
			moved := ack.UpTo > w.progress.acked
			if moved {
				w.progress.done += ack.UpTo - w.progress.acked
				w.progress.acked = ack.UpTo
			}
			return moved
		})
	}
	return err
}
