package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"time"
)

// errUnreachable is a check that found an endpoint out of reach.
var errUnreachable = errors.New("not every endpoint is as it should be")

// checkCmd is `ftproxy check`: it judges the configuration, reaches every endpoint, and says in words what is
// guaranteed and on what conditions. It starts nothing and changes nothing.
type checkCmd struct {
	Timeout time.Duration `default:"20s" help:"The longest wait for one endpoint."`
}

// Run prints to standard output.
func (k *checkCmd) Run(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	c, err := load(os.Environ(), host)
	if err != nil {
		return err
	}
	return k.check(ctx, c, os.Stdout)
}

func (k *checkCmd) check(ctx context.Context, c *config, w io.Writer) error {
	sources, sinks, err := wire(c, slog.New(slog.DiscardHandler), func(string) int64 { return 0 })
	if err != nil {
		return err
	}
	p := &report{w: w}
	p.line("%s on node %s: %s", c.Name, c.Node, c.group())
	failed := 0
	for _, s := range sources {
		failed += k.one(ctx, p, "source "+s.name, s)
	}
	for _, s := range sinks {
		failed += k.one(ctx, p, "sink "+s.reader.Name, s)
	}
	k.peers(ctx, p, c)
	p.line("")
	for _, line := range c.promise() {
		p.line("%s", line)
	}
	switch {
	case p.err != nil:
		return p.err
	case failed > 0:
		return fmt.Errorf("%w: %d of %d failed", errUnreachable, failed, len(sources)+len(sinks))
	}
	return nil
}

// one checks a source or sink and returns the number of failures.
func (k *checkCmd) one(ctx context.Context, p *report, name string, what port) int {
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	p.line("")
	lines, err := what.Check(ctx)
	for _, l := range lines {
		p.line("  %s", l)
	}
	if err != nil {
		p.line("  %s: FAILED: %v", name, err)
		return 1
	}
	return 0
}

// peers tells which other nodes answer. One that does not is no failure: it may not have been started yet.
func (k *checkCmd) peers(ctx context.Context, p *report, c *config) {
	for i, name := range slices.Sorted(maps.Keys(c.peers)) {
		if i == 0 {
			p.line("")
		}
		if name == c.Node {
			continue
		}
		dialCtx, cancel := context.WithTimeout(ctx, k.Timeout)
		conn, err := (&net.Dialer{}).DialContext(dialCtx, "tcp", c.peers[name])
		cancel()
		if err != nil {
			p.line("  peer %s: does not answer (yet): %v", name, err)
			continue
		}
		_ = conn.Close()
		p.line("  peer %s: %s can be reached", name, c.peers[name])
	}
}

// group words how many nodes there are.
func (c *config) group() string {
	if len(c.peers) < 2 {
		return "alone; what is acknowledged survives a crash of the process, not the loss of its disk"
	}
	n := len(c.peers)
	return fmt.Sprintf("one of %d; what is acknowledged survives the loss of %d", n, (n-1)/2)
}

// report writes lines and keeps the first error.
type report struct {
	w   io.Writer
	err error
}

func (r *report) line(format string, args ...any) {
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.w, format+"\n", args...)
	}
}
