package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"ftproxy/logbuffer"
)

// snapshotReader is an open snapshot. As a local one it is given to snapshotStore.restore, which does not read from it;
// read, it is the stream for a follower, and opens one file after the other. Until Close the files stay.
type snapshotReader struct {
	store  *snapshotStore
	snap   *snapshot
	stream io.Reader      // nil until the first Read
	file   logbuffer.File // being sent; nil: none is open
	sum    checksum
	closed bool
}

// Read returns the next bytes of the stream. A file that is not as it was when the snapshot was made is damage, and
// ends the process.
func (r *snapshotReader) Read(p []byte) (int, error) {
	if r.stream == nil {
		if err := r.begin(); err != nil {
			return 0, err
		}
	}
	return r.stream.Read(p)
}

func (r *snapshotReader) begin() error {
	m, err := r.manifest()
	if err != nil {
		return err
	}
	head := m.head.append(nil)
	prefix := append([]byte(streamMagic), snapshotVersion, 0, 0, 0)
	prefix = binary.LittleEndian.AppendUint64(prefix, uint64(len(head)))
	parts := []io.Reader{readerFunc(r.part(prefix)), readerFunc(r.part(head))}
	for _, f := range m.head.files {
		parts = append(parts, readerFunc(r.content(f)))
	}
	r.stream = io.MultiReader(append(parts, readerFunc(r.end()))...)
	return nil
}

// manifest reads the snapshot's manifest.
func (r *snapshotReader) manifest() (manifestFile, error) { return r.store.manifest(r.snap) }

// readerFunc is an io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// part yields bytes and counts them in.
func (r *snapshotReader) part(data []byte) func([]byte) (int, error) {
	return func(p []byte) (int, error) {
		if len(data) == 0 {
			return 0, io.EOF
		}
		n := copy(p, data)
		_, _ = r.sum.Write(data[:n]) // never fails
		data = data[n:]
		return n, nil
	}
}

// content yields a file's bytes and counts them in. What the file held when it was sealed is sent, or nothing: a
// follower's copy must be better than its leader's.
func (r *snapshotReader) content(f logbuffer.SegmentFile) func([]byte) (int, error) {
	var done int64
	var sum checksum
	return func(p []byte) (int, error) {
		if done == f.Size {
			if uint32(sum) != f.Sum {
				return 0, r.bad(f, fmt.Errorf("its checksum is %08x instead of %08x", uint32(sum), f.Sum))
			}
			if err := r.closeFile(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		if r.file == nil {
			var err error
			if r.file, err = r.store.folder.Open(f.Name); err != nil {
				return 0, r.bad(f, err)
			}
		}
		n, err := r.file.ReadAt(p[:min(int64(len(p)), f.Size-done)], done)
		if n == 0 {
			return 0, r.bad(f, err)
		}
		_, _ = r.sum.Write(p[:n]) // never fails
		_, _ = sum.Write(p[:n])
		done += int64(n)
		return n, nil
	}
}

// bad tells of a file that cannot be sent.
func (r *snapshotReader) bad(f logbuffer.SegmentFile, err error) error {
	return r.store.damaged(fmt.Errorf("%w: file %q of %d bytes: %w", errSnapshot, f.Name, f.Size, err))
}

// end yields the checksum.
func (r *snapshotReader) end() func([]byte) (int, error) {
	var sum []byte
	return func(p []byte) (int, error) {
		if sum == nil {
			sum = binary.LittleEndian.AppendUint32(make([]byte, 0, checksumSize), uint32(r.sum))
		}
		if len(sum) == 0 {
			return 0, io.EOF
		}
		n := copy(p, sum)
		sum = sum[n:]
		return n, nil
	}
}

func (r *snapshotReader) closeFile() error {
	if r.file == nil {
		return nil
	}
	f := r.file
	r.file = nil
	return f.Close()
}

// Close lets the files go.
func (r *snapshotReader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return errors.Join(r.closeFile(), r.store.folder.Unpin(r.snap.files...))
}

// unpacker takes a stream apart as it arrives: the head into memory, the files into the folder. It trusts nothing
// before finish has compared the checksum.
type unpacker struct {
	folder *logbuffer.Folder
	room   func(bytes int64) error // tells whether the disk takes so many bytes

	sum  checksum
	buf  []byte // what was collected of want bytes
	want int
	take func([]byte) error // is given the collected bytes; nil: the end was reached

	head   snapshotHead
	pinned []string // files that were begun
	out    io.Writer
	left   int64 // bytes of the last file begun that are to come
}

func newUnpacker(folder *logbuffer.Folder, room func(bytes int64) error) *unpacker {
	u := &unpacker{folder: folder, room: room}
	u.collect(streamPrefix, u.onPrefix)
	return u
}

func (u *unpacker) collect(n int, take func([]byte) error) {
	u.buf, u.want, u.take = nil, n, take
}

// Write takes the next bytes.
func (u *unpacker) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := u.step(p[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return len(p), nil
}

// step takes some of p, at least one byte.
func (u *unpacker) step(p []byte) (int, error) {
	if u.left > 0 {
		p = p[:min(int64(len(p)), u.left)]
		if _, err := u.out.Write(p); err != nil {
			if !errors.Is(err, errSnapshot) {
				err = diskError{err}
			}
			return 0, err
		}
		_, _ = u.sum.Write(p) // never fails
		if u.left -= int64(len(p)); u.left == 0 {
			return len(p), u.nextFile()
		}
		return len(p), nil
	}
	if u.take == nil {
		return 0, fmt.Errorf("%w: bytes after the end", errSnapshot)
	}
	p = p[:min(len(p), u.want-len(u.buf))]
	u.buf = append(u.buf, p...)
	if len(u.buf) < u.want {
		return len(p), nil
	}
	return len(p), u.take(u.buf)
}

func (u *unpacker) onPrefix(p []byte) error {
	size := binary.LittleEndian.Uint64(p[8:])
	switch {
	case string(p[:4]) != streamMagic:
		return fmt.Errorf("%w: it is no snapshot", errSnapshot)
	case p[4] != snapshotVersion:
		return fmt.Errorf("%w: a snapshot of version %d, this is version %d", ErrVersion, p[4], snapshotVersion)
	case size == 0 || size > maxHead:
		return fmt.Errorf("%w: a head of %d bytes", errSnapshot, size)
	}
	_, _ = u.sum.Write(p) // never fails
	u.collect(int(size), u.onHead)
	return nil
}

func (u *unpacker) onHead(p []byte) (err error) {
	_, _ = u.sum.Write(p) // never fails
	if u.head, err = decodeHead(p); err != nil {
		return err
	}
	var total int64
	for _, f := range u.head.files {
		total += f.Size
	}
	if err := u.room(total); err != nil {
		return err
	}
	return u.nextFile()
}

// nextFile begins the next file that has any bytes, or the end.
func (u *unpacker) nextFile() error {
	if err := u.closeCompared(); err != nil {
		return err
	}
	for len(u.pinned) < len(u.head.files) {
		f := u.head.files[len(u.pinned)]
		if err := u.open(f); err != nil {
			return err
		}
		if u.left = f.Size; u.left > 0 {
			return nil
		}
	}
	u.collect(checksumSize, u.onSum)
	return nil
}

// open begins a file.
func (u *unpacker) open(f logbuffer.SegmentFile) error {
	out, err := u.folder.Create(f.Name)
	switch {
	case err == nil:
		u.out = out
	case errors.Is(err, fs.ErrExist):
		return u.compare(f)
	case errors.Is(err, logbuffer.ErrCorrupt):
		return fmt.Errorf("%w: %w", errSnapshot, err)
	default:
		return diskError{err}
	}
	u.pinned = append(u.pinned, f.Name)
	return nil
}

func (u *unpacker) onSum(p []byte) error {
	if binary.LittleEndian.Uint32(p) != uint32(u.sum) {
		return fmt.Errorf("%w: wrong checksum", errSnapshot)
	}
	u.take = nil
	return nil
}

// finish tells whether the stream is complete and intact. The files are then pinned and not yet synced.
func (u *unpacker) finish() error {
	if u.take != nil || u.left > 0 {
		return fmt.Errorf("%w: the stream ended too early", errSnapshot)
	}
	return nil
}

// abandon removes what came.
func (u *unpacker) abandon() error {
	return errors.Join(u.closeCompared(), u.folder.Unpin(u.pinned...))
}

// closeCompared closes the file that is only compared; the folder closes the others.
func (u *unpacker) closeCompared() error {
	c, ok := u.out.(*comparer)
	if !ok {
		return nil
	}
	u.out = nil
	return c.have.Close()
}

// diskError is an error of this node's disk, in contrast to one of what it was given.
type diskError struct{ error }

func (e diskError) Unwrap() error { return e.error }

// compare begins a file that is here already. A name means one content for ever, so it is the same one: an install that
// is repeated, say. That is checked, not believed.
func (u *unpacker) compare(f logbuffer.SegmentFile) error {
	u.folder.Pin(f.Name)
	have, err := u.folder.Open(f.Name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = u.folder.Unpin(f.Name); err == nil && u.folder.Pinned(f.Name) == 0 {
			return u.open(f) // the live state trimmed it just now
		}
		return diskError{errors.Join(err, fs.ErrNotExist)}
	}
	if err != nil {
		return diskError{err}
	}
	u.pinned = append(u.pinned, f.Name)
	u.out = &comparer{name: f.Name, have: have}
	size, err := have.Size()
	if err != nil {
		return diskError{err}
	}
	if size != f.Size {
		return fmt.Errorf("%w: file %q is here with %d bytes", errSnapshot, f.Name, size)
	}
	return nil
}

// comparer compares what is written to it with a file.
type comparer struct {
	name string
	have logbuffer.File
	at   int64
}

func (c *comparer) Write(p []byte) (int, error) {
	buf := make([]byte, len(p))
	if _, err := c.have.ReadAt(buf, c.at); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if !bytes.Equal(buf, p) {
		return 0, fmt.Errorf("%w: file %q is here with other bytes", errSnapshot, c.name)
	}
	c.at += int64(len(p))
	return len(p), nil
}
