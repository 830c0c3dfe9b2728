package httpio

import (
	"context"
	"sync"
)

// budget bounds the bytes that all requests of a listener hold together. Safe for concurrent use.
type budget struct {
	mu    sync.Mutex
	free  int64
	freed chan struct{} // closed and replaced whenever bytes come back
}

func newBudget(bytes int64) *budget {
	return &budget{free: bytes, freed: make(chan struct{})}
}

// take waits until n bytes are free and takes them. If ctx ends first it takes none and returns the cause.
func (b *budget) take(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if n <= b.free {
			b.free -= n
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// give brings n bytes back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	close(b.freed)
	b.freed = make(chan struct{})
}
