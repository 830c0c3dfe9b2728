package main

import (
	"fmt"
	"sync"
	"time"

	"ftproxy/integration/traffic"
)

// record is what the demo's upstream and downstream said of themselves, line by line. It serves the progress lines,
// the gaps and the counts of what was repeated; the verdict comes from the downstream's file.
type record struct {
	gap traffic.Gap

	mu    sync.Mutex
	count counts
	gaps  []time.Duration
}

// counts are in tuples.
type counts struct {
	// sent is the highest tuple sent, sends how many sends there were: at least as many.
	sent, sends int64
	// delivered were accepted by the downstream, redelivered dropped by it because it had them.
	delivered, redelivered int64
}

func (c *counts) replayed() int64 { return c.sends - c.sent }

// upstreamLine takes a line "send FIRST LAST", written before each request.
func (r *record) upstreamLine(line string) {
	var first, last int64
	if _, err := fmt.Sscanf(line, "send %d %d", &first, &last); err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.sent = max(r.count.sent, last)
	r.count.sends += last - first + 1
}

// downstreamLine takes a line "stored ALL REPEATED", written at the start and after each request.
func (r *record) downstreamLine(line string) {
	var all, repeats int64
	if _, err := fmt.Sscanf(line, "stored %d %d", &all, &repeats); err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.redelivered += repeats
	if all > r.count.delivered {
		r.count.delivered = all
		r.gap.Delivered()
	}
}

// closeGap notes the gap after a kill.
func (r *record) closeGap() time.Duration {
	gap := r.gap.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, gap)
	return gap
}

func (r *record) counts() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
