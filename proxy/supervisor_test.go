package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/proxytest"
)

func quietSupervisor() *proxy.Supervisor {
	return &proxy.Supervisor{Logger: slog.New(slog.DiscardHandler)}
}

// begin runs stages until stop is called.
func begin(t *testing.T, s *proxy.Supervisor, stages ...proxy.Stage) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, stages...) }()
	synctest.Wait()
	return func() error { cancel(); return <-ended }
}

type runFunc func(ctx context.Context) error

func (f runFunc) Run(ctx context.Context, _ proxy.Outlet) error { return f(ctx) }

func (runFunc) Trouble() error { return errors.New("no good") }

func stage(name string, f runFunc) proxy.Stage {
	return proxy.SinkStage(name, "precise", f, proxytest.NewLog("l").Outlet(name))
}

func TestSupervisorStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		var starts []time.Time
		stop := begin(t, s, stage("a", func(context.Context) error {
			starts = append(starts, time.Now())
			if len(starts)%2 == 0 {
				return nil // ends by itself: no better than an error
			}
			return errors.New("broken")
		}))
		time.Sleep(10 * time.Minute)
		status := s.Status()[0]
		if status.State != "waiting" || status.LastError == "" || status.Restarts != len(starts) ||
			status.Guarantee != "precise" {
			t.Errorf("%+v after %d starts", status, len(starts))
		}
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), `sink "a" fails since`) {
			t.Errorf("ready: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := len(starts); n < 20 || n > 60 {
			t.Errorf("%d starts in ten minutes", n)
		}
		for i := 1; i < len(starts); i++ {
			if gap := starts[i].Sub(starts[i-1]); gap > 30*time.Second || gap < 100*time.Millisecond {
				t.Errorf("wait %d: %s", i, gap)
			}
		}
		if s.Status()[0].State != "idle" || s.Ready() != nil {
			t.Errorf("%+v, %v", s.Status()[0], s.Ready())
		}
	})
}

func TestSupervisorRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		n := 0
		stop := begin(t, s, stage("a", func(ctx context.Context) error {
			if n++; n < 12 {
				return errors.New("broken")
			}
			<-ctx.Done()
			return ctx.Err()
		}))
		proxytest.Until(t, time.Hour, "the start that holds", func() bool { return s.Status()[0].State == "running" })
		if s.Ready() == nil {
			t.Error("ready at once after a minute of failures")
		}
		time.Sleep(time.Minute)
		if err := s.Ready(); err != nil {
			t.Errorf("not ready after a minute of work: %v", err)
		}
		if got := s.Status()[0].Trouble; got != "no good" {
			t.Errorf("trouble %q", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSupervisorHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		starts := 0
		halting := stage("a", func(ctx context.Context) error {
			if starts++; starts == 1 {
				return fmt.Errorf("wrapped: %w", &proxy.Halt{Cause: errors.New("marker is foreign")})
			}
			<-ctx.Done()
			return ctx.Err()
		})
		stop := begin(t, s, halting)
		time.Sleep(time.Hour)
		if starts != 1 || s.Status()[0].State != "halted" || s.Ready() == nil {
			t.Errorf("%d starts, %+v, %v", starts, s.Status()[0], s.Ready())
		}
		_ = stop()
		if s.Ready() != nil {
			t.Errorf("a stage that should not run here: %v", s.Ready())
		}
		stop = begin(t, s, halting) // the next tenure
		time.Sleep(time.Hour)
		if starts != 1 || s.Ready() == nil {
			t.Errorf("%d starts after a new tenure", starts)
		}
		if err := s.Resume("source", "a"); err == nil {
			t.Error("resumed what is not there")
		}
		if err := s.Resume("sink", "a"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if starts != 2 || s.Status()[0].State != "running" || s.Ready() != nil {
			t.Errorf("%d starts, %+v, %v", starts, s.Status()[0], s.Ready())
		}
		if err := s.Resume("sink", "a"); err == nil {
			t.Error("resumed what runs")
		}
		_ = stop()
	})
}

func TestMutantSupervisorRestartsHalted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		s.RestartHalted()
		starts := 0
		stop := begin(t, s, stage("a", func(context.Context) error {
			starts++
			return &proxy.Halt{Cause: errors.New("marker is foreign")}
		}))
		time.Sleep(time.Hour)
		_ = stop()
		if starts == 1 {
			t.Error("a halted stage that starts again went unnoticed")
		}
	})
}

func TestSupervisorStopsAtDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		other, started := false, make(chan struct{})
		err := s.Run(t.Context(),
			stage("a", func(context.Context) error { <-started; return fmt.Errorf("batch: %w", logbuffer.ErrCorrupt) }),
			stage("b", func(ctx context.Context) error { close(started); <-ctx.Done(); other = true; return nil }))
		if !errors.Is(err, logbuffer.ErrCorrupt) || !other {
			t.Errorf("error %v, the other stage stopped: %v", err, other)
		}
	})
}

func TestSupervisorRefusesTheSameNameTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
		if err := s.Run(t.Context(), stage("a", wait), stage("a", wait)); err == nil {
			t.Error("two of a name in one call")
		}
		stop := begin(t, s, stage("a", wait))
		if err := s.Run(t.Context(), stage("a", wait)); err == nil {
			t.Error("two of a name at once")
		}
		_ = stop()
		stop = begin(t, s, stage("a", wait))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A sink that reads and does not acknowledge, and a source whose append hangs, are no progress; idle ones are well.
func TestSupervisorSeesStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietSupervisor()
		log := proxytest.NewLog("l")
		out := log.Outlet("a")
		proceed := make(chan struct{})
		sink := sinkFunc(func(ctx context.Context, out proxy.Outlet) error {
			for after := uint64(0); ; after++ {
				if _, err := out.Read(ctx, after, 1); err != nil {
					return err
				}
				select {
				case <-proceed:
				case <-ctx.Done():
					return nil
				}
				if err := out.Ack(ctx, logbuffer.Ack{UpTo: after + 1}); err != nil {
					return err
				}
			}
		})
		appends := make(chan struct{})
		source := sourceFunc(func(ctx context.Context, in proxy.Intake) error {
			for {
				select {
				case <-appends:
				case <-ctx.Done():
					return nil
				}
				if _, err := in.Append(ctx, logbuffer.Batch{Tuples: make([]logbuffer.Tuple, 1)}); err != nil {
					return err
				}
			}
		})
		stop := begin(t, s, proxy.SinkStage("a", "", sink, out), proxy.SourceStage("b", "", source, log))
		time.Sleep(time.Hour)
		if err := s.Ready(); err != nil {
			t.Errorf("nothing to do: %v", err)
		}
		log.SetFull(true)
		appends <- struct{}{}
		time.Sleep(29 * time.Second)
		if err := s.Ready(); err != nil {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), `source "b" got nothing done`) {
			t.Errorf("source stalls: %v", err)
		}
		log.SetFull(false)
		synctest.Wait()
		if err := s.Ready(); err != nil {
			t.Errorf("source goes on: %v", err)
		}
		time.Sleep(time.Minute)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), `sink "a" got nothing done`) {
			t.Errorf("sink stalls: %v", err)
		}
		proceed <- struct{}{}
		synctest.Wait()
		if err := s.Ready(); err != nil {
			t.Errorf("sink goes on: %v", err)
		}
		if got := s.Status(); got[0].Done != 1 || got[1].Done != 1 {
			t.Errorf("%+v", got)
		}
		_ = stop()
	})
}

type sinkFunc func(ctx context.Context, out proxy.Outlet) error

func (f sinkFunc) Run(ctx context.Context, out proxy.Outlet) error { return f(ctx, out) }

type sourceFunc func(ctx context.Context, in proxy.Intake) error

func (f sourceFunc) Run(ctx context.Context, in proxy.Intake) error { return f(ctx, in) }
