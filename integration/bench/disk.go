package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// entryBytes is the size of an entry of the log at full load.
const entryBytes = 512 << 10

// nobody is an address where nothing listens, for a sink that is down.
const nobody = "http://127.0.0.1:9/nobody"

// measureDisk compares accepted bytes a second on one node with appending entries of the same size to a file with
// fdatasync each, alternately, so that both see the same disk.
func (b *bench) measureDisk(ctx context.Context) (err error) {
	sink, err := newCounter(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	for _, way := range []struct {
		name, folder, sink string
	}{
		{"drained link", "drained", sinkURL(sink, "")},
		{"growing backlog", "growing", nobody},
	} {
		var plain, ours float64
		const rounds = 3
		for range rounds {
			without, err := b.plain()
			if err != nil {
				return err
			}
			with, err := b.accepted(ctx, way.folder, way.sink)
			if err != nil {
				return err
			}
			plain, ours = plain+without/rounds, ours+with/rounds
		}
		b.row(fmt.Sprintf("one node, %s, bytes against fdatasync", way.name), "%.0f of %.0f MB/s: %.2f",
			ours, plain, ours/plain)
	}
	return nil
}

// plain appends entries to a file with fdatasync each, in MB/s.
func (b *bench) plain() (float64, error) {
	name := filepath.Join(b.dir, "plain")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	entry := make([]byte, entryBytes)
	rand.Read(entry)
	began, bytes := time.Now(), int64(0)
	for time.Since(began) < b.seconds/3 {
		if _, err := file.Write(entry); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(file.Fd())); err != nil {
			return 0, err
		}
		bytes += entryBytes
	}
	rate := megabytes(bytes, time.Since(began))
	if err := file.Close(); err != nil {
		return 0, err
	}
	return rate, os.Remove(name)
}

// accepted posts tuples that fill an entry each, in MB/s.
func (b *bench) accepted(ctx context.Context, name, sink string) (float64, error) {
	f, err := b.start(ctx, name, 1, sink, map[string]string{"BUFFER_MAX_BYTES": "64GiB"})
	if err != nil {
		return 0, err
	}
	defer f.Kill()
	body := make([]byte, entryBytes-4096) // the rest is for what an entry holds besides
	rand.Read(body)
	p, err := push(ctx, sourceURL(f.Replicas[0]), "application/octet-stream", body, b.seconds/3, 0)
	if err != nil {
		return 0, err
	}
	return megabytes(p.requests*int64(len(body)), p.took), end(f)
}
