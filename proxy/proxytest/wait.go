package proxytest

import (
	"context"
	"testing"
	"time"
)

// Within returns a context that ends after d: the deadline of a test that waits for conditions.
func Within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// Until calls ok every few milliseconds until it is true, and fails the test if that takes longer than d.
func Until(tb testing.TB, d time.Duration, what string, ok func() bool) {
	tb.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("after %s still waiting for: %s", d, what)
		}
	}
}
