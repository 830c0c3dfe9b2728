package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Spec says how to start a process.
type Spec struct {
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is the whole environment; nothing is inherited.
	Env []string
	// Log is a file to which the process's output is appended; empty: it is thrown away.
	Log string
	// Line, if set, gets each line of standard output instead of Log. It is called from one goroutine at a time.
	Line func(line string)
}

// Process is a running child. Its methods may be called concurrently.
type Process struct {
	command *exec.Cmd
	done    chan struct{}
	err     error // how it ended; valid once done is closed
}

// Start starts a process. It ends with Kill or Stop, by itself, or (on Linux) with this process.
func Start(spec Spec) (*Process, error) {
	p := &Process{command: &exec.Cmd{Path: spec.Path, Args: append([]string{spec.Path}, spec.Args...)}}
	p.command.Env = append([]string{}, spec.Env...)
	p.command.SysProcAttr = childAttributes()
	p.done = make(chan struct{})

	var log *os.File
	if spec.Log != "" {
		var err error
		if log, err = os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return nil, err
		}
		defer log.Close() //nolint:errcheck // the child has its own descriptor
		p.command.Stdout, p.command.Stderr = log, log
	}
	var lines io.ReadCloser
	if spec.Line != nil {
		p.command.Stdout = nil
		var err error
		if lines, err = p.command.StdoutPipe(); err != nil {
			return nil, err
		}
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { p.wait(lines, spec.Line) })
	return p, nil
}

// wait reads the process's lines to their end, then takes its exit status.
func (p *Process) wait(lines io.Reader, line func(string)) {
	if lines != nil {
		scanner := bufio.NewScanner(lines)
		for scanner.Scan() {
			line(scanner.Text())
		}
	}
	p.err = p.command.Wait()
	close(p.done)
}

// Done is closed when the process has ended and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil for exit status 0. It is nil while the process runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Running tells whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ExitCode is the process's exit status, -1 if it runs or was killed.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.command.ProcessState.ExitCode()
}

// PID is the process's number.
func (p *Process) PID() int { return p.command.Process.Pid }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Pause stops the process where it stands (SIGSTOP) until Resume or Kill.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// Stop asks the process to end (SIGTERM) and waits. One that is still there after patience is killed, which is an
// error; otherwise the error is how it ended.
func (p *Process) Stop(patience time.Duration) error {
	p.signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("did not end within %v of SIGTERM", patience)
	}
}

// signal sends a signal; a process that has ended already is no error, since the caller could not know.
func (p *Process) signal(signal os.Signal) {
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("signal %v to our own child %d: %v", signal, p.PID(), err))
	}
}
