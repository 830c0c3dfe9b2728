package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"ftproxy/logbuffer"
)

// Supervisor runs stages and starts them again when they fail, with growing waits. Its fields are set before first use;
// all methods may be called concurrently. One Supervisor serves a process: listening sources run in one call of Run
// that lasts as long as the process, polling sources and sinks in one call a tenure.
//
//	idle ──Run──▶ running ──error──▶ waiting ──▶ running …
//	  ▲              │  └───Halt───▶ halted ──Resume──▶ running
//	  └─context ends─┘
type Supervisor struct {
	// Logger is told of every failure and halt.
	Logger *slog.Logger
	// Wait is the wait before a stage starts again; its zero value is Backoff's.
	Wait Backoff
	// StallAfter is how long a stage may get nothing done of what it owes before Ready says so; 0: 30 s.
	StallAfter time.Duration

	restartHalted bool // mutant: a halt is an error like others

	mu      sync.Mutex
	entries []*entry
}

// Status is what is known of one stage. Times are this node's wall clock.
type Status struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// State is "running", "waiting" (to start again), "halted" (until a human resumes it) or "idle" (runs on the leader
	// only, and this node does not lead).
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Guarantee string    `json:"guarantee"`
	// Trouble is what keeps a running stage from getting on right now, in its own words.
	Trouble string `json:"trouble,omitempty"`
	// LastError is why it last stopped, at ErrorTime.
	LastError string    `json:"last_error,omitempty"`
	ErrorTime time.Time `json:"error_time,omitzero"`
	Restarts  int       `json:"restarts"`
	// Done counts tuples appended by a source, offsets acknowledged by a sink, since the stage was last set up.
	Done uint64 `json:"done"`
	// StuckSeconds is for how long the stage has owed something and got nothing done.
	StuckSeconds float64 `json:"stuck_seconds,omitempty"`
}

// entry is a stage with its state. It outlives the call of Run, so that a halt holds over changes of leadership.
type entry struct {
	stage  Stage
	active bool // within a call of Run
	status Status
	resume chan struct{} // closed by Resume
	failed time.Time     // since when it has not been running well; zero if it is
}

// Run runs the stages until ctx ends and all of them have returned. It returns nil then. It returns early, with all
// stages stopped, only if one found damage (logbuffer.ErrCorrupt): the process must end. A stage that is already
// running under the same name is an error.
func (s *Supervisor) Run(ctx context.Context, stages ...Stage) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	entries, err := s.enlist(stages)
	if err != nil {
		return err
	}
	var damage error
	var once sync.Once
	var running sync.WaitGroup
	for _, e := range entries {
		running.Go(func() {
			if err := s.keep(ctx, e); err != nil {
				once.Do(func() { damage = err })
				cancel(err)
			}
		})
	}
	running.Wait()
	return damage
}

// enlist sets the stages up, or refuses them all.
func (s *Supervisor) enlist(stages []Stage) ([]*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*entry
	for _, stage := range stages {
		e := s.find(stage.Kind, stage.Name)
		if e != nil && (e.active || slices.Contains(found, e)) {
			return nil, fmt.Errorf("%s %q is running already: names must be unique", stage.Kind, stage.Name)
		}
		if e == nil {
			e = &entry{status: Status{Name: stage.Name, Kind: stage.Kind, State: "idle", Since: time.Now()}}
			s.entries = append(s.entries, e)
		}
		e.stage = stage
		found = append(found, e)
	}
	for _, e := range found {
		e.active, e.status.Guarantee = true, e.stage.Guarantee
		if e.stage.progress == nil {
			e.stage.progress, e.stage.trouble = &progress{}, func() error { return nil }
		}
	}
	return found, nil
}

func (s *Supervisor) find(kind, name string) *entry {
	for _, e := range s.entries {
		if e.status.Kind == kind && e.status.Name == name {
			return e
		}
	}
	return nil
}

// keep runs one stage, again and again. It returns an error only for damage.
func (s *Supervisor) keep(ctx context.Context, e *entry) error {
	defer s.do(func() {
		e.active, e.failed = false, time.Time{}
		if e.status.State != "halted" {
			e.enter("idle")
		}
	})
	wait := s.Wait
	for s.waitWhileHalted(ctx, e) {
		started := time.Now()
		s.do(func() { e.enter("running") })
		err := e.stage.Run(ctx)
		if errors.Is(err, logbuffer.ErrCorrupt) {
			s.do(func() { e.fail(err, "halted") })
			return fmt.Errorf("%s %q: %w", e.stage.Kind, e.stage.Name, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = errors.New("stopped by itself")
		}
		if _, halted := errors.AsType[*Halt](err); halted && !s.restartHalted {
			s.Logger.ErrorContext(ctx, "stage halted, a human has to decide", slog.String("kind", e.stage.Kind),
				slog.String("name", e.stage.Name), slog.Any("error", err))
			s.do(func() { e.fail(err, "halted"); e.resume = make(chan struct{}) })
			continue
		}
		if ran := time.Since(started); ran > s.stallAfter() {
			wait.Reset()
			s.do(func() { e.failed = time.Time{} })
		}
		s.Logger.WarnContext(ctx, "stage failed, it will be started again", slog.String("kind", e.stage.Kind),
			slog.String("name", e.stage.Name), slog.Any("error", err))
		s.do(func() { e.fail(err, "waiting"); e.status.Restarts++ })
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
	return nil
}

// do runs f under the lock.
func (s *Supervisor) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *Supervisor) stallAfter() time.Duration {
	if s.StallAfter <= 0 {
		return 30 * time.Second
	}
	return s.StallAfter
}

func (e *entry) enter(state string) {
	if e.status.State != state {
		e.status.State, e.status.Since = state, time.Now()
	}
}

func (e *entry) fail(err error, state string) {
	e.enter(state)
	e.status.LastError, e.status.ErrorTime = err.Error(), time.Now()
	if e.failed.IsZero() {
		e.failed = time.Now()
	}
}

// waitWhileHalted returns true as soon as the stage may run, false if ctx ended.
func (s *Supervisor) waitWhileHalted(ctx context.Context, e *entry) bool {
	var resume chan struct{}
	s.do(func() { resume = e.resume })
	if resume == nil {
		return ctx.Err() == nil
	}
	select {
	case <-resume:
		s.do(func() { e.resume, e.failed = nil, time.Time{} })
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Resume lets a halted stage run again: a human has decided.
func (s *Supervisor) Resume(kind, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.find(kind, name)
	if e == nil {
		return fmt.Errorf("no %s is called %q", kind, name)
	}
	if e.status.State != "halted" || e.resume == nil {
		return fmt.Errorf("%s %q is not halted but %s", kind, name, e.status.State)
	}
	close(e.resume)
	e.enter("idle")
	return nil
}

// Status returns the state of every stage that ever ran, in the order in which they first ran.
func (s *Supervisor) Status() []Status {
	now := time.Now()
	var all []Status
	for _, e := range s.snapshot() {
		status := e.status
		stuck, done := e.stage.progress.stuck(now)
		status.Done = done
		if e.active {
			status.StuckSeconds = stuck.Seconds()
		}
		if err := e.stage.trouble(); err != nil && status.State == "running" {
			status.Trouble = err.Error()
		}
		all = append(all, status)
	}
	return all
}

// snapshot copies the entries, so that stages are asked without the lock.
func (s *Supervisor) snapshot() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []entry
	for _, e := range s.entries {
		all = append(all, *e)
	}
	return all
}

// Ready returns nil if every stage that should run here does, and gets done what it owes; else it says which does not.
func (s *Supervisor) Ready() error {
	now := time.Now()
	var reasons []error
	for _, e := range s.snapshot() {
		if err := e.ready(now, s.stallAfter()); e.active && err != nil {
			reasons = append(reasons, fmt.Errorf("%s %q %w", e.stage.Kind, e.stage.Name, err))
		}
	}
	return errors.Join(reasons...)
}

func (e *entry) ready(now time.Time, limit time.Duration) error {
	if e.status.State == "halted" {
		return fmt.Errorf("is halted: %s", e.status.LastError)
	}
	runsWell := e.failed.IsZero() || e.status.State == "running" && now.Sub(e.status.Since) > limit
	if !runsWell && now.Sub(e.failed) > limit {
		return fmt.Errorf("fails since %s: %s", e.failed.Format(time.RFC3339), e.status.LastError)
	}
	if stuck, _ := e.stage.progress.stuck(now); stuck > limit {
		return fmt.Errorf("got nothing done for %s", stuck.Round(time.Second))
	}
	return nil
}
