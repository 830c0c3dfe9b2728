package logbuffer

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// FS is one folder of files, as much of it as segments need. Calls may be concurrent.
type FS interface {
	// Create makes an empty file for writing and reading, and fails with fs.ErrExist if there is one of that name.
	Create(name string) (File, error)
	// Open opens a file for reading (and for Sync); fs.ErrNotExist if there is none.
	Open(name string) (File, error)
	// Remove unlinks a file; a file that is open stays readable.
	Remove(name string) error
	// List returns the names of all files, in any order.
	List() ([]string, error)
	// SyncFolder makes creations and removals durable.
	SyncFolder() error
}

// File is an open file of an FS. Writes go to its end and are durable only after Sync; one writer at a time, reads may
// be concurrent with it.
type File interface {
	io.Writer
	io.ReaderAt
	io.Closer
	// Sync makes all that was written to the file, through any handle, durable.
	Sync() error
	// Size returns the file's length in bytes.
	Size() (int64, error)
}

// OSFolder returns the folder that root stands for; the caller keeps root open as long as the FS is used. Nothing
// outside of it is ever touched. Files are created with mode 0600.
func OSFolder(root *os.Root) FS { return osFolder{root} }

type osFolder struct{ root *os.Root }

func (o osFolder) Create(name string) (File, error) {
	f, err := o.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	return osFile{f}, nil
}

func (o osFolder) Open(name string) (File, error) {
	f, err := o.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return osFile{f}, nil
}

func (o osFolder) Remove(name string) error {
	if err := o.root.Remove(name); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

func (o osFolder) List() ([]string, error) {
	entries, err := fs.ReadDir(o.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (o osFolder) SyncFolder() error {
	d, err := o.root.Open(".")
	if err != nil {
		return fmt.Errorf("open folder: %w", err)
	}
	if err := d.Sync(); err != nil {
		_ = d.Close()
		return fmt.Errorf("sync folder: %w", err)
	}
	return d.Close()
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("stat: %w", err)
	}
	return info.Size(), nil
}
