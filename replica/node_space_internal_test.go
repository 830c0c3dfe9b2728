package replica

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

// A disk that is full of what was delivered long ago empties itself, although no log is written meanwhile.
func TestNearlyFullDiskIsFreedByDelivery(t *testing.T) {
	t.Parallel()
	if err := freedByDelivery(t, false, soon); err != nil {
		t.Error(err)
	}
}

func TestMutantCramped(t *testing.T) {
	t.Parallel()
	if freedByDelivery(t, true, 2*crowdedPause) == nil {
		t.Error("a disk that stays full went unnoticed")
	}
}

// freedByDelivery fills segments that a snapshot names, declares the disk full for as long as they exist, delivers
// their tuples, and returns whether the next is taken within the time.
func freedByDelivery(t *testing.T, cramped bool, within time.Duration) error {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	n, err := Open(t.Context(), Config{
		Name: "op", Node: "a", DataDir: dir, Readers: []logbuffer.Reader{{Name: "out"}}, Logger: testLogger(t, "a"),
		ElectionTimeout: 100 * time.Millisecond, hooks: &hooks{cramped: cramped},
		Limits: Limits{SegmentBytes: 1 << 20, TailBytes: 1 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Shutdown(context.WithoutCancel(t.Context())) }()
	eventually(t, "ready", n.Ready)
	const count = 8
	value := bytes.Repeat([]byte("v"), 512<<10)
	for i := range count {
		b := logbuffer.Batch{
			Source: "s", Rule: logbuffer.RuleDense, Tuples: []logbuffer.Tuple{{Value: value, Position: int64(i + 1)}},
		}
		if _, err = n.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	n.snapNow <- struct{}{}
	eventually(t, "the snapshot", func() error {
		if n.store.snaps.newestIndex() == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	n.store.space.mu.Lock()
	n.store.space.statfs = func(string) (free, total int64, err error) {
		files, err := filepath.Glob(filepath.Join(dir, "live", "segments", "*"))
		if len(files) == 0 {
			return 1 << 40, 1 << 41, err
		}
		return n.store.space.minimum - 1, 1 << 41, err
	}
	n.store.space.checked = time.Time{}
	n.store.space.mu.Unlock()
	deliver(t, n, count)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		_, err = n.Append(ctx, tuples("s", count+1, count+1))
		if err == nil || !wait(ctx, 5*time.Millisecond) {
			return err
		}
	}
}
