package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// watchdog is about a disk that hangs. Raft writes on its main goroutine, while other goroutines go on to send
// heartbeats: a leader whose write never returns would lead for ever (hashicorp/raft issue 503).
type watchdog struct {
	// muted stops every message of Raft, so that the others elect another leader.
	muted atomic.Bool
}

var errDiskHangs = errors.New("this node's disk does not answer")

// hangLimit is how long a write to the log may last before the node ends.
const hangLimit = 20 * time.Second

// watchDisk mutes Raft while a write to the log lasts longer than two elections, and ends the node when it lasts longer
// than hangLimit.
func (n *Node) watchDisk(ctx context.Context) {
	for wait(ctx, n.config.ElectionTimeout/4) {
		stalled := n.store.logs.stalled()
		mute := stalled > 2*n.config.ElectionTimeout
		if n.dog.muted.Swap(mute) != mute {
			n.log.WarnContext(ctx, "the disk does not answer in time", slog.Bool("muted", mute),
				slog.Duration("write_lasts", stalled))
			n.turn.fire()
		}
		if stalled > hangLimit {
			n.fail(fmt.Errorf("%w: a write to the log has lasted %v: look at the disk", ErrStorage, stalled))
			return
		}
	}
}
