package kafkaio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"ftproxy/logbuffer"
)

// Headers that the sink adds to each record, so that a topic can be audited from itself alone. Headers of these names
// that a tuple brings along (from an ftproxy before this one) are replaced.
const (
	// HeaderLineage holds the lineage of the log that the tuple was read from.
	HeaderLineage = "ftproxy-lineage"
	// HeaderOffset holds the tuple's offset in the buffer, in decimal; each offset occurs once in each topic it is for.
	HeaderOffset = "ftproxy-offset"
	// HeaderIndex holds the tuple's place in its stored batch, in decimal from 0: the batch began at offset - index,
	// and all of it was committed together.
	HeaderIndex = "ftproxy-index"
)

// Layout of a record batch (format version 2): where its fields begin.
const (
	atLength     = 8
	atLeader     = 12
	atMagic      = 16
	atCRC        = 17
	atAttributes = 21
	atLastDelta  = 23
	atFirstTime  = 27
	atMaxTime    = 35
	atProducer   = 43
	atEpoch      = 51
	atSequence   = 53
	atCount      = 57
	atRecords    = 61
)

const transactionalBit = 0x10

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// murmur2 is the hash of Kafka's default partitioner.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	for i, c := range b {
		h ^= uint32(c) << (8 * i)
	}
	if len(b) > 0 {
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

// partitionOf chooses the partition among n: by the key as Kafka's own clients do, without a key by the partition that
// the tuple had at its source.
func partitionOf(key []byte, source int32, n int) int32 {
	if key == nil {
		return int32(int(uint32(source)&0x7fffffff) % n)
	}
	return int32(int(murmur2(key)&0x7fffffff) % n)
}

// stamp are the headers of one record.
type stamp struct {
	lineage       []byte
	offset, index uint64
}

// appendRecord appends one record in Kafka's encoding.
func appendRecord(dst []byte, t *logbuffer.Tuple, delta int, timeDelta int64, s stamp) []byte {
	kept := 0
	for i := range t.Headers {
		if !ownHeader(t.Headers[i].Key) {
			kept++
		}
	}
	body := make([]byte, 0, 96+len(t.Key)+len(t.Value))
	body = append(body, 0) // attributes
	body = binary.AppendVarint(body, timeDelta)
	body = binary.AppendVarint(body, int64(delta))
	body = appendBytes(body, t.Key)
	body = appendBytes(body, t.Value)
	body = binary.AppendVarint(body, int64(kept+3))
	for i := range t.Headers {
		if !ownHeader(t.Headers[i].Key) {
			body = appendHeader(body, t.Headers[i].Key, t.Headers[i].Value)
		}
	}
	var digits [20]byte
	body = appendHeader(body, HeaderLineage, s.lineage)
	body = appendHeader(body, HeaderOffset, strconv.AppendUint(digits[:0], s.offset, 10))
	body = appendHeader(body, HeaderIndex, strconv.AppendUint(digits[:0], s.index, 10))
	dst = binary.AppendVarint(dst, int64(len(body)))
	return append(dst, body...)
}

func ownHeader(key string) bool {
	return key == HeaderLineage || key == HeaderOffset || key == HeaderIndex
}

func appendHeader(dst []byte, key string, value []byte) []byte {
	dst = binary.AppendVarint(dst, int64(len(key)))
	dst = append(dst, key...)
	return appendBytes(dst, value)
}

// appendBytes appends a length and the bytes; nil is null.
func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	dst = binary.AppendVarint(dst, int64(len(b)))
	return append(dst, b...)
}

// codec compresses batches; the zero value does not.
type codec struct{ c kgo.Compressor }

// parseCodec reads none (or nothing), gzip, snappy, lz4 or zstd.
func parseCodec(name string) (codec, error) {
	known := map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	if name == "" || name == "none" {
		return codec{}, nil
	}
	k, ok := known[name]
	if !ok {
		return codec{}, fmt.Errorf("the compression %q is not none, gzip, snappy, lz4 or zstd", name)
	}
	c, err := kgo.DefaultCompressor(k)
	return codec{c}, err
}

// sealBatch makes a record batch of count encoded records, without a producer and a CRC yet.
func sealBatch(records []byte, count int, first, maxTime int64, c codec) []byte {
	attributes := int16(0)
	if c.c != nil {
		small, kind := c.c.Compress(&bytes.Buffer{}, records)
		if len(small) < len(records) {
			records, attributes = small, int16(kind)
		}
	}
	b := make([]byte, atRecords, atRecords+len(records))
	be := binary.BigEndian
	be.PutUint32(b[atLength:], uint32(atRecords-atLeader+len(records)))
	be.PutUint32(b[atLeader:], 0xffffffff)
	b[atMagic] = 2
	be.PutUint16(b[atAttributes:], uint16(attributes))
	be.PutUint32(b[atLastDelta:], uint32(count-1))
	be.PutUint64(b[atFirstTime:], uint64(first))
	be.PutUint64(b[atMaxTime:], uint64(maxTime))
	be.PutUint32(b[atCount:], uint32(count))
	return append(b, records...)
}

// producer is an identity with which batches are numbered.
type producer struct {
	id            int64
	epoch         int16
	transactional bool
}

// number writes producer and sequence into a batch, and the CRC over all.
func (p producer) number(b []byte, sequence int32) {
	be := binary.BigEndian
	attributes := be.Uint16(b[atAttributes:]) &^ transactionalBit
	if p.transactional {
		attributes |= transactionalBit
	}
	be.PutUint16(b[atAttributes:], attributes)
	be.PutUint64(b[atProducer:], uint64(p.id))
	be.PutUint16(b[atEpoch:], uint16(p.epoch))
	be.PutUint32(b[atSequence:], uint32(sequence))
	be.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli()))
}

// nextSequence is the sequence number that follows a batch: they wrap at 2^31.
func nextSequence(sequence int32, count int) int32 {
	return int32((int64(sequence) + int64(count)) & 0x7fffffff)
}

// tupleOf makes a tuple of a fetched record; it shares the record's memory.
func tupleOf(r *kgo.Record) logbuffer.Tuple {
	t := logbuffer.Tuple{Key: r.Key, Value: r.Value, Position: r.Offset, Time: r.Timestamp.UnixMilli()}
	if len(r.Headers) > 0 {
		t.Headers = make([]logbuffer.Header, len(r.Headers))
		for i, h := range r.Headers {
			t.Headers[i] = logbuffer.Header{Key: h.Key, Value: h.Value}
		}
	}
	t.Headers = slices.Clip(t.Headers)
	return t
}
