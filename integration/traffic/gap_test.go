package traffic_test

import (
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/integration/traffic"
)

// TestGap plays a kill: what was under way still arrives, then nothing for a while, then deliveries go on.
func TestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gap traffic.Gap
		deliver := func(n int, each time.Duration) {
			for range n {
				time.Sleep(each)
				gap.Delivered()
			}
		}
		deliver(1, 5*time.Second) // the time before the first delivery, and outside of the watch, does not count
		deliver(1, 3*time.Second)
		gap.Open()
		deliver(3, 10*time.Millisecond)
		time.Sleep(time.Second)
		if gap.Settled(500 * time.Millisecond) {
			t.Fatal("nothing arrives, and that counts as settled")
		}
		deliver(1, 200*time.Millisecond)
		if gap.Settled(500 * time.Millisecond) {
			t.Fatal("settled at the first delivery")
		}
		deliver(60, 10*time.Millisecond)
		if !gap.Settled(500 * time.Millisecond) {
			t.Fatal("not settled")
		}
		if longest := gap.Close(); longest != 1200*time.Millisecond {
			t.Fatal(longest)
		}
		deliver(1, 9*time.Second)
		if longest := gap.Close(); longest != 1200*time.Millisecond {
			t.Fatal(longest)
		}
	})
}
