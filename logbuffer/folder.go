package logbuffer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

// segmentSuffix ends the name of every segment file; Sweep deletes nothing else.
const segmentSuffix = ".seg"

// Folder counts who still names a segment file: live buffers, and the manifests that are kept. The last Unpin unlinks.
// All methods may be called concurrently; none but Sync and SyncEarly waits for what was written to reach the disk.
type Folder struct {
	fs FS
	// token stands in the names of the files made here: no other Folder, before or after, on this node or another, makes
	// a file of the same name, so that a name means one content for ever.
	token  string
	mutant mutants
	// damaged is told when a file cannot be read; see OnDamage.
	damaged func(error)
	// chunk is what a scanner reads at least at a time, interval the bytes between two entries of a segment's index;
	// tests make them small.
	chunk, interval uint64
	early           early

	// syncing is held while files are synced: an operating system tells of a failed write only once, and everybody who
	// relies on it must learn of that.
	syncing sync.Mutex

	mu   sync.Mutex
	made uint64               // guarded by mu: files made here; numbers their names
	pins map[string]int       // guarded by mu: > 0 for every name in it
	open map[string]*madeFile // guarded by mu: made here and not given to Sync yet; the handle sees every write error
	lost error                // guarded by mu: the first failed sync; never retried
}

// mutants switch protections off, one each; only tests set them.
type mutants struct {
	skipCRC, rewriteSealed, ignorePins, syncOnce bool
}

// OpenFolder returns a Folder in which nothing is pinned yet. It does not look at the files: pin what the manifests
// name, then Sweep.
func OpenFolder(files FS) (*Folder, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("segment folder: random name: %w", err)
	}
	return &Folder{
		fs: files, token: fmt.Sprintf("%x", b), chunk: chunkBytes, interval: indexEvery,
		pins: map[string]int{}, open: map[string]*madeFile{},
	}, nil
}

// OnDamage has report called with every error of reading a segment that is not ErrTrimmed: the file is missing, short
// or damaged (the error wraps ErrCorrupt), or the disk fails. The same error is returned to who reads. It must be
// called before the Folder is used; report may be called concurrently, and must not call the buffer that is being read.
func (f *Folder) OnDamage(report func(error)) { f.damaged = report }

// failed reports an error of reading a segment, and returns it.
func (f *Folder) failed(err error) error {
	if f.damaged != nil && err != nil && !errors.Is(err, ErrTrimmed) {
		f.damaged(err)
	}
	return err
}

// Pin adds a reference to each file.
func (f *Folder) Pin(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		f.pins[name]++
	}
}

// Unpin takes a reference from each file and unlinks those that have none left. It panics on a file that is not pinned.
// An error means that a file could not be unlinked; the references are gone all the same.
func (f *Folder) Unpin(names ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, name := range names {
		n := f.pins[name] - 1
		if n < 0 {
			panic(fmt.Sprintf("logbuffer: unpin of %s, which is not pinned", name))
		}
		if f.pins[name] = n; n == 0 {
			delete(f.pins, name)
		}
		if n == 0 || f.mutant.ignorePins {
			errs = append(errs, f.unlink(name))
		}
	}
	return errors.Join(errs...)
}

// unlink removes a file that nobody names; f.mu is held.
func (f *Folder) unlink(name string) error {
	var errs []error
	if file, ok := f.open[name]; ok {
		delete(f.open, name)
		errs = append(errs, file.Close())
	}
	if err := f.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("unlink %s: %w", name, err))
	}
	return errors.Join(errs...)
}

// Pinned returns the number of references to a file.
func (f *Folder) Pinned(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pins[name]
}

// Sweep deletes the segment files that nobody pins: what a crash left, or what no manifest names any more.
func (f *Folder) Sweep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := f.fs.List()
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var errs []error
	for _, name := range names {
		if strings.HasSuffix(name, segmentSuffix) && f.pins[name] == 0 {
			errs = append(errs, f.unlink(name))
		}
	}
	return errors.Join(errs...)
}

// Create makes a file of a given name and pins it once: a file that is received from another node, whose manifest names
// it. A left-over of that name that nobody pins is replaced; one that is pinned is an error that wraps fs.ErrExist. The
// Folder closes the file, when it is synced or unlinked.
func (f *Folder) Create(name string) (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(name)
}

func (f *Folder) create(name string) (File, error) {
	if !strings.HasSuffix(name, segmentSuffix) || strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("create %q: not a segment's name: %w", name, ErrCorrupt)
	}
	if f.pins[name] > 0 {
		return nil, fmt.Errorf("create %s: it is in use: %w", name, fs.ErrExist)
	}
	made, err := f.fs.Create(name)
	if errors.Is(err, fs.ErrExist) {
		if err = f.unlink(name); err == nil {
			made, err = f.fs.Create(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	file := &madeFile{File: made, early: &f.early}
	f.pins[name] = 1
	f.open[name] = file
	return file, nil
}

// createNext makes and pins a new segment file for a buffer, named after the buffer and its first offset.
func (f *Folder) createNext(buffer string, first uint64) (string, File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	name := fmt.Sprintf("%s-%020d-%s-%d%s", buffer, first, f.token, f.made, segmentSuffix)
	file, err := f.create(name)
	return name, file, err
}

// Open opens a file for reading. The caller closes it; it stays readable after its last Unpin.
func (f *Folder) Open(name string) (File, error) { return f.fs.Open(name) }
