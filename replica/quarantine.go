package replica

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"

	"ftproxy/logbuffer"
)

// The data folder:
//
//	lock                 held by the process that works on the folder
//	live/                the node's data, which lives and is moved aside as a whole
//	    identity         the server id: name#random
//	    operator         the name of the operator that the data belongs to
//	    lineage          the life of the log that the data belongs to; absent until it is known
//	    quarantined      why the data may not be used; absent while it may
//	    stable.db        Raft's term and vote
//	    watermark        see watermark.go
//	    wal/             the Raft log
//	    snapshots/       manifests; see snapshotstore_format.go
//	    segments/        the buffers' files
//	next/                the same, empty, under the fresh id that a quarantined node asks to be admitted by
//	quarantine-1/ …      data that was moved aside; nothing of it is read again
//
// Folders are made under another name and renamed when they are complete, so that a missing part means damage.
const (
	liveFolder  = "live"
	nextFolder  = "next"
	asideFolder = "quarantine-"

	identityFile   = "identity"
	operatorFile   = "operator"
	lineageFile    = "lineage"
	quarantineFile = "quarantined"
	stableFile     = "stable.db"
	watermarkFile  = "watermark"
	walFolder      = "wal"
	manifestFolder = "snapshots"
	segmentFolder  = "segments"
)

// quarantineError says why the data is not used; it wraps ErrQuarantined.
type quarantineError struct {
	dir     string
	reasons []string
}

func (e *quarantineError) Error() string {
	return fmt.Sprintf("%v: %s: %s: the node has to be admitted anew by the others, or, if there are none, recovered by "+
		"hand", ErrQuarantined, e.dir, strings.Join(e.reasons, "; "))
}

func (*quarantineError) Unwrap() error { return ErrQuarantined }

// inspection is what a look at the data found, without changing it.
type inspection struct {
	identity, operator, lineage string

	mark     uint64
	scan     logScan
	snapshot manifestFile
	// reasons say why the data must not be used. Those in lost mean only that the newest entries are gone: a human may
	// decide to go on without them.
	reasons, lost []string
}

func (n *inspection) bad(format string, args ...any) {
	n.reasons = append(n.reasons, fmt.Sprintf(format, args...))
}

// inspect judges the data in a folder. The error is of class ErrStorage or ErrVersion: nothing was found out.
func inspect(dir string) (*inspection, error) {
	n := &inspection{}
	n.identity, _ = readLine(dir, identityFile) // whose data it is matters even if it is damaged;
	n.operator, _ = readLine(dir, operatorFile) // what is wrong with these files is judged below
	reason, err := os.ReadFile(filepath.Join(dir, quarantineFile))
	switch {
	case err == nil:
		n.lost = append(n.lost, strings.TrimSpace(string(reason)))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: reading the data folder: %w", ErrStorage, err)
	}
	steps := []func(dir string) error{n.inspectParts, n.inspectNames, n.inspectLog, n.inspectSnapshot}
	for _, step := range steps {
		if err := step(dir); err != nil && !errors.Is(err, ErrVersion) {
			return nil, fmt.Errorf("%w: reading the data folder: %w", ErrStorage, err)
		} else if err != nil {
			return nil, err
		}
		if len(n.reasons) > 0 {
			return n, nil // what follows builds on this
		}
	}
	n.compare()
	return n, nil
}

// inspectParts looks for parts that are missing: every folder is made complete.
func (n *inspection) inspectParts(dir string) error {
	parts := []string{
		identityFile, operatorFile, stableFile, watermarkFile, walFolder, filepath.Join(walFolder, metadb.FileName),
		manifestFolder, segmentFolder,
	}
	for _, part := range parts {
		_, err := os.Stat(filepath.Join(dir, part))
		if errors.Is(err, fs.ErrNotExist) {
			n.bad("%s is missing beside the rest", part)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// inspectNames reads the small files.
func (n *inspection) inspectNames(dir string) (err error) {
	if n.identity, err = readLine(dir, identityFile); err != nil {
		return n.judge(err)
	}
	if n.operator, err = readLine(dir, operatorFile); err != nil {
		return n.judge(err)
	}
	if n.lineage, err = readLine(dir, lineageFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n.judge(err)
	}
	n.mark, err = readWatermark(filepath.Join(dir, watermarkFile))
	return n.judge(err)
}

// belongs returns an error of class ErrConfig if the data is known to be another operator's or another node's.
func (n *inspection) belongs(c storageConfig) error {
	node, _, _ := strings.Cut(n.identity, "#")
	switch {
	case n.operator != "" && n.operator != c.operator:
		return fmt.Errorf("%w: the data folder %s is of the operator %q, this is %q: give every operator a folder of its "+
			"own, or the name back", ErrConfig, c.dir, n.operator, c.operator)
	case node != "" && node != c.node:
		return fmt.Errorf("%w: the data folder %s is of node %q, this is %q: every node needs its own folder, or give the "+
			"name back", ErrConfig, c.dir, node, c.node)
	}
	return nil
}

// judge makes damage a reason and returns any other error.
func (n *inspection) judge(err error) error {
	for _, damage := range []error{errLine, errWatermark, errLogDamaged, errSnapshot, errBolt} {
		if errors.Is(err, damage) {
			n.bad("%v", err)
			return nil
		}
	}
	return err
}

// inspectLog reads through the stable store, the log's description and its newest file.
func (n *inspection) inspectLog(dir string) (err error) {
	for _, name := range []string{stableFile, filepath.Join(walFolder, metadb.FileName)} {
		if err = n.judge(readThroughBolt(filepath.Join(dir, name))); err != nil || len(n.reasons) > 0 {
			return err
		}
	}
	if n.scan, err = scanLog(filepath.Join(dir, walFolder)); err != nil {
		return n.judge(err)
	}
	if n.scan.damage != "" {
		n.lost = append(n.lost, n.scan.damage)
	}
	return nil
}

// inspectSnapshot reads the newest manifest and looks for the files that it names.
func (n *inspection) inspectSnapshot(dir string) error {
	_, m, _, err := newestManifest(filepath.Join(dir, manifestFolder))
	if err != nil {
		return n.judge(err)
	}
	n.snapshot = m
	for _, f := range m.head.files {
		stat, err := os.Stat(filepath.Join(dir, segmentFolder, f.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			n.bad("segment %s of the snapshot is missing", f.Name)
		case err != nil:
			return err
		case stat.Size() != f.Size:
			n.bad("segment %s of the snapshot has %d bytes instead of %d", f.Name, stat.Size(), f.Size)
		}
	}
	return nil
}

// compare holds log, snapshot and watermark against each other.
func (n *inspection) compare() {
	snapshot := n.snapshot.head.index
	if reach := max(n.scan.last, snapshot); n.lineage == "" && reach > 1 {
		n.bad("%s is missing, and the log goes on to entry %d", lineageFile, reach) // it is written before the second one
	}
	if n.scan.first > snapshot+1 {
		n.bad("the log begins with entry %d, and the newest snapshot ends with %d", n.scan.first, snapshot)
	}
	if reach := max(n.scan.last, snapshot); reach < n.mark {
		n.lost = append(n.lost, fmt.Sprintf("log and snapshot end with entry %d, and entry %d was durable", reach, n.mark))
	}
}

// markQuarantined makes the data unusable, durably, for a reason that is found at run time.
func markQuarantined(fs files, dir, reason string) error {
	return writeWhole(fs, filepath.Join(dir, quarantineFile), []byte(reason+"\n"))
}

var errBolt = errors.New("the file is damaged")

// boltTimeout bounds the wait for a bbolt file's own lock. Nobody else can hold it, since the folder is locked.
const boltTimeout = 5 * time.Second

// readThroughBolt touches every page of a small bbolt file.
func readThroughBolt(path string) error {
	err := guarded(func() error {
		db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: boltTimeout})
		if err != nil {
			return err
		}
		defer db.Close() //nolint:errcheck // it was only read
		return db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
				return b.ForEach(func(_, v []byte) error {
					_ = crc32.ChecksumIEEE(v) // reads it
					return nil
				})
			})
		})
	})
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s: %w", errBolt, filepath.Base(path), err)
	}
	return err
}

// guarded makes an error of a panic, and of a fault in a mapped file that is shorter than it was: bbolt has both for
// damaged files.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it makes no sense: %v", p)
		}
	}()
	return f()
}

var errLine = errors.New("the file is damaged")

// writeLine stores a name in a small file, durably.
//
//	file = kind ' ' version ' ' quoted name ' ' CRC-32C of all before '\n'
func writeLine(fs files, dir, kind, value string) error {
	line := kind + " 1 " + strconv.Quote(value) + " "
	line += fmt.Sprintf("%08x\n", crc32.Checksum([]byte(line), castagnoli))
	return writeWhole(fs, filepath.Join(dir, kind), []byte(line))
}

func readLine(dir, kind string) (string, error) {
	p, err := os.ReadFile(filepath.Join(dir, kind))
	if err != nil {
		return "", err
	}
	const sumSize = 9
	cut := len(p) - sumSize
	if cut < 0 || fmt.Sprintf("%08x\n", crc32.Checksum(p[:cut], castagnoli)) != string(p[cut:]) {
		return "", fmt.Errorf("%s: %w: wrong checksum", kind, errLine)
	}
	rest, ok := strings.CutPrefix(strings.TrimSpace(string(p[:cut])), kind+" ")
	version, quoted, _ := strings.Cut(rest, " ")
	if ok && version != "1" {
		return "", fmt.Errorf("%w: %s of version %s, this is version 1", ErrVersion, kind, version)
	}
	value, err := strconv.Unquote(quoted)
	if !ok || err != nil {
		return "", fmt.Errorf("%s: %w", kind, errLine)
	}
	return value, nil
}

// newIdentity returns a server id for a node: a node that lost its data never takes up its old one.
func newIdentity(node string) string {
	var p [8]byte
	_, _ = rand.Read(p[:]) // never fails
	return node + "#" + hex.EncodeToString(p[:])
}

// prepareNext returns the fresh server id by which a quarantined node asks to be admitted. The id is durable, and the
// same each time until moveAside. operator and node are the names of both.
func prepareNext(dir, operator, node string) (identity string, err error) {
	unlock, err := lockFolder(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	next := filepath.Join(dir, nextFolder)
	if identity, err = readLine(next, identityFile); err == nil {
		return identity, nil
	}
	if err := createData(osFiles{}, next, operator, node); err != nil {
		return "", fmt.Errorf("%w: preparing fresh data: %w", ErrStorage, err)
	}
	return readLine(next, identityFile)
}

// moveAside puts the quarantined data out of the way and the prepared one in its place. It must be called only when a
// leader with a quorum has admitted the id that prepareNext returned. It returns the folder that the data is in.
func moveAside(dir string) (aside string, err error) {
	unlock, err := lockFolder(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	next, live := filepath.Join(dir, nextFolder), filepath.Join(dir, liveFolder)
	if _, err = os.Stat(next); err != nil {
		return "", fmt.Errorf("%w: nothing is prepared in place of the quarantined data: %w", logbuffer.ErrUnavailable, err)
	}
	for n := 1; err == nil; n++ {
		aside = filepath.Join(dir, asideFolder+strconv.Itoa(n))
		_, err = os.Lstat(aside)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %w", ErrStorage, err)
	}
	var fs osFiles
	if err := errors.Join(fs.Rename(live, aside), fs.SyncDir(dir)); err != nil {
		return "", fmt.Errorf("%w: moving the quarantined data aside: %w", ErrStorage, err)
	}
	if err := errors.Join(fs.Rename(next, live), fs.SyncDir(dir)); err != nil {
		return "", fmt.Errorf("%w: putting fresh data in its place: %w", ErrStorage, err)
	}
	return aside, nil
}
