package main

import (
	"fmt"
	"sync"
	"time"
)

// record is what the demo's upstream and downstream said of themselves, line by line. It serves the progress lines,
// the gaps and the counts of what was repeated; the verdict comes from the downstream's file.
type record struct {
	mu sync.Mutex
	// highest tuple sent, and how many sends that took; highest-sends is never positive.
	highest, sends int64
	// firsts were accepted by the downstream, repeats dropped by it as redeliveries.
	firsts, repeats int64
	lastFirst       time.Time
	gapOpen         bool
	gapResumed      time.Time // end of the last long pause while a gap is open
	gap             time.Duration
	gaps            []time.Duration
}

func newRecord() *record { return &record{lastFirst: time.Now()} }

// upstreamLine takes a line "send FIRST LAST", written before each request.
func (r *record) upstreamLine(line string) {
	var first, last int64
	if _, err := fmt.Sscanf(line, "send %d %d", &first, &last); err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.highest = max(r.highest, last)
	r.sends += last - first + 1
}

// downstreamLine takes a line "stored NEW REPEATED", written after each request.
func (r *record) downstreamLine(line string) {
	var firsts, repeats int64
	if _, err := fmt.Sscanf(line, "stored %d %d", &firsts, &repeats); err != nil {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repeats += repeats
	if firsts == 0 {
		return
	}
	r.firsts += firsts
	if waited := now.Sub(r.lastFirst); r.gapOpen && waited > r.gap {
		r.gap, r.gapResumed = waited, now
	}
	r.lastFirst = now
}

// openGap begins to watch for the longest time without a delivery.
func (r *record) openGap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gapOpen, r.gap, r.gapResumed = true, 0, time.Time{}
}

// sinceGap is how long ago the longest pause so far ended; 0 if there was none.
func (r *record) sinceGap() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gapResumed.IsZero() {
		return 0
	}
	return time.Since(r.gapResumed)
}

// closeGap ends the watch and returns the longest time without a delivery.
func (r *record) closeGap() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gapOpen = false
	r.gaps = append(r.gaps, r.gap)
	return r.gap
}

func (r *record) delivered() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.firsts
}
