package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
)

// The process dies, or the machine loses power, at every step of taking or installing a snapshot: afterwards the former
// or the new one is there, whole, and the new one if its maker was told so.
func TestCrashAtEveryStepOfSnapshot(t *testing.T) {
	t.Parallel()
	for _, power := range []bool{false, true} {
		for name, build := range map[string]func(r *snapRig) error{"local": secondLocal, "install": secondInstall} {
			t.Run(fmt.Sprintf("%s, power cut %v", name, power), func(t *testing.T) {
				t.Parallel()
				steps := 0
				for done := false; !done; steps++ {
					var err error
					if done, err = crashAt(t, steps, power, false, build); err != nil {
						t.Fatalf("step %d: %v", steps, err)
					}
				}
				if steps < 8 {
					t.Fatalf("only %d steps were seen", steps)
				}
			})
		}
	}
}

func TestMutantNoSyncLosesSnapshot(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(r *snapRig) error{"local": secondLocal, "install": secondInstall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := crashAt(t, -1, true, true, build); err == nil {
				t.Fatal("a store that never syncs passes the test of the power cut")
			}
		})
	}
}

const (
	firstContent  = "10:first a.seg=aaa"
	secondContent = "20:second a.seg=aaa b.seg=bbb"
)

func secondLocal(r *snapRig) error {
	f, err := r.folder.Create("b.seg")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(f, "bbb"); err != nil {
		return err
	}
	return r.local(20, "second", "a.seg", "b.seg")
}

func secondInstall(r *snapRig) error {
	leader := newSnapRig(r.t)
	leader.write("a.seg", "aaa")
	leader.write("b.seg", "bbb")
	if err := leader.local(20, "second", "a.seg", "b.seg"); err != nil {
		r.t.Fatal(err)
	}
	meta, stream := leader.stream()
	return r.install(meta.Index, meta.Term, bytes.NewReader(stream))
}

// crashAt has a store with one snapshot make a second one and die after some steps; done: it did not come to that.
func crashAt(t *testing.T, steps int, power, noSync bool, build func(r *snapRig) error) (done bool, err error) {
	t.Helper()
	r := newSnapRig(t)
	r.write("a.seg", "aaa")
	if err = r.local(10, "first", "a.seg"); err != nil {
		t.Fatal(err)
	}
	r.disk.noSync, r.disk.steps = noSync, steps
	err = build(r)
	done = err == nil
	if err != nil && !errors.Is(err, errDied) {
		return false, err
	}
	if power {
		r.disk.losePower(t, filepath.Join(r.base, manifestFolder), filepath.Join(r.base, segmentFolder))
	}
	if err = r.reopen(); err != nil {
		return done, fmt.Errorf("after %v: %w", r.disk.log, err)
	}
	got, err := r.content()
	switch {
	case err != nil:
		return done, err
	case got != secondContent && (done || got != firstContent):
		return done, fmt.Errorf("after %v: %q", r.disk.log, got)
	}
	named := len(r.newest.files)
	if files := r.names(segmentFolder); len(files) != named || len(r.names(manifestFolder)) != 1 {
		return done, fmt.Errorf("after %v: files %v, manifests %v", r.disk.log, files, r.names(manifestFolder))
	}
	return done, nil
}
