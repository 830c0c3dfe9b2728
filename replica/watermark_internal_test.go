package replica

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatermarkFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), watermarkFile)
	if err := writeWhole(osFiles{}, path, encodeWatermark(0)); err != nil {
		t.Fatal(err)
	}
	w, err := openWatermark(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		raise, lower, want uint64
	}{
		{raise: 5, want: 5},
		{raise: 3, want: 5},
		{lower: 9, want: 5},
		{lower: 2, want: 2},
		{raise: 1 << 60, want: 1 << 60},
	} {
		if step.raise > 0 {
			err = w.raise(step.raise)
		} else {
			err = w.lower(step.lower)
		}
		if err != nil {
			t.Fatal(err)
		}
		var got uint64
		if got, err = readWatermark(path); got != step.want || err != nil {
			t.Fatalf("after %+v the file says %d, %v", step, got, err)
		}
	}
	if err = w.close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		p := append([]byte(nil), good...)
		p[i] ^= 4
		if _, err := decodeWatermark(p); !errors.Is(err, errWatermark) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	if _, err := decodeWatermark(good[:len(good)-1]); !errors.Is(err, errWatermark) {
		t.Fatalf("cut short: %v", err)
	}
}

// The watermark is synced once a second when it changed, and not when it did not.
func TestWatermarkIsSyncedOnceASecond(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, testStorage(t, dir))
		storeEntries(t, s, 1, 10, 10)
		dirty := func() bool {
			s.logs.mark.mu.Lock()
			defer s.logs.mark.mu.Unlock()
			return s.logs.mark.dirty
		}
		if !dirty() {
			t.Error("the watermark was synced with the log's write")
		}
		<-time.After(watermarkInterval + time.Millisecond)
		synctest.Wait()
		if dirty() {
			t.Error("the watermark was not synced within a second")
		}
		mustClose(t, s)
	})
}

// What is missing at the end of the log, the watermark betrays.
func TestShorterLogIsQuarantined(t *testing.T) {
	t.Parallel()
	wantQuarantine(t, shortenedLog(t), "entry 40 was durable")
}

func TestMutantNoWatermarkServesShorterLog(t *testing.T) {
	t.Parallel()
	c := shortenedLog(t)
	c.hooks.ignoreMark = true
	s := mustOpen(t, c)
	defer mustClose(t, s)
	if err := checkEntries(s.logs, 1, 40, 100); err == nil {
		t.Fatal("the log is whole: the test damages nothing")
	}
}

// shortenedLog is a log of 40 entries whose last frames are gone, as raft-wal itself would accept it.
func shortenedLog(t *testing.T) storageConfig {
	t.Helper()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 40, 100)
	mustClose(t, s)
	path := newestLogFile(t, c.dir)
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(p[2000:])
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// Raft cuts the end of the log when another leader's entries take its place, and all of it after an install. That is
// no loss, even if the process dies right after.
func TestCutLogIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string][3]uint64{
		"the end":             {20, 40, 19},
		"all":                 {1, 40, 0},
		"all, beyond its end": {1, 100, 0},
		"the start":           {1, 20, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := cutLog(t, cut, false); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestMutantWatermarkNotLoweredRefusesCutLog(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string][3]uint64{"the end": {20, 40, 19}, "all": {1, 40, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := cutLog(t, cut, true); !errors.Is(err, ErrQuarantined) {
				t.Fatalf("a log cut below its watermark is opened: %v", err)
			}
		})
	}
}

// cutLog deletes entries cut[0] to cut[1] of 40, ends, and opens the log again, which must then end with cut[2].
func cutLog(t *testing.T, cut [3]uint64, keepMark bool) error {
	t.Helper()
	c := testStorage(t, t.TempDir())
	c.hooks.keepMark = keepMark
	s := mustOpen(t, c)
	storeEntries(t, s, 1, 40, 1<<10)
	if err := s.logs.DeleteRange(cut[0], cut[1]); err != nil {
		t.Fatal(err)
	}
	if cut[2] < 40 && !keepMark && s.logs.mark.dirty {
		t.Error("the watermark was lowered and not synced")
	}
	mustClose(t, s)
	c.hooks.keepMark = false
	if cut[0] == 1 && cut[1] < 40 { // without a snapshot that is a hole
		wantQuarantine(t, c, "begins with entry 21")
		return nil
	}
	s, err := openStorage(c)
	if err != nil {
		return err
	}
	defer mustClose(t, s)
	if last, _ := s.logs.LastIndex(); last != cut[2] {
		t.Errorf("the log ends with %d, want %d", last, cut[2])
	}
	storeEntries(t, s, cut[2]+1, cut[2]+30, 1<<10)
	return nil
}
