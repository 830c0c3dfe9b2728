package replica

import (
	"context"
	"slices"
	"sync"
)

// budget is a bounded amount that is taken and given back, first come, first served. All methods may be called
// concurrently.
type budget struct {
	mu      sync.Mutex
	left    int
	waiting []*claim // oldest first
}

type claim struct {
	amount  int
	granted chan struct{} // closed when the amount is taken
}

func newBudget(amount int) *budget { return &budget{left: amount} }

// take waits until amount is available.
func (b *budget) take(ctx context.Context, amount int) error {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.left >= amount {
		b.left -= amount
		b.mu.Unlock()
		return nil
	}
	c := &claim{amount: amount, granted: make(chan struct{})}
	b.waiting = append(b.waiting, c)
	b.mu.Unlock()
	select {
	case <-c.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, c); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else {
		b.left += amount // granted at the last moment
	}
	b.grant()
	return context.Cause(ctx)
}

// give returns an amount that was taken.
func (b *budget) give(amount int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += amount
	b.grant()
}

func (b *budget) grant() {
	for len(b.waiting) > 0 && b.left >= b.waiting[0].amount {
		b.left -= b.waiting[0].amount
		close(b.waiting[0].granted)
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}
