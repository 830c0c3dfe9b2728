package replica

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"

	"ftproxy/logbuffer"
)

// atOnce is less than any deadline of a request, and more than a busy machine needs.
const atOnce = 3 * time.Second

// failingSyncs is a log whose syncs wait, and fail, once it is told so.
type failingSyncs struct {
	types.VFS
	hang    atomic.Bool
	release chan struct{}
}

func (f *failingSyncs) Create(dir, name string, size uint64) (types.WritableFile, error) {
	w, err := f.VFS.Create(dir, name, size)
	return failingSync{WritableFile: w, fs: f}, err
}

func (f *failingSyncs) OpenWriter(dir, name string) (types.WritableFile, error) {
	w, err := f.VFS.OpenWriter(dir, name)
	return failingSync{WritableFile: w, fs: f}, err
}

type failingSync struct {
	types.WritableFile
	fs *failingSyncs
}

func (f failingSync) Sync() error {
	if !f.fs.hang.Load() {
		return f.WritableFile.Sync()
	}
	<-f.fs.release
	return syscall.EIO
}

// TestRequestsAreAnsweredAtOnceWhenTheDiskFails has requests in every place where they wait when a sync fails.
func TestRequestsAreAnsweredAtOnceWhenTheDiskFails(t *testing.T) {
	t.Parallel()
	disk := &failingSyncs{VFS: walfs.New(), release: make(chan struct{})}
	log := &logged{}
	n, err := Open(t.Context(), Config{
		Name: "op", Node: "a", DataDir: filepath.Join(t.TempDir(), "data"), Readers: []logbuffer.Reader{{Name: "out"}},
		Logger: slog.New(slog.NewTextHandler(log, nil)), hooks: &hooks{storage: storageHooks{vfs: disk}},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready", n.Ready)
	disk.hang.Store(true)
	var wg sync.WaitGroup
	ask := func(class error, request func() error) {
		wg.Go(func() {
			if err := request(); !errors.Is(err, class) {
				t.Errorf("got %v, want %v", err, class)
			}
		})
	}
	for i := range 3 {
		ask(logbuffer.ErrUnknown, func() error {
			_, err := n.Append(t.Context(), tuples("s", i+1, i+1))
			return err
		})
	}
	eventually(t, "commands in flight", func() error {
		n.lane.mu.Lock()
		defer n.lane.mu.Unlock()
		if len(n.lane.sent) < 3 {
			return errors.New("too few")
		}
		return nil
	})
	n.store.space.mu.Lock() // the disk says nothing any more
	n.store.space.statfs = func(string) (int64, int64, error) { return 0, 0, syscall.EIO }
	n.store.space.checked = time.Time{}
	n.store.space.mu.Unlock()
	ask(logbuffer.ErrUnavailable, func() error {
		_, err := n.Append(t.Context(), tuples("s", 4, 4))
		return err
	})
	ask(logbuffer.ErrUnavailable, func() error {
		_, _, err := n.Position(t.Context(), "s")
		return err
	})
	eventually(t, "a tuple that waits for the disk", func() error {
		if log.count("tuples wait for free space") == 0 {
			return errors.New("none")
		}
		return nil
	})
	began := time.Now()
	close(disk.release)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		wg.Wait()
	}()
	select {
	case <-answered:
	case <-time.After(atOnce):
		t.Errorf("requests hang %v after the disk failed", time.Since(began))
	}
	if err := n.Shutdown(context.WithoutCancel(t.Context())); !errors.Is(err, ErrStorage) {
		t.Error(err)
	}
	if strings.Contains(log.text(), "could not be closed in time") {
		t.Error("the node hangs")
	}
}
