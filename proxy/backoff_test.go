package proxy_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/proxy"
)

func TestBackoff(t *testing.T) {
	b := proxy.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	full := 10 * time.Millisecond
	for range 50 {
		if d := b.Next(); d > full || d < full/2 {
			t.Errorf("%s, want %s at most and half at least", d, full)
		}
		full = min(full*2, time.Second)
	}
	b.Reset()
	if d := b.Next(); d > 10*time.Millisecond {
		t.Errorf("%s after Reset", d)
	}
}

func TestMutantBackoffEager(t *testing.T) {
	b := proxy.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
	b.Eager()
	for range 20 {
		if b.Next() > 10*time.Millisecond {
			t.Error("waits that do not grow went unnoticed")
		}
	}
}

func TestBackoffWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b proxy.Backoff
		start := time.Now()
		if err := b.Wait(t.Context()); err != nil || time.Since(start) < 100*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if b.Wait(ctx) == nil {
			t.Error("waited in spite of the end")
		}
	})
}
