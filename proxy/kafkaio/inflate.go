package kafkaio

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// inflater decompresses record batches up to a limit in bytes each, so that a small batch cannot fill the memory. It is
// not safe for concurrent use.
type inflater struct {
	limit int
	zstd  *zstd.Decoder
}

func newInflater(limit int) *inflater { return &inflater{limit: limit} }

// close frees what decompression holds on to.
func (f *inflater) close() {
	if f.zstd != nil {
		f.zstd.Close()
	}
}

// Decompress returns the batch's records; kgo.ErrMaxDecompress if they exceed the limit.
func (f *inflater) Decompress(src []byte, kind kgo.CompressionCodecType) ([]byte, error) {
	switch kind {
	case kgo.CodecNone:
		return src, nil
	case kgo.CodecGzip:
		r, err := gzip.NewReader(bytes.NewReader(src))
		if err != nil {
			return nil, err
		}
		return f.readAll(r)
	case kgo.CodecSnappy:
		return f.snappy(src)
	case kgo.CodecLz4:
		return f.readAll(lz4.NewReader(bytes.NewReader(src)))
	case kgo.CodecZstd:
		return f.unzstd(src)
	default:
		return nil, fmt.Errorf("the compression codec %d is unknown", kind)
	}
}

func (f *inflater) readAll(r io.Reader) ([]byte, error) {
	out, err := io.ReadAll(io.LimitReader(r, int64(f.limit)+1))
	if err == nil && len(out) > f.limit {
		err = kgo.ErrMaxDecompress
	}
	return out, err
}

func (f *inflater) unzstd(src []byte) ([]byte, error) {
	if f.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(uint64(f.limit)))
		if err != nil {
			return nil, err
		}
		f.zstd = d
	}
	out, err := f.zstd.DecodeAll(src, nil)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || len(out) > f.limit {
		err = kgo.ErrMaxDecompress
	}
	return out, err
}

// snappy reads plain blocks and the framing of Java clients: a 16-byte header, then blocks with their lengths.
func (f *inflater) snappy(src []byte) ([]byte, error) {
	if len(src) < 16 || !bytes.Equal(src[:8], []byte{130, 'S', 'N', 'A', 'P', 'P', 'Y', 0}) {
		return f.block(nil, src)
	}
	var out []byte
	for src = src[16:]; len(src) > 0; {
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := binary.BigEndian.Uint32(src)
		if uint64(n) > uint64(len(src)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if out, err = f.block(out, src[4:4+n]); err != nil {
			return nil, err
		}
		src = src[4+n:]
	}
	return out, nil
}

func (f *inflater) block(out, src []byte) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	if n > f.limit-len(out) {
		return nil, kgo.ErrMaxDecompress
	}
	part, err := s2.Decode(nil, src)
	if err != nil {
		return nil, err
	}
	if out == nil {
		return part, nil
	}
	return append(out, part...), nil
}
