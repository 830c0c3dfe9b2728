package replica

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A part that is missing beside the rest means that the rest is not to be trusted: above all, raft-wal would delete the
// log's files if only its description were gone.
func TestMissingPartIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, part := range []string{
		identityFile, operatorFile, stableFile, watermarkFile, walFolder, "wal/wal-meta.db", manifestFolder, segmentFolder,
		"the log's file",
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			c := testStorage(t, t.TempDir())
			s := mustOpen(t, c)
			storeEntries(t, s, 1, 100, 1<<10)
			mustClose(t, s)
			reason := part + " is missing"
			gone := filepath.Join(c.dir, liveFolder, part)
			if part == "the log's file" {
				reason, gone = "was durable", newestLogFile(t, c.dir)
			}
			if err := os.RemoveAll(gone); err != nil {
				t.Fatal(err)
			}
			before := folderListing(t, c.dir)
			for range 3 { // raft-wal deletes at the second time
				wantQuarantine(t, c, reason)
			}
			if after := folderListing(t, c.dir); after != before {
				t.Errorf("quarantined data was changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func TestDamagedPartIsQuarantined(t *testing.T) {
	t.Parallel()
	for _, part := range []string{identityFile, lineageFile, stableFile, watermarkFile, "wal/wal-meta.db"} {
		for name, damage := range map[string]func(p []byte) []byte{
			"wiped": func(p []byte) []byte { clear(p); return p },
			"short": func(p []byte) []byte { return p[:len(p)/3] },
			"noise": func(p []byte) []byte {
				for i := range p {
					p[i] = byte(i * 7)
				}
				return p
			},
		} {
			t.Run(part+" "+name, func(t *testing.T) {
				t.Parallel()
				c := testStorage(t, t.TempDir())
				s := mustOpen(t, c)
				storeEntries(t, s, 1, 10, 100)
				if err := s.setLineage("first"); err != nil {
					t.Fatal(err)
				}
				mustClose(t, s)
				path := filepath.Join(c.dir, liveFolder, part)
				p, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, damage(p), 0o600); err != nil {
					t.Fatal(err)
				}
				wantQuarantine(t, c, "")
			})
		}
	}
}

// A quarantined node asks under a fresh id; its data goes out of the way only afterwards, in two steps that a crash may
// part.
func TestMoveAside(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	former := s.identity
	storeEntries(t, s, 1, 10, 100)
	if err := s.setLineage("first"); err != nil {
		t.Fatal(err)
	}
	if err := markQuarantined(s.fs, s.dir, "the state diverged"); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	wantQuarantine(t, c, "the state diverged")
	if _, err := moveAside(c.dir); err == nil {
		t.Fatal("data was moved aside without anything to take its place")
	}
	fresh, err := prepareNext(c.dir, c.operator, c.node)
	if err != nil || fresh == former || !strings.HasPrefix(fresh, "n0#") {
		t.Fatalf("fresh id %q beside %q, %v", fresh, former, err)
	}
	again, err := prepareNext(c.dir, c.operator, c.node)
	if again != fresh || err != nil {
		t.Fatalf("asked again, the id is %q, not %q: %v", again, fresh, err)
	}
	wantQuarantine(t, c, "the state diverged") // asking changes nothing

	aside, err := moveAside(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := readLine(aside, identityFile); id != former || err != nil {
		t.Fatalf("moved aside: %q, %v", id, err)
	}
	s = mustOpen(t, c)
	if s.identity != fresh || s.lineage != "" {
		t.Fatalf("id %q, lineage %q; want %q and none", s.identity, s.lineage, fresh)
	}
	mustClose(t, s)
}

func TestCrashBetweenTheStepsOfMoveAside(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	mustClose(t, mustOpen(t, c))
	fresh, err := prepareNext(c.dir, c.operator, c.node)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(c.dir, liveFolder), filepath.Join(c.dir, asideFolder+"1")); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, c)
	defer mustClose(t, s)
	if s.identity != fresh {
		t.Fatalf("the id is %q, want the admitted %q", s.identity, fresh)
	}
}

// An id that was prepared and not used is not used later.
func TestUnusedPreparationIsForgotten(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	mustClose(t, mustOpen(t, c))
	first, err := prepareNext(c.dir, c.operator, c.node)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, c))
	second, err := prepareNext(c.dir, c.operator, c.node)
	if err != nil || first == second {
		t.Fatalf("prepared %q, then %q: %v", first, second, err)
	}
}

func TestIdentityAndLineageLast(t *testing.T) {
	t.Parallel()
	c := testStorage(t, t.TempDir())
	s := mustOpen(t, c)
	id := s.identity
	if !strings.HasPrefix(id, "n0#") || len(id) != len("n0#")+16 {
		t.Fatalf("id %q", id)
	}
	if err := s.setLineage("a \"life\"\n"); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	s = mustOpen(t, c)
	if has, err := s.hasState(); s.identity != id || s.lineage != "a \"life\"\n" || !has || err != nil {
		t.Fatalf("id %q, lineage %q, has state %v, %v", s.identity, s.lineage, has, err)
	}
	mustClose(t, s)
	other := c
	other.node = "n1"
	if _, err := openStorage(other); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "of node \"n0\"") {
		t.Fatalf("another node's folder: %v", err)
	}
}

// What one operator left undelivered must not go to another's sinks, and be it after damage.
func TestFolderBelongsToOneOperator(t *testing.T) {
	t.Parallel()
	for _, damaged := range []bool{false, true} {
		c := testStorage(t, t.TempDir())
		mustClose(t, mustOpen(t, c))
		live := filepath.Join(c.dir, liveFolder)
		if damaged {
			if err := os.Remove(filepath.Join(live, "wal/wal-meta.db")); err != nil {
				t.Fatal(err)
			}
		}
		c.operator = "other"
		if _, err := openStorage(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "of the operator \"op\"") {
			t.Errorf("damaged %v: another operator's folder: %v", damaged, err)
		}
	}
}

// A newer version's file is no damage.
func TestNewerVersionIsNotQuarantined(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]struct{ old, new string }{
		identityFile:  {"identity 1 ", "identity 2 "},
		watermarkFile: {"FTWM\x01", "FTWM\x02"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testStorage(t, t.TempDir())
			mustClose(t, mustOpen(t, c))
			path := filepath.Join(c.dir, liveFolder, name)
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			p = reseal(t, name, strings.Replace(string(p), damage.old, damage.new, 1))
			if err := os.WriteFile(path, p, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := openStorage(c); !errors.Is(err, ErrVersion) {
				t.Fatalf("got %v, want ErrVersion", err)
			}
		})
	}
}

// A human may go on without the newest entries, but not with damage elsewhere.
func TestSalvage(t *testing.T) {
	t.Parallel()
	c := shortenedLog(t)
	wantQuarantine(t, c, "was durable")
	c.salvage = true
	s := mustOpen(t, c)
	last, _ := s.logs.LastIndex()
	if last == 0 || last >= 40 {
		t.Fatalf("the log ends with %d", last)
	}
	if s.lineage == "" || s.lineage == "a life" {
		t.Fatalf("what forgot its newest entries still takes part in %q", s.lineage)
	}
	if err := checkEntries(s.logs, 1, last, 100); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	c.salvage = false
	s = mustOpen(t, c) // it is sound again
	mustClose(t, s)
	if err := os.Remove(filepath.Join(c.dir, liveFolder, stableFile)); err != nil {
		t.Fatal(err)
	}
	c.salvage = true
	wantQuarantine(t, c, "stable.db is missing")
}
