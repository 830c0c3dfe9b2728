package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"ftproxy/logbuffer"
)

// files is the file system as the data folder needs it besides the log's and the buffers' own files. Nothing that it
// does is durable before the Sync or SyncDir that covers it. Implementations may be called concurrently.
type files interface {
	// Create makes a new, empty file; there must be none of that name.
	Create(path string) (file, error)
	// Mkdir makes a folder; there must be none of that name.
	Mkdir(path string) error
	Rename(from, to string) error
	// RemoveAll removes a file or a folder with all that is in it; it is no error if there is none.
	RemoveAll(path string) error
	// SyncDir makes the names in a folder durable, not what is in the files.
	SyncDir(path string) error
}

// file is a file being written. Sync makes what was written durable, not the file's name.
type file interface {
	io.Writer
	Sync() error
	Close() error
}

// osFiles is the operating system's file system.
type osFiles struct{}

func (osFiles) Create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFiles) Mkdir(path string) error      { return os.Mkdir(path, 0o700) }
func (osFiles) Rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) RemoveAll(path string) error  { return os.RemoveAll(path) }

func (osFiles) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeWhole replaces a small file so that after a crash either the former or the new one is there, whole. When it
// returns nil the new one is durable.
func writeWhole(fs files, path string, data []byte) error {
	tmp := path + tmpSuffix
	if err := fs.RemoveAll(tmp); err != nil {
		return err
	}
	f, err := fs.Create(tmp)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := fs.Rename(tmp, path); err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(path))
}

// tmpSuffix marks files and folders that are being made. They are removed at start.
const tmpSuffix = ".tmp"

// lockFolder takes the folder for this process. The lock is a bare descriptor, so that it is held until unlock is
// called or the process ends, even if nobody remembers it.
func lockFolder(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, "lock")
	fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: opening %s: %w: the data folder must be writable", ErrStorage, path, err)
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = syscall.Close(fd) // it was never used
		return nil, fmt.Errorf("%w: %s is in use: another process works on this data folder, or this one failed to open it "+
			"before, which is not tried twice: stop the other, or start anew", ErrStorage, dir)
	}
	return func() { _ = syscall.Close(fd) }, nil // closing releases the lock in any case
}

// freeSpace watches the free space of the data folder's disk, so that tuples are refused before the disk is full. All
// methods may be called concurrently.
type freeSpace struct {
	// minimum is the free space in bytes below which tuples are refused.
	minimum int64
	dir     string
	// statfs returns free and total bytes; now is monotonic.
	statfs func(dir string) (free, total int64, err error)
	now    func() time.Time

	mu      sync.Mutex
	checked time.Time // when free was read; zero: never
	free    int64
}

const (
	// freeSpaceAge is how long a reading of the free space is used. Less than any minimum is written meanwhile.
	freeSpaceAge = 100 * time.Millisecond
	// leastFree is the smallest default minimum: two segments of the log, which are preallocated, and the memory tails.
	leastFree = 256 << 20
)

// newFreeSpace watches dir. minimum 0 means: twice the log between snapshots, at least 256 MiB, but at most a quarter
// of the disk.
func newFreeSpace(dir string, minimum, snapshotBytes int64) (*freeSpace, error) {
	d := &freeSpace{minimum: minimum, dir: dir, statfs: statfs, now: time.Now}
	free, total, err := statfs(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStorage, err)
	}
	if minimum == 0 {
		d.minimum = min(max(leastFree, 2*snapshotBytes), total/4)
	}
	d.free, d.checked = free, d.now()
	return d, nil
}

// check returns nil while there is room. Otherwise the error is of class logbuffer.ErrUnavailable, and goes away when
// space returns; or of ErrStorage if the disk does not answer.
func (d *freeSpace) check() error {
	free, err := d.read()
	if err != nil {
		return err
	}
	if free < d.minimum {
		return fmt.Errorf("%w: the disk of %s has %d MiB free and needs %d MiB: free some space, it is taken up by itself",
			logbuffer.ErrUnavailable, d.dir, free>>20, d.minimum>>20)
	}
	return nil
}

// room returns nil if the disk takes so many bytes more without going below a half of the minimum.
func (d *freeSpace) room(bytes int64) error {
	free, err := d.read()
	if err != nil {
		return err
	}
	if free-bytes < d.minimum/2 {
		return fmt.Errorf("%w: the disk of %s has %d MiB free, which is too little for another %d MiB: free some space",
			logbuffer.ErrUnavailable, d.dir, free>>20, bytes>>20)
	}
	return nil
}

// read returns the free bytes, at most freeSpaceAge old.
func (d *freeSpace) read() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.now(); now.Sub(d.checked) >= freeSpaceAge {
		free, _, err := d.statfs(d.dir)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrStorage, err)
		}
		d.free, d.checked = free, now
	}
	return d.free, nil
}

func statfs(dir string) (free, total int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	size := int64(s.Bsize) //nolint:unconvert // its type differs between platforms
	return int64(s.Bavail) * size, int64(s.Blocks) * size, nil
}

// failure makes the first failure of the storage final: it is reported once, and every later write gets it back without
// being tried, since a failed fsync that succeeds when repeated has lost data.
type failure struct {
	once  sync.Once
	fatal func(error)

	mu          sync.Mutex
	err         error // guarded by mu; set once
	quarantined bool  // guarded by mu: the data is marked so
}

// quarantineCure says what can be done about damage that is found at run time.
const quarantineCure = "start the node again, and the others give it a good copy; a node alone has to be recovered " +
	"offline, or needs a copy of its data folder if that finds the damage again"

// report makes err the storage's failure, if it is the first, and returns it with its class: ErrQuarantined if the data
// was marked so, ErrVersion if that is what err wraps, else ErrStorage.
func (f *failure) report(what string, err error) error {
	f.mu.Lock()
	quarantined := f.quarantined
	f.mu.Unlock()
	switch {
	case quarantined:
		err = fmt.Errorf("%w: %s: %w: %s", ErrQuarantined, what, err, quarantineCure)
	case errors.Is(err, ErrVersion):
		err = fmt.Errorf("%s: %w", what, err)
	default:
		err = fmt.Errorf("%w: %s: %w", ErrStorage, what, err)
	}
	f.once.Do(func() {
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
		f.fatal(err)
	})
	return err
}

// quarantine notes that the data is marked as quarantined.
func (f *failure) quarantine() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quarantined = true
}

// sticky returns the failure, or nil while there is none.
func (f *failure) sticky() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
