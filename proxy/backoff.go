package proxy

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff gives the waits between attempts: they double from Min to Max, and each is shortened at random by up to half
// so that those who failed together do not come back together. The zero value waits from 200 ms to 30 s. Not safe for
// concurrent use.
type Backoff struct {
	Min, Max time.Duration
	failures int
	eager    bool // mutant: waits do not grow
}

// Next returns how long to wait after one more failure.
func (b *Backoff) Next() time.Duration {
	low, high := b.Min, b.Max
	if low <= 0 {
		low = 200 * time.Millisecond
	}
	if high <= 0 {
		high = 30 * time.Second
	}
	d := low << min(b.failures, 20)
	if d > high || d < low {
		d = high
	}
	if !b.eager {
		b.failures++
	}
	return d - rand.N(d/2+1)
}

// Reset forgets the failures so far.
func (b *Backoff) Reset() { b.failures = 0 }

// Wait waits as long as Next says. It returns early with the cause if ctx ends.
func (b *Backoff) Wait(ctx context.Context) error {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
