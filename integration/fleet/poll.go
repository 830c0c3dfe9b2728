package fleet

import (
	"context"
	"fmt"
	"time"
)

// Poll calls done every interval until it returns true. If ctx ends first, the error is its cause with what was
// waited for.
func Poll(ctx context.Context, what string, every time.Duration, done func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}
