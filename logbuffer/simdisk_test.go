package logbuffer_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"ftproxy/logbuffer"
)

// errCrash is what the simulated process dies of.
var errCrash = errors.New("simulated crash")

// errNoSpace stands for ENOSPC.
var errNoSpace = errors.New("no space left on device")

// simDisk is a folder that remembers what is synced and what is not. A crash keeps what is synced, and of the rest
// anything: nothing, all, a part, a part with holes; file creations and removals alike.
type simDisk struct {
	mu    sync.Mutex
	rng   *rand.Rand
	files map[string]*simNode // as the process sees it
	held  map[string]*simNode // as of the last SyncFolder

	// step counts the mutations; the crashAt-th fails half done, and everything after it.
	step, crashAt int
	crashed       bool
	// room is the number of bytes that can still be written; negative: no limit.
	room int
	// syncErr makes every Sync fail.
	syncErr error
	syncs   int
	// onSync runs before each Sync, with the disk unlocked.
	onSync func()
}

type simNode struct {
	data, synced []byte
}

func newSimDisk(rng *rand.Rand) *simDisk {
	return &simDisk{rng: rng, files: map[string]*simNode{}, held: map[string]*simNode{}, room: -1}
}

// mutate counts a step; an error means that the process dies here.
func (d *simDisk) mutate() error {
	if d.crashed {
		return errCrash
	}
	d.step++
	if d.step == d.crashAt {
		d.crashed = true
		return errCrash
	}
	return nil
}

func (d *simDisk) Create(name string) (logbuffer.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] != nil {
		return nil, fmt.Errorf("create %s: %w", name, fs.ErrExist)
	}
	err := d.mutate()
	if err != nil && d.rng.IntN(2) == 0 {
		return nil, err
	}
	d.files[name] = &simNode{}
	return &simFile{d, d.files[name], name}, err
}

func (d *simDisk) Open(name string) (logbuffer.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	return &simFile{d, d.files[name], name}, nil
}

func (d *simDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return fmt.Errorf("remove %s: %w", name, fs.ErrNotExist)
	}
	err := d.mutate()
	if err == nil || d.rng.IntN(2) == 0 {
		delete(d.files, name)
	}
	return err
}

func (d *simDisk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for name := range d.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func (d *simDisk) SyncFolder() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.mutate()
	if err == nil || d.rng.IntN(2) == 0 {
		d.held = maps.Clone(d.files)
	}
	return err
}

// reboot returns the disk as the next process finds it.
func (d *simDisk) reboot() *simDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := newSimDisk(d.rng)
	names := map[string]bool{}
	for name := range d.files {
		names[name] = true
	}
	for name := range d.held {
		names[name] = true
	}
	order := make([]string, 0, len(names))
	for name := range names {
		order = append(order, name)
	}
	slices.Sort(order)
	for _, name := range order {
		n := d.held[name]
		if d.files[name] != n && (n == nil || d.files[name] != nil || d.rng.IntN(2) == 0) {
			n = d.files[name]
			if n != nil && d.rng.IntN(2) == 0 {
				n = d.held[name]
			}
		}
		if n == nil {
			continue
		}
		data := d.survives(n)
		next.files[name] = &simNode{data: data, synced: slices.Clone(data)}
		next.held[name] = next.files[name]
	}
	return next
}

// survives returns what is left of a file after a crash.
func (d *simDisk) survives(n *simNode) []byte {
	data := slices.Clone(n.data)
	unsynced := data[len(n.synced):]
	switch d.rng.IntN(4) {
	case 0:
		return data
	case 1:
		return data[:len(n.synced)]
	case 2:
		clear(unsynced[:d.rng.IntN(len(unsynced)+1)])
		return data
	}
	return data[:len(n.synced)+d.rng.IntN(len(unsynced)+1)]
}

type simFile struct {
	d    *simDisk
	n    *simNode
	name string
}

func (f *simFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.mutate(); err != nil {
		n := f.d.rng.IntN(len(p) + 1)
		f.n.data = append(f.n.data, p[:n]...)
		return n, err
	}
	if f.d.room >= 0 && len(p) > f.d.room {
		n := f.d.room
		f.d.room = 0
		f.n.data = append(f.n.data, p[:n]...)
		return n, fmt.Errorf("write %s: %w", f.name, errNoSpace)
	}
	if f.d.room >= 0 {
		f.d.room -= len(p)
	}
	f.n.data = append(f.n.data, p...)
	return len(p), nil
}

func (f *simFile) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if off > int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *simFile) Sync() error {
	if f.d.onSync != nil {
		f.d.onSync()
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.syncs++
	if f.d.syncErr != nil {
		return f.d.syncErr
	}
	err := f.d.mutate()
	if err == nil || f.d.rng.IntN(2) == 0 {
		f.n.synced = slices.Clone(f.n.data)
	}
	return err
}

func (f *simFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (*simFile) Close() error { return nil }
