package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// stateVersion is the newest format of a manifest:
//
//	manifest = magic (4) | version (1) | applied | now | hash (8) | settings | proposers | ledgers | versions |
//	           comparison | dedup | IN | OUT | DEAD | CRC-32C of all before (4, LE)
const (
	stateVersion = 1
	stateMagic   = "ftps"
	stateHead    = len(stateMagic) + 1
)

// Image is a state at one moment: a manifest and the segment files that it names, which are sealed and never change.
// The files are not synced yet: sync them and their folder before the manifest.
type Image struct {
	Manifest []byte
	Files    []logbuffer.SegmentFile
}

// names returns the names of the files.
func (i *Image) names() []string { return fileNames(i.Files) }

// Seal seals the open segments and returns the image of the state. What is in memory only is written, without fsync;
// the cost does not grow with the backlog. Until the image's files are pinned, nothing may be applied.
func (s *State) Seal() (*Image, error) {
	for _, b := range []*logbuffer.Buffer{s.in, s.out} {
		if err := b.Seal(); err != nil {
			return nil, fmt.Errorf("seal: %w", err)
		}
	}
	p := append([]byte(stateMagic), stateVersion)
	p = s.appendCore(p)
	p = s.seen.Append(p)
	p = s.in.AppendManifest(p)
	p = s.out.AppendManifest(p)
	p = s.dead.AppendManifest(p)
	p = binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
	return &Image{Manifest: p, Files: slices.Concat(s.in.Segments(), s.out.Segments())}, nil
}

// appendCore encodes what is neither of dedup nor of logbuffer.
func (s *State) appendCore(p []byte) []byte {
	p = binary.AppendUvarint(p, s.applied)
	p = binary.AppendUvarint(p, uint64(s.now))
	p = binary.LittleEndian.AppendUint64(p, s.hash)
	p = s.settings.appendTo(p)
	p = s.proposers.appendTo(p)
	p = s.ledgers.appendTo(p)
	p = binary.AppendUvarint(p, uint64(len(s.versions)))
	for _, server := range slices.Sorted(maps.Keys(s.versions)) {
		p = binary.AppendUvarint(appendString(p, server), uint64(s.versions[server]))
	}
	return s.compared.appendTo(p)
}

// RestoreState returns the state of a manifest; the segment files that it names are in the folder. The manifest's
// memory is not kept. An error wraps logbuffer.ErrCorrupt, or ErrVersion if a newer build wrote the manifest; a missing
// or damaged file may show only when it is read.
func RestoreState(c StateConfig, manifest []byte) (*State, error) {
	s, err := restoreState(c, manifest)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return s, nil
}

func restoreState(c StateConfig, p []byte) (*State, error) {
	const tail = crc32.Size
	if len(p) < stateHead+tail || string(p[:len(stateMagic)]) != stateMagic {
		return nil, fmt.Errorf("%w: %d bytes that are no manifest", logbuffer.ErrCorrupt, len(p))
	}
	sum := binary.LittleEndian.Uint32(p[len(p)-tail:])
	if got := crc32.Checksum(p[:len(p)-tail], castagnoli); got != sum {
		return nil, fmt.Errorf("%w: CRC is %08x, the bytes give %08x", logbuffer.ErrCorrupt, sum, got)
	}
	if v := p[len(stateMagic)]; v != stateVersion {
		return nil, versionError("manifest", int(v))
	}
	d := &bodyReader{p: p[stateHead : len(p)-tail]}
	s := &State{config: c, versions: make(map[string]int)}
	if s.restoreCore(d); d.err != nil {
		return nil, d.err
	}
	seen, rest, err := dedup.Restore(s.settings.Dedup, d.p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", logbuffer.ErrCorrupt, err)
	}
	s.seen = seen
	if err := s.restoreBuffers(rest); err != nil {
		return nil, err
	}
	if err := s.consistent(); err != nil {
		return nil, closing(err, s.in, s.out)
	}
	return s, nil
}

func (s *State) restoreCore(d *bodyReader) {
	s.applied = d.uvarint()
	s.now = int64(d.int(1 << 62))
	s.hash = d.uint64()
	s.settings = d.settings()
	if d.err != nil {
		return
	}
	s.proposers = restoreProposers(d, s.settings.Verdicts)
	s.ledgers = restoreLedgers(d)
	for range d.count(2) {
		server := d.stringOf(maxName)
		s.versions[server] = d.int(1 << 16)
	}
	s.compared = restoreComparison(d)
}

func (s *State) restoreBuffers(p []byte) error {
	in, p, err := logbuffer.RestoreBuffer(bufferIn, s.config.Folder, s.config.Buffer, p)
	if err != nil {
		return fmt.Errorf("buffer %q: %w", bufferIn, err)
	}
	out, p, err := logbuffer.RestoreBuffer(bufferOut, s.config.Folder, s.config.Buffer, p)
	if err != nil {
		return closing(fmt.Errorf("buffer %q: %w", bufferOut, err), in)
	}
	dead, p, err := logbuffer.RestoreDead(s.settings.letters(), p)
	if err == nil && len(p) > 0 {
		err = fmt.Errorf("%w: %d bytes too many", logbuffer.ErrCorrupt, len(p))
	}
	if err != nil {
		return closing(err, in, out)
	}
	s.in, s.out, s.dead = in, out, dead
	return nil
}

// consistent returns an error if the parts of a restored state contradict each other.
func (s *State) consistent() error {
	n := 0
	for _, name := range []string{bufferIn, bufferOut} {
		readers := s.buffer(name).Cursors().Readers
		n += len(readers)
		if len(readers) != len(s.readersOf(name)) {
			return fmt.Errorf("%w: buffer %q has other readers than the settings", logbuffer.ErrCorrupt, name)
		}
		for i := range readers {
			r, buffer, _ := s.readerCalled(readers[i].Name)
			if r.Name == "" || buffer != name || s.ledgers[r.Name] == nil {
				return fmt.Errorf("%w: reader %q of buffer %q is not in the settings", logbuffer.ErrCorrupt, r.Name, name)
			}
			l := s.ledger(name, r.Name, readers[i].PendingTuples)
			if err := l.balance(); err != nil {
				return err
			}
		}
	}
	if len(s.ledgers) != n {
		return fmt.Errorf("%w: ledgers of readers that are not in the settings", logbuffer.ErrCorrupt)
	}
	return nil
}

// closing closes buffers that are not used after all and returns the error that led there.
func closing(err error, buffers ...*logbuffer.Buffer) error {
	for _, b := range buffers {
		err = errors.Join(err, b.Close())
	}
	return err
}

// Close gives up the state's segment files; they are unlinked unless a manifest that is kept names them. The state must
// not be used after it.
func (s *State) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }
