package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
)

// watermark is the file beside the log that remembers the last index that the log had durably. raft-wal forgets entries
// in silence when the end of its last file is damaged; the watermark is how that is found out.
//
// It is written after each write to the log and synced by sync, at most once a second: after a crash of the machine it
// may be too low, which admits a log that lost its last second, but it is never too high. Therefore it is lowered, and
// synced, before entries that it covers are cut off on purpose.
//
//	file = "FTWM" | version(1) | 0 (3) | index (8, LE) | CRC-32C of all before (4, LE)
//
// All methods may be called concurrently.
type watermark struct {
	mu    sync.Mutex
	f     *os.File
	index uint64
	dirty bool // written since the last sync
}

const (
	watermarkMagic   = "FTWM"
	watermarkVersion = 1
	watermarkSize    = 20
)

func encodeWatermark(index uint64) []byte {
	p := make([]byte, 0, watermarkSize)
	p = append(p, watermarkMagic...)
	p = append(p, watermarkVersion, 0, 0, 0)
	p = binary.LittleEndian.AppendUint64(p, index)
	return binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

var errWatermark = errors.New("the watermark file is damaged")

func decodeWatermark(p []byte) (uint64, error) {
	if len(p) != watermarkSize || string(p[:4]) != watermarkMagic {
		return 0, errWatermark
	}
	if binary.LittleEndian.Uint32(p[16:]) != crc32.Checksum(p[:16], castagnoli) {
		return 0, errWatermark
	}
	if p[4] != watermarkVersion {
		return 0, fmt.Errorf("%w: the watermark file has version %d, this is version %d", ErrVersion, p[4], watermarkVersion)
	}
	return binary.LittleEndian.Uint64(p[8:]), nil
}

func readWatermark(path string) (uint64, error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return decodeWatermark(p)
}

func openWatermark(path string) (*watermark, error) {
	index, err := readWatermark(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &watermark{f: f, index: index}, nil
}

// raise notes that the log has everything up to index durably. What is not higher is ignored.
func (w *watermark) raise(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return nil
	}
	return w.write(index)
}

// lower makes the watermark at most index, durably: after a return of nil the entries above may be cut off.
func (w *watermark) lower(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index >= w.index {
		return nil
	}
	if err := w.write(index); err != nil {
		return err
	}
	w.dirty = false
	return w.f.Sync()
}

func (w *watermark) write(index uint64) error {
	if _, err := w.f.WriteAt(encodeWatermark(index), 0); err != nil {
		return err
	}
	w.index, w.dirty = index, true
	return nil
}

// sync makes the watermark durable if it changed. It does not hold up raise and lower meanwhile.
func (w *watermark) sync() error {
	w.mu.Lock()
	dirty := w.dirty
	w.dirty = false
	w.mu.Unlock()
	if !dirty {
		return nil
	}
	return w.f.Sync()
}

func (w *watermark) close() error {
	return errors.Join(w.sync(), w.f.Close())
}
