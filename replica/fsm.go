package replica

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// fsm is the state as Raft drives it: one lock around it, and word to everybody who waits for a change.
//
// Raft lets Apply return no error. What the state cannot apply, it panics on; the fsm then applies nothing more and
// ends the node.
type fsm struct {
	config StateConfig
	images imageStore
	fatal  func(error)
	// applied is the index of the last entry applied.
	applied atomic.Uint64
	// mutant is what every state is made with; zero but in tests.
	mutant mutant

	mu      sync.Mutex
	state   *State
	dead    error         // guarded by mu: why nothing is applied any more
	changed chan struct{} // guarded by mu: closed and replaced at every change
}

// imageStore is what the fsm needs of the snapshot store.
type imageStore interface {
	// capture takes over an image of the state, before the state changes again.
	capture(image *Image) raft.FSMSnapshot
	// restore gives load the manifest of an opened snapshot; the files that it names are in the folder.
	restore(source io.ReadCloser, load func(manifest []byte) error) error
}

var _ raft.BatchingFSM = (*fsm)(nil)

func newFSM(config StateConfig, images imageStore, fatal func(error)) *fsm {
	return &fsm{
		config: config, images: images, fatal: fatal, state: NewState(config), changed: make(chan struct{}),
	}
}

// view runs f with the state under the lock. f must not keep it, nor wait for anything.
func (f *fsm) view(do func(s *State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.state)
}

// watch is view, and returns a channel that is closed at the next change.
func (f *fsm) watch(do func(s *State)) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.state)
	return f.changed
}

// ApplyBatch implements raft.BatchingFSM. Each response is the []Verdict of an entry, or the error that ends the node.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		if f.dead == nil {
			f.dead = f.apply(l, &out[i])
		}
		if f.dead != nil {
			out[i] = f.dead
			continue
		}
		f.applied.Store(l.Index)
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return out
}

// apply applies one entry; a panic of the state becomes the error that ends the node.
func (f *fsm) apply(l *raft.Log, out *any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = classify(fmt.Sprintf("applying entry %d", l.Index), r)
			f.fatal(err)
		}
	}()
	*out = f.state.Apply(l.Index, l.Term, l.Data)
	return nil
}

// classify makes an error of a panic of the state: a version that is not understood, damage, or a failing disk.
func classify(what string, r any) error {
	err, ok := r.(error)
	switch {
	case !ok:
		return fmt.Errorf("%w: %s: %v", ErrDiverged, what, r)
	case errors.Is(err, ErrVersion):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, logbuffer.ErrCorrupt):
		return fmt.Errorf("%w: %s: %w", ErrDiverged, what, err)
	default:
		return fmt.Errorf("%w: %s: %w", ErrStorage, what, err)
	}
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (snap raft.FSMSnapshot, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead != nil {
		return nil, f.dead
	}
	defer func() {
		if r := recover(); r != nil {
			f.dead = classify("sealing the state", r)
			f.fatal(f.dead)
			err = f.dead
		}
	}()
	image, err := f.state.Seal()
	if err != nil {
		f.dead = fmt.Errorf("%w: sealing the state: %w", ErrStorage, err)
		f.fatal(f.dead)
		return nil, f.dead
	}
	return f.images.capture(image), nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(source io.ReadCloser) error {
	return f.images.restore(source, func(manifest []byte) error {
		state, err := RestoreState(f.config, manifest)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		former := f.state
		f.state, state.mutant = state, f.mutant
		f.applied.Store(state.Applied())
		close(f.changed)
		f.changed = make(chan struct{})
		return former.Close()
	})
}
