package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ftproxy/integration/checker"
)

// printer writes lines that begin with the time since the demo's start.
type printer struct {
	mu      sync.Mutex
	out     io.Writer
	started time.Time
}

func newPrinter(out io.Writer) *printer { return &printer{out: out, started: time.Now()} }

func (p *printer) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Nobody is there to be told that the terminal is gone.
	_, _ = fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.started).Seconds(), fmt.Sprintf(format, args...))
}

// showProgress says every second how far the tuples are, until ctx ends.
func (d *demo) showProgress(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := d.record.counts()
		d.out.say("sent %7s  replayed %6s  delivered %7s  redelivered %5s",
			thousands(c.sent), thousands(c.replayed()), thousands(c.delivered), thousands(c.redelivered))
	}
}

// judge reads what the downstream stored and prints the verdict.
func (d *demo) judge() error {
	// The downstream's file is complete only once nobody writes to it.
	d.killAll()
	verdict, err := judgeFile(d.tuplesFile(), d.cmd.Tuples)
	if err != nil {
		return err
	}
	count := d.record.counts()
	longest := time.Duration(0)
	if len(d.record.gaps) > 0 {
		longest = slices.Max(d.record.gaps)
	}
	names := []string{"sent", "replayed", "delivered", "redelivered", "lost", "duplicated", "reordered", "longest gap"}
	values := []string{
		thousands(verdict.Sent), thousands(count.replayed()), thousands(verdict.Delivered), thousands(count.redelivered),
		thousands(verdict.Lost), thousands(verdict.Duplicated), thousands(verdict.Reordered + verdict.Torn),
		longest.Round(time.Millisecond).String(),
	}
	d.out.say("leader killed %d times, upstream and downstream crashed %d times, downstream stalled %d times\n",
		d.kills, d.crashes, d.downstreamStalls)
	_, _ = io.WriteString(d.out.out, table(names, values))
	_, _ = fmt.Fprintf(d.out.out, "\nreplayed: sent again by the upstream; redelivered: dropped by the downstream, "+
		"by its key; longest gap: without a delivery, after a kill\n")
	for _, note := range verdict.Notes {
		_, _ = fmt.Fprintln(d.out.out, "  "+note)
	}
	if !verdict.Clean() {
		return fmt.Errorf("%w: %v", errVerdict, verdict)
	}
	_, _ = fmt.Fprintln(d.out.out, "\nverdict: every tuple arrived exactly once and in order")
	return nil
}

// judgeFile compares a downstream's file with tuples 1 to sent.
func judgeFile(name string, sent int64) (checker.Verdict, error) {
	file, err := os.Open(name)
	if err != nil {
		return checker.Verdict{}, err
	}
	defer file.Close() //nolint:errcheck // only read
	check := checker.New()
	check.Sent(demoStream, sent)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		_, payload, _ := bytes.Cut(lines.Bytes(), []byte("\t"))
		check.Seen(payload)
	}
	return check.Verdict(), lines.Err()
}

// explain adds to an error what the replicas said last, since their logs are about to go.
func (d *demo) explain(err error) error {
	if d.out == nil || errors.Is(err, context.Canceled) {
		return err
	}
	for _, r := range d.fleet.Replicas {
		_, _ = fmt.Fprintf(d.out.out, "last lines of %s:\n%s\n", r.Node, r.Tail(10))
	}
	return err
}

// table prints one row of values under their names.
func table(names, values []string) string {
	var head, line, row strings.Builder
	for i, name := range names {
		width := max(len(name), len(values[i]))
		fmt.Fprintf(&head, " %*s |", width, name)
		line.WriteString(strings.Repeat("-", width+2) + "|")
		fmt.Fprintf(&row, " %*s |", width, values[i])
	}
	return "|" + head.String() + "\n|" + line.String() + "\n|" + row.String() + "\n"
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
