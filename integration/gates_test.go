package integration_test

import (
	"context"
	"time"
)

// gates lets an upstream go on only as far as the test allows, so that tuples flow during every fault and not only
// before the first. The test sends how many tuples may have been sent in all; a closed channel opens everything.
type gates struct {
	opened <-chan int64
	limit  int64
	open   bool
}

// pass waits until tuple n may be sent.
func (g *gates) pass(ctx context.Context, n int64) error {
	for !g.open && n > g.limit {
		select {
		case limit, more := <-g.opened:
			g.limit, g.open = limit, !more
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func until(ctx context.Context, due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
