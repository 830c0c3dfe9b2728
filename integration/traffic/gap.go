package traffic

import (
	"sync"
	"time"
)

// Gap watches deliveries for the longest time without one. Its methods may be called concurrently.
type Gap struct {
	mu      sync.Mutex
	last    time.Time // of a delivery
	open    bool
	longest time.Duration
	ended   time.Time // when the longest pause ended; zero: no delivery since Open
}

// Delivered says that tuples arrived now.
func (g *Gap) Delivered() {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if waited := now.Sub(g.last); g.open && !g.last.IsZero() && waited > g.longest {
		g.longest, g.ended = waited, now
	}
	g.last = now
}

// Open begins to watch. The time since the last delivery counts.
func (g *Gap) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.longest, g.ended = true, 0, time.Time{}
}

// Settled tells whether deliveries have gone on for a time since the longest pause ended, and go on still.
func (g *Gap) Settled(d time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended.IsZero() && time.Since(g.ended) > d && time.Since(g.last) < d/2
}

// Close ends the watch and returns the longest time without a delivery.
func (g *Gap) Close() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = false
	return g.longest
}
