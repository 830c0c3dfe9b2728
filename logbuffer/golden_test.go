package logbuffer_test

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ftproxy/logbuffer"
)

//nolint:gochecknoglobals // a flag of the test binary
var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares bytes with a hex file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	var lines strings.Builder
	for b := got; len(b) > 0; b = b[min(32, len(b)):] {
		lines.WriteString(hex.EncodeToString(b[:min(32, len(b))]) + "\n")
	}
	path := filepath.Join("testdata", name+".hex")
	if *rewrite {
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != lines.String() {
		t.Errorf("%s has changed: raise the format's version, or what is stored cannot be read\n got:\n%s\nwant:\n%s",
			path, lines.String(), want)
	}
}

// TestGoldenFormats pins everything that reaches a disk or another node.
func TestGoldenFormats(t *testing.T) {
	t.Parallel()
	full := fullBatch()
	golden(t, "batch", logbuffer.AppendBatch(nil, &full))
	sharing := sharingBatch()
	golden(t, "sharing", logbuffer.AppendBatch(nil, &sharing))

	disk := newSimDisk(newRand(1))
	folder := openFolder(t, disk)
	logbuffer.SetToken(folder, "0011223344556677")
	logbuffer.SetSizes(folder, 1, 100)
	b := logbuffer.NewBuffer("in", folder, logbuffer.Options{})
	must(t, b.SetReaders([]logbuffer.Reader{{Name: "all"}, {Name: "some", Sinks: []string{"enriched", "x"}}}))
	plain := logbuffer.Batch{Source: "session/1", Tuples: []logbuffer.Tuple{{Value: []byte("v"), Position: 1}}}
	b.Append(logbuffer.AppendBatch(nil, &plain), true)
	b.Append(logbuffer.AppendBatch(nil, &full), false)
	b.Append(logbuffer.AppendBatch(nil, &full), true)
	must(t, b.Ack("all", 3))
	must(t, b.SetNeeded(0))
	must(t, b.Seal())
	golden(t, "manifest", b.AppendManifest(nil))
	for i, f := range b.Segments() {
		if i > 0 || f.Size != int64(len(disk.files[f.Name].data)) {
			t.Fatalf("segment %d: %+v", i, f)
		}
		golden(t, "segment", disk.files[f.Name].data)
	}

	d := logbuffer.NewDead(logbuffer.DeadOptions{})
	for range 3 {
		d.Add(fullLetter())
	}
	d.Resolve(2)
	golden(t, "dead", d.AppendManifest(nil))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// frameOf wraps a manifest's body so that its checksum is right.
func frameOf(version byte, body []byte) []byte {
	p := binary.AppendUvarint([]byte{version}, uint64(len(body)))
	p = append(p, body...)
	return binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
}

// frameBody undoes frameOf.
func frameBody(p []byte) []byte {
	_, n := binary.Uvarint(p[1:])
	return p[1+n : len(p)-4]
}
