package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
)

// TestPowerCutKeepsWhatWasAcknowledged cuts the power of one, two and all nodes: whatever was not synced is gone, and
// every tuple that was acknowledged must still be known.
func TestPowerCutKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		if err := afterGroupPowerCut(t, n, false); err != nil {
			t.Errorf("%d of 3 nodes: %v", n, err)
		}
	}
}

func TestMutantNoSyncForgetsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	if err := afterGroupPowerCut(t, 2, true); err == nil {
		t.Fatal("without syncs nothing was missed: the test above proves nothing")
	}
}

func afterGroupPowerCut(t *testing.T, victims int, noSync bool) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		disks := map[string]*lossyVFS{}
		c := newCluster(t, func(c *Config) {
			v, ok := disks[c.Node]
			if !ok {
				v = &lossyVFS{VFS: walfs.New(), noSync: noSync}
				disks[c.Node] = v
			}
			c.hooks.storage.vfs = v
		})
		c.ready()
		acked := fill(t, c.node("a"), "s", 1, 128<<10)
		for _, name := range []string{"a", "b", "c"}[:victims] {
			c.kill(name)
			disks[name].losePower(t)
		}
		for _, name := range []string{"a", "b", "c"}[:victims] {
			c.start(name)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for _, name := range []string{"c", "a"} {
			at, _, failed := c.node(name).Position(ctx, "s")
			if err = failed; err == nil && at != int64(acked) {
				err = fmt.Errorf("position %d is known, %d was acknowledged", at, acked)
			}
			if err != nil {
				err = errors.Join(err, c.node(name).Ready())
				break
			}
		}
		c.stop()
	})
	return err
}
