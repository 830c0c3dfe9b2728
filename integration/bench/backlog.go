package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"ftproxy/integration/fleet"
)

// measureBacklog fills one node whose downstream is away, then looks at its memory and starts it again.
func (b *bench) measureBacklog(ctx context.Context) error {
	f, err := b.start(ctx, "backlog", 1, nobody, map[string]string{"BUFFER_MAX_BYTES": "64GiB"})
	if err != nil {
		return err
	}
	defer f.Kill()
	body := make([]byte, 64<<10)
	rand.Read(body)
	r := f.Replicas[0]
	enough := b.backlog / int64(len(body))
	if _, err := push(ctx, sourceURL(r), "application/octet-stream", body, time.Hour, enough); err != nil {
		return err
	}
	what := fmt.Sprintf("backlog of %.1f GiB", float64(b.backlog)/(1<<30))
	if err := b.memory(r, what+", RssAnon"); err != nil {
		return err
	}
	r.Kill()
	began := time.Now()
	if err := r.Start(); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := f.Ready(ready); err != nil {
		return err
	}
	b.row(what+", restart to ready", "%.2f s", time.Since(began).Seconds())
	if err := b.memory(r, what+", RssAnon after the restart"); err != nil {
		return err
	}
	return end(f)
}

// memory notes a replica's anonymous memory.
func (b *bench) memory(r *fleet.Replica, what string) error {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(r.Process().PID()) + "/status")
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kilobytes, err := strconv.Atoi(strings.Fields(value)[0])
			b.row(what, "%.0f MiB", float64(kilobytes)/1024)
			return err
		}
	}
	return fmt.Errorf("no RssAnon for process %d", r.Process().PID())
}
