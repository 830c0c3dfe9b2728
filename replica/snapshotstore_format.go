package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"ftproxy/logbuffer"
)

// A snapshot is a manifest file in snapshots/, and the segment files in segments/ that it names:
//
//	manifest = "FTSN" | version(1) | 0 (3) | configuration index (8) | configuration | head | CRC-32C (4)
//	head     = index (8) | term (8) | files (4) | files × (name | bytes (8) | CRC-32C (4)) | the state's own manifest
//
// To a follower it travels with the files' bytes:
//
//	stream   = "FTSS" | version(1) | 0 (3) | length of head (8) | head | bytes of each file | CRC-32C (4)
//
// Numbers are little endian; configuration, name and state's manifest have their length (4) before them. The
// checksums cover all before them.
const (
	manifestMagic   = "FTSN"
	streamMagic     = "FTSS"
	snapshotVersion = 1

	streamPrefix = 16 // bytes of a stream before its head
	checksumSize = 4

	// maxHead bounds the head of a stream in bytes: the state's manifest is a few megabytes.
	maxHead = 1 << 30
	// maxSnapshotFiles bounds the files of a snapshot, maxFile the bytes of each, far above what a segment takes.
	maxSnapshotFiles = 1 << 20
	maxFile          = 1 << 40
)

var errSnapshot = errors.New("the snapshot is damaged")

// snapshotHead is what a snapshot holds besides the bytes of its files.
type snapshotHead struct {
	index, term uint64
	files       []logbuffer.SegmentFile
	manifest    []byte
}

func (h *snapshotHead) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.index)
	dst = binary.LittleEndian.AppendUint64(dst, h.term)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(h.files)))
	for _, f := range h.files {
		dst = appendPart(dst, []byte(f.Name))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Size))
		dst = binary.LittleEndian.AppendUint32(dst, f.Sum)
	}
	return appendPart(dst, h.manifest)
}

// names returns the files' names.
func (h *snapshotHead) names() []string { return fileNames(h.files) }

func fileNames(files []logbuffer.SegmentFile) []string {
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	return names
}

func decodeHead(p []byte) (snapshotHead, error) {
	d := partReader{rest: p}
	h := snapshotHead{index: d.number64(), term: d.number64()}
	count := d.number32()
	if count > maxSnapshotFiles {
		return h, fmt.Errorf("%w: %d files", errSnapshot, count)
	}
	for range count {
		f := logbuffer.SegmentFile{Name: string(d.part()), Size: int64(d.number64()), Sum: d.number32()}
		h.files = append(h.files, f)
		if d.err != nil {
			return h, d.err
		}
	}
	h.manifest = d.part()
	if d.err == nil && len(d.rest) > 0 {
		return h, fmt.Errorf("%w: %d bytes too many", errSnapshot, len(d.rest))
	}
	return h, errors.Join(d.err, h.validate())
}

// validate refuses names that would leave the folder or meet each other.
func (h *snapshotHead) validate() error {
	names := h.names()
	slices.Sort(names)
	for i, name := range names {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || i > 0 && names[i-1] == name {
			return fmt.Errorf("%w: bad file name %q", errSnapshot, name)
		}
	}
	for _, f := range h.files {
		if f.Size < 0 || f.Size > maxFile {
			return fmt.Errorf("%w: file %q has %d bytes", errSnapshot, f.Name, f.Size)
		}
	}
	return nil
}

// manifestFile is the content of a file in snapshots/.
type manifestFile struct {
	configuration      raft.Configuration
	configurationIndex uint64
	head               snapshotHead
}

func (m *manifestFile) encode() []byte {
	p := append([]byte(manifestMagic), snapshotVersion, 0, 0, 0)
	p = binary.LittleEndian.AppendUint64(p, m.configurationIndex)
	p = appendPart(p, raft.EncodeConfiguration(m.configuration))
	p = m.head.append(p)
	return binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

func decodeManifest(p []byte) (m manifestFile, err error) {
	if len(p) < 8+checksumSize || string(p[:4]) != manifestMagic {
		return m, fmt.Errorf("%w: it is no snapshot's manifest", errSnapshot)
	}
	body := p[:len(p)-checksumSize]
	if binary.LittleEndian.Uint32(p[len(body):]) != crc32.Checksum(body, castagnoli) {
		return m, fmt.Errorf("%w: wrong checksum", errSnapshot)
	}
	if p[4] != snapshotVersion {
		return m, fmt.Errorf("%w: a snapshot of version %d, this is version %d", ErrVersion, p[4], snapshotVersion)
	}
	d := partReader{rest: body[8:]}
	m.configurationIndex = d.number64()
	configuration := d.part()
	if d.err != nil {
		return m, d.err
	}
	// The checksum was right, so this is what EncodeConfiguration made; DecodeConfiguration panics on anything else.
	m.configuration = raft.DecodeConfiguration(configuration)
	m.head, err = decodeHead(d.rest)
	return m, err
}

func appendPart(dst, p []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(p))), p...)
}

// partReader takes numbers and parts off the front of rest; after an error it returns zeros.
type partReader struct {
	rest []byte
	err  error
}

func (d *partReader) take(n int) []byte {
	if d.err == nil && n > len(d.rest) {
		d.err = fmt.Errorf("%w: it ends too early", errSnapshot)
	}
	if d.err != nil {
		return nil
	}
	p := d.rest[:n:n]
	d.rest = d.rest[n:]
	return p
}

func (d *partReader) number32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *partReader) number64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *partReader) part() []byte { return d.take(int(d.number32())) }
