package kafkaio_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"ftproxy/proxy"
	"ftproxy/proxy/kafkaio"
)

// The vectors are those of Kafka's own tests (org.apache.kafka.common.utils.UtilsTest.testMurmur2).
func TestMurmur2(t *testing.T) {
	for text, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(kafkaio.Murmur2([]byte(text))); got != want {
			t.Errorf("murmur2(%q) is %d, Java says %d", text, got, want)
		}
	}
}

func TestPartitionOf(t *testing.T) {
	franz := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	for i := range 200 {
		key := []byte(strings.Repeat("x", i%23) + fmt.Sprint(i))
		if got, want := kafkaio.PartitionOf(key, 0, 7), franz.Partition(&kgo.Record{Key: key}, 7); int(got) != want {
			t.Errorf("key %q: partition %d, another client says %d", key, got, want)
		}
	}
	if p := kafkaio.PartitionOf(nil, 8, 3); p != 2 {
		t.Errorf("without a key, source partition 8 of 3: %d", p)
	}
	if p := kafkaio.PartitionOf([]byte{}, 8, 3); p != int32(kafkaio.Murmur2(nil)&0x7fffffff)%3 {
		t.Errorf("an empty key is a key: %d", p)
	}
	if p := kafkaio.PartitionOf(nil, -1, 3); p < 0 || p > 2 {
		t.Errorf("a negative source partition: %d", p)
	}
}

func TestInflateIsBounded(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<13)
	for name, codec := range map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		c, err := kgo.DefaultCompressor(codec)
		if err != nil {
			t.Fatal(err)
		}
		small, kind := c.Compress(&bytes.Buffer{}, text)
		small = bytes.Clone(small)
		got, err := kafkaio.Inflate(len(text), small, int8(kind))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %v, %d of %d bytes", name, err, len(got), len(text))
		}
		if _, err := kafkaio.Inflate(len(text)-1, small, int8(kind)); !errors.Is(err, kgo.ErrMaxDecompress) {
			t.Errorf("%s beyond the limit: %v", name, err)
		}
		if _, err := kafkaio.Inflate(len(text), small[:len(small)/2], int8(kind)); err == nil {
			t.Errorf("%s cut in half is read", name)
		}
	}
}

func FuzzInflate(f *testing.F) {
	f.Add([]byte{130, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0}, int8(2))
	f.Fuzz(func(t *testing.T, src []byte, codec int8) {
		if got, err := kafkaio.Inflate(1<<16, src, codec%5); err == nil && codec%5 > 0 && len(got) > 1<<16 {
			t.Errorf("%d bytes", len(got))
		}
	})
}

func TestMarkerIsReadAsWritten(t *testing.T) {
	for _, m := range []kafkaio.Marker{
		kafkaio.NewMarker("lin", "in", 0, 0),
		kafkaio.NewMarker("a b:c,d", "out", 1<<62, 1<<63),
		kafkaio.NewMarker("l", "in", 9, 7, kafkaio.NewRefusal("a:b", 's', 3, 5), kafkaio.NewRefusal("", 'a', 9, 9)),
	} {
		got, err := kafkaio.ParseMarker(m.String())
		if err != nil || got.String() != m.String() || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%s is read as %v: %v", m, got, err)
		}
	}
	const golden = "v1 lin in sink 12 00000000000000ff orders:s:3:2,other:a:9:0"
	m := kafkaio.NewMarker("lin", "in", 12, 255, kafkaio.NewRefusal("orders", 's', 3, 5),
		kafkaio.NewRefusal("other", 'a', 9, 9))
	if m.String() != golden {
		t.Errorf("the format changed: %s", m)
	}
}

func FuzzParseMarker(f *testing.F) {
	f.Add("v1 lin in sink 12 00000000000000ff orders:s:3:2,other:a:9:0")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := kafkaio.ParseMarker(text)
		if err != nil {
			return
		}
		again, err := kafkaio.ParseMarker(m.String())
		if err != nil || again.String() != m.String() {
			t.Errorf("%q is read as %s, and that as %s: %v", text, m, again, err)
		}
	})
}

func TestMarkerIsJudged(t *testing.T) {
	at := func(lineage, buffer string, n, hash uint64) string {
		return kafkaio.NewMarker(lineage, buffer, n, hash).String()
	}
	never := proxy.Cursor{End: 20}
	acked := proxy.Cursor{Acked: 10, End: 20, EverAcked: true}
	for name, c := range map[string]struct {
		cursor proxy.Cursor
		found  string
		absent bool
		hash   uint64
		stored bool
		want   uint64
		err    string
	}{
		"first start":               {never, "", true, 0, false, 0, ""},
		"a reader added later":      {proxy.Cursor{Acked: 7, End: 20}, "", true, 0, false, 7, ""},
		"marker lost":               {acked, "", true, 0, false, 0, "gone"},
		"at the confirmed offset":   {acked, at("lin", "in", 10, 5), false, 5, true, 10, ""},
		"ahead of it":               {acked, at("lin", "in", 20, 5), false, 5, true, 20, ""},
		"ahead, nothing confirmed":  {never, at("lin", "in", 3, 5), false, 5, true, 3, ""},
		"behind it":                 {acked, at("lin", "in", 9, 5), false, 5, true, 0, "old marker"},
		"beyond the log":            {acked, at("lin", "in", 21, 5), false, 5, true, 0, "lost its end"},
		"other lineage":             {acked, at("other", "in", 10, 5), false, 5, true, 0, "lineage other"},
		"other buffer":              {acked, at("lin", "out", 10, 5), false, 5, true, 0, "buffer"},
		"other reader":              {acked, "v1 lin in west 10 0000000000000005 -", false, 5, true, 0, "one cluster's name"},
		"other hash":                {acked, at("lin", "in", 12, 5), false, 6, true, 0, "hash"},
		"in the middle of a batch":  {acked, at("lin", "in", 12, 5), false, 0, false, 0, "no batch"},
		"not a marker":              {acked, "hello", false, 0, false, 0, "form"},
		"marker of a later version": {acked, "v2 lin in 10 5 -", false, 0, false, 0, "form"},
	} {
		n, err := kafkaio.NewPlaced("lin", c.cursor, c.found, c.absent, c.hash, c.stored).Judge()
		switch {
		case c.err == "" && (err != nil || n != c.want):
			t.Errorf("%s: %d, %v", name, n, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v", name, err)
		}
	}
}
