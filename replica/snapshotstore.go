package replica

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// snapshotStore keeps one snapshot: the newest. A snapshot is a small manifest beside the segment files that it names,
// which the live state shares, so that taking one copies nothing.
//
//	local:    State.Seal ─▶ capture (pin) ─▶ Persist (fsync files, then their folder) ─▶ Close
//	incoming: Write (unpack into the folder) ─▶ Close (check; fsync files, then their folder)
//	Close:    write the manifest beside its place, fsync, rename, fsync
//	then:     the former snapshot is removed and its files unpinned, and Raft cuts the log
//
// The former one must go: beside a newer one, and a log that begins there, Raft would panic on it at start.
// All methods may be called concurrently.
type snapshotStore struct {
	dir    string // of the manifests
	fs     files
	folder *logbuffer.Folder
	fail   *failure
	// quarantine is told of damage before the process ends of it.
	quarantine func(reason string)
	// repeated is told when the index of the last install is installed again, which a node does without end if it
	// cannot get on behind it.
	repeated func(index uint64)
	// room tells whether the disk takes so many bytes more.
	room func(bytes int64) error

	saving sync.Mutex // one snapshot is made durable at a time

	mu       sync.Mutex
	newest   *snapshot // guarded by mu; nil: none
	number   uint64    // guarded by mu: distinguishes the names of manifests
	last     uint64    // guarded by mu: index of the last install
	installs atomic.Uint64
	repeats  atomic.Uint64
}

var (
	_ raft.SnapshotStore = (*snapshotStore)(nil)
	_ raft.SnapshotSink  = (*snapshotSink)(nil)
	_ raft.FSMSnapshot   = (*capturedImage)(nil)
)

// snapshot is a durable snapshot as it is remembered; the rest is read again when it is needed.
type snapshot struct {
	meta  raft.SnapshotMeta
	files []string // each is pinned once
}

// snapshotID names a manifest. IDs sort as their snapshots do: by index, term and age.
func snapshotID(index, term, number uint64) string {
	return fmt.Sprintf("%020d-%020d-%010d", index, term, number)
}

func (m *manifestFile) meta(id string) raft.SnapshotMeta {
	size := int64(streamPrefix + len(m.head.append(nil)) + checksumSize)
	for _, f := range m.head.files {
		size += f.Size
	}
	return raft.SnapshotMeta{
		Version: 1, ID: id, Index: m.head.index, Term: m.head.term, Size: size,
		Configuration: m.configuration, ConfigurationIndex: m.configurationIndex,
	}
}

// newestManifest returns the newest manifest in dir and its ID, and the names of all others. Without any, id is empty.
func newestManifest(dir string) (id string, m manifestFile, others []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", m, nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			others = append(others, e.Name())
			continue
		}
		if id != "" {
			others = append(others, id)
		}
		id = e.Name() // entries are sorted
	}
	if id == "" {
		return "", m, others, nil
	}
	p, err := os.ReadFile(filepath.Join(dir, id))
	if err != nil {
		return id, m, others, err
	}
	if m, err = decodeManifest(p); err != nil {
		return id, m, others, fmt.Errorf("%s: %w", id, err)
	}
	return id, m, others, nil
}

// open adopts what is in the folder: pins the newest snapshot's files and removes whatever it does not name. The caller
// has checked that they are there.
func (s *snapshotStore) open() error {
	id, m, others, err := newestManifest(s.dir)
	if err != nil {
		return err
	}
	for _, name := range others {
		if err := s.fs.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	if id != "" {
		if _, err := fmt.Sscanf(id[strings.LastIndexByte(id, '-')+1:], "%d", &s.number); err != nil {
			return fmt.Errorf("%w: the manifest's name %q is not one of ours", errSnapshot, id)
		}
		s.newest = &snapshot{meta: m.meta(id), files: m.head.names()}
		s.folder.Pin(s.newest.files...)
	}
	return s.folder.Sweep()
}

// newestIndex returns the index of the newest snapshot, 0 if there is none.
func (s *snapshotStore) newestIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return 0
	}
	return s.newest.meta.Index
}

// capture makes an image that State.Seal has just made a snapshot for Raft. It must be called before the state changes
// again, since it pins the files.
func (s *snapshotStore) capture(image *Image) raft.FSMSnapshot {
	s.folder.Pin(image.names()...)
	return &capturedImage{store: s, image: image}
}

// capturedImage is a state's image between FSM.Snapshot and the sink.
type capturedImage struct {
	store *snapshotStore
	image *Image // each of its files is pinned once
}

// Persist syncs the files and hands the image over to a sink of snapshotStore.
func (c *capturedImage) Persist(sink raft.SnapshotSink) error {
	own, ok := sink.(*snapshotSink)
	if !ok {
		return fmt.Errorf("a snapshot cannot be written to a %T", sink)
	}
	return own.take(c.image)
}

// Release lets the image's files go.
func (c *capturedImage) Release() {
	if err := c.store.folder.Unpin(c.image.names()...); err != nil {
		_ = c.store.fail.report("removing segment files", err) // reporting is all there is to do
	}
}

// Create begins a snapshot: a local one if an image is persisted to it, the leader's if a stream is written to it.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("%w: raft snapshot version %d", ErrVersion, version)
	}
	if err := s.fail.sticky(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	return &snapshotSink{
		store: s, id: snapshotID(index, term, s.number),
		manifest: manifestFile{
			configuration: configuration, configurationIndex: configurationIndex,
			head: snapshotHead{index: index, term: term},
		},
	}, nil
}

// List returns the newest snapshot, if there is one.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil, nil
	}
	meta := s.newest.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

// Open opens the newest snapshot, by its ID.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.meta.ID != id {
		return nil, nil, fmt.Errorf("snapshot %s: %w: a newer one took its place", id, fs.ErrNotExist)
	}
	s.folder.Pin(s.newest.files...)
	meta := s.newest.meta
	return &meta, &snapshotReader{store: s, snap: s.newest}, nil
}

// restore gives the manifest of the snapshot that Raft opened to load, which makes a state of it. Only the manifest is
// read: the files that it names are in the folder. An error of load ends the process, with its class: Raft would go on
// without the state, or say only that it has none.
func (s *snapshotStore) restore(source io.ReadCloser, load func(manifest []byte) error) error {
	for {
		if own, ok := source.(*snapshotReader); ok {
			m, err := own.manifest()
			if err != nil {
				return err
			}
			if err := load(m.head.manifest); err != nil {
				return s.unusable(err)
			}
			return nil
		}
		wrapper, ok := source.(raft.ReadCloserWrapper)
		if !ok {
			return fmt.Errorf("a snapshot cannot be restored from a %T", source)
		}
		source = wrapper.WrappedReadCloser()
	}
}

// manifest reads the snapshot's manifest again. Damage ends the process.
func (s *snapshotStore) manifest(snap *snapshot) (manifestFile, error) {
	p, err := os.ReadFile(filepath.Join(s.dir, snap.meta.ID))
	if err != nil {
		return manifestFile{}, err
	}
	m, err := decodeManifest(p)
	if err != nil {
		return m, s.damaged(err)
	}
	return m, nil
}

// unusable ends the process because no state can be made of the newest snapshot.
func (s *snapshotStore) unusable(err error) error {
	if errors.Is(err, logbuffer.ErrCorrupt) {
		s.quarantine(err.Error())
	}
	return s.fail.report("restoring the snapshot", err)
}

// damaged ends the process because of what it found on its own disk.
func (s *snapshotStore) damaged(err error) error {
	s.quarantine(err.Error())
	return s.fail.report("reading the snapshot", err)
}

// publish makes a snapshot durable whose files are pinned and synced, and removes the former one.
func (s *snapshotStore) publish(id string, m *manifestFile) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := s.fail.sticky(); err != nil {
		return err
	}
	if newest := s.newestIndex(); newest > m.head.index {
		return fmt.Errorf("the snapshot at %d was overtaken by one at %d", m.head.index, newest)
	}
	if err := writeWhole(s.fs, filepath.Join(s.dir, id), m.encode()); err != nil {
		return s.fail.report("writing the snapshot's manifest", err)
	}
	s.mu.Lock()
	former := s.newest
	s.newest = &snapshot{meta: m.meta(id), files: m.head.names()}
	s.mu.Unlock()
	if former == nil {
		return nil
	}
	err := errors.Join(s.fs.RemoveAll(filepath.Join(s.dir, former.meta.ID)), s.fs.SyncDir(s.dir),
		s.folder.Unpin(former.files...))
	if err != nil {
		return s.fail.report("removing the former snapshot", err)
	}
	return nil
}

// snapshotSink receives one snapshot. Its methods are called one after the other.
type snapshotSink struct {
	store    *snapshotStore
	id       string
	manifest manifestFile
	local    *Image // nil: it comes as a stream
	stream   *unpacker
	closed   bool
	err      error // what Close returned
}

// ID returns the snapshot's ID.
func (k *snapshotSink) ID() string { return k.id }

// take makes the files of a local image durable.
func (k *snapshotSink) take(image *Image) error {
	s := k.store
	if err := s.folder.Sync(image.names()...); err != nil {
		return s.fail.report("syncing segment files", err)
	}
	k.manifest.head.files, k.manifest.head.manifest = image.Files, image.Manifest
	s.folder.Pin(image.names()...)
	k.local = image
	return nil
}

// Write takes the next bytes of a stream. An error is of the stream, or, if it wraps ErrStorage, of this node.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if err := k.store.fail.sticky(); err != nil {
		return 0, err
	}
	if k.stream == nil {
		k.stream = newUnpacker(k.store.folder, k.store.room)
	}
	n, err := k.stream.Write(p)
	return n, k.failed(err)
}

// failed makes an error of the disk final.
func (k *snapshotSink) failed(err error) error {
	if disk, ok := errors.AsType[diskError](err); ok {
		return k.store.fail.report("installing a snapshot", disk)
	}
	return err
}

// Close ends the snapshot. When it returns nil the snapshot is durable and the only one; else nothing of it is left.
func (k *snapshotSink) Close() error {
	if k.closed {
		return k.err
	}
	if k.local == nil {
		k.err = k.receive()
	}
	if k.err == nil {
		k.err = k.store.publish(k.id, &k.manifest)
	}
	if k.err != nil {
		return errors.Join(k.err, k.Cancel())
	}
	k.closed = true
	if k.local == nil {
		k.store.installed(k.manifest.head.index)
	}
	return nil
}

// receive checks what came and makes the files durable.
func (k *snapshotSink) receive() error {
	if k.stream == nil {
		return fmt.Errorf("%w: nothing was written", errSnapshot)
	}
	if err := k.stream.finish(); err != nil {
		return err
	}
	got, want := k.stream.head, k.manifest.head
	if got.index != want.index || got.term != want.term {
		return fmt.Errorf("%w: it is of index %d, term %d, and index %d, term %d was announced", errSnapshot,
			got.index, got.term, want.index, want.term)
	}
	if err := k.store.folder.Sync(got.names()...); err != nil {
		return k.store.fail.report("syncing segment files", err)
	}
	k.manifest.head = got
	return nil
}

var errCancelled = errors.New("the snapshot was cancelled")

// Cancel drops the snapshot; after Close it does nothing.
func (k *snapshotSink) Cancel() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if k.err == nil {
		k.err = errCancelled
	}
	var err error
	switch {
	case k.local != nil:
		err = k.store.folder.Unpin(k.local.names()...)
	case k.stream != nil:
		err = k.stream.abandon()
	}
	if err != nil {
		return k.store.fail.report("removing segment files", err)
	}
	return nil
}

// installed counts an install, and tells of one that is repeated.
func (s *snapshotStore) installed(index uint64) {
	s.installs.Add(1)
	s.mu.Lock()
	again := s.last == index
	s.last = index
	s.mu.Unlock()
	if again {
		s.repeats.Add(1)
		if s.repeated != nil {
			s.repeated(index)
		}
	}
}
