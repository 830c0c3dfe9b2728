package fleet_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ftproxy/integration/fleet"
)

func shell(t *testing.T, script string, line func(string)) *fleet.Process {
	t.Helper()
	p, err := fleet.Start(fleet.Spec{
		Path: "/bin/sh",
		Args: []string{"-c", script},
		Log:  filepath.Join(t.TempDir(), "log"),
		Line: line,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := fleet.Poll(ctx, what, 5*time.Millisecond, done); err != nil {
		t.Fatal(err)
	}
}

func TestProcessLinesAndExitCode(t *testing.T) {
	var lines []string
	p := shell(t, "echo one; echo two; exit 7", func(line string) { lines = append(lines, line) })
	<-p.Done()
	if got := strings.Join(lines, " "); got != "one two" || p.ExitCode() != 7 || p.Err() == nil || p.Running() {
		t.Fatalf("lines %q, exit code %d, error %v", got, p.ExitCode(), p.Err())
	}
}

func TestPausedProcessSaysNothingUntilResumed(t *testing.T) {
	var mu sync.Mutex
	count := 0
	lines := func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
	p := shell(t, "while :; do echo x; sleep 0.01; done", func(string) {
		mu.Lock()
		defer mu.Unlock()
		count++
	})
	within(t, "a line", func() bool { return lines() > 0 })
	p.Pause()
	within(t, "the kernel to say that it is stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	before := lines()
	p.Resume()
	within(t, "further lines", func() bool { return lines() > before+2 })
	p.Kill()
	if p.Running() || p.Err() == nil {
		t.Fatal("killed, but no end")
	}
	p.Kill() // again: nothing to do
}

func TestStopKillsWhoDoesNotListen(t *testing.T) {
	ready := make(chan struct{})
	p := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done", func(string) { close(ready) })
	<-ready
	if err := p.Stop(50 * time.Millisecond); err == nil || p.Running() {
		t.Fatalf("error %v, running %v", err, p.Running())
	}
	listening := make(chan struct{})
	polite := shell(t, "trap 'exit 0' TERM; echo; while :; do sleep 0.01; done", func(string) { close(listening) })
	<-listening
	if err := polite.Stop(5 * time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsInherited(t *testing.T) {
	t.Setenv("FTPROXY_NAME", "mine")
	var got string
	p := shell(t, `echo "[$FTPROXY_NAME]"`, func(line string) { got = line })
	<-p.Done()
	if got != "[]" {
		t.Fatal(got)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := fleet.FreePorts(t.Context(), 20)
	if err != nil || len(ports) != 20 {
		t.Fatal(ports, err)
	}
	seen := make(map[int]bool)
	for _, port := range ports {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fleet.LoopbackAddr(port))
		if err != nil || seen[port] {
			t.Fatalf("port %d: %v", port, err)
		}
		seen[port] = true
		t.Cleanup(func() {
			if err := listener.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPollSaysWhatItWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := fleet.Poll(ctx, "spring", time.Millisecond, func() bool { return false })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "spring") {
		t.Fatal(err)
	}
}
