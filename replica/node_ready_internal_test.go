package replica

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestRollingWipeKeepsTheGroup replaces the data of one node after the other, each as soon as the one before is ready,
// as an orderly roll-out does.
func TestRollingWipeKeepsTheGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := rollingWipe(t, false); err != nil {
			t.Error(err)
		}
	})
}

func TestMutantReadyWithoutAVote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if rollingWipe(t, true) == nil {
			t.Error("a group whose nodes are ready before they have a vote went on")
		}
	})
}

func rollingWipe(t *testing.T, unvoted bool) error {
	t.Helper()
	c := newCluster(t, func(c *Config) { c.hooks.unvoted = unvoted })
	defer c.stop()
	c.ready()
	if _, err := c.node("a").Append(t.Context(), tuples("s", 1, 5)); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		c.kill(name)
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			return err
		}
		n := c.start(name)
		for began := time.Now(); n.Ready() != nil; wait(t.Context(), 10*time.Millisecond) {
			if err := errors.Join(n.ctx.Err(), n.Err()); err != nil || time.Since(began) > time.Minute {
				return fmt.Errorf("node %s: %w", name, errors.Join(err, n.Ready()))
			}
		}
	}
	last, known, err := c.node("a").Position(t.Context(), "s")
	if err != nil || !known || last != 5 {
		return fmt.Errorf("position %d, known %v: %w", last, known, err)
	}
	return nil
}

// TestAnotherNameDoesNotTakeTheFolder starts another operator on a used folder.
func TestAnotherNameDoesNotTakeTheFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n := openAlone(t, dir)
	eventually(t, "ready", n.Ready)
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := n.config
	c.Name = "other"
	other, err := Open(t.Context(), c)
	if err == nil {
		_ = other.Shutdown(t.Context())
	}
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "a folder of its own") {
		t.Error(err)
	}
}

// TestTakenAddressIsNamed has another process at the address that a node is to have.
func TestTakenAddressIsNamed(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	at := l.Addr().String()
	_, err = Open(t.Context(), Config{
		Name: "op", Node: "a", DataDir: filepath.Join(t.TempDir(), "data"),
		Peers: map[string]string{"a": at, "b": "127.0.0.1:1", "c": "127.0.0.1:2"},
	})
	if !errors.Is(err, ErrConfig) || !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.Contains(err.Error(), "cannot listen at "+at+", where the other nodes are to reach node a") {
		t.Error(err)
	}
}
