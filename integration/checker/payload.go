package checker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// ErrTorn says that bytes are not the payload of any tuple: cut, mixed or invented.
var ErrTorn = errors.New("not a payload")

// ID returns the identity of tuple n of a stream, the value of "/id" in its payload.
func ID(stream string, n int64) string {
	return stream + "-" + strconv.FormatInt(n, 10)
}

// AppendPayload appends the payload of tuple n of a stream: a JSON object on one line, padded to size bytes (or as
// short as it can be, about 55 bytes, if size is below that). A stream's name is plain letters and digits.
func AppendPayload(dst []byte, stream string, n int64, size int) []byte {
	start := len(dst)
	hash := fnv.New64a()
	var scratch [8]byte
	binary.LittleEndian.PutUint64(scratch[:], uint64(n))
	hash.Write([]byte(stream))
	hash.Write(scratch[:])
	seed := hash.Sum64()

	dst = append(dst, `{"id":"`...)
	dst = append(dst, ID(stream, n)...)
	dst = append(dst, `","sum":"`...)
	dst = fmt.Appendf(dst, "%016x", seed)
	dst = append(dst, `","pad":"`...)
	for len(dst)-start < size-2 {
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		dst = append(dst, letters[seed&63])
	}
	return append(dst, `"}`...)
}

// ParsePayload returns which tuple a payload is of. It recomputes every byte: an error wraps ErrTorn.
func ParsePayload(p []byte) (stream string, n int64, err error) {
	rest, ok := bytes.CutPrefix(p, []byte(`{"id":"`))
	id, _, closed := bytes.Cut(rest, []byte(`"`))
	stream, number, dash := strings.Cut(string(id), "-")
	n, numberErr := strconv.ParseInt(number, 10, 64)
	if !ok || !closed || !dash || numberErr != nil {
		return "", 0, fmt.Errorf("%w: %.60q", ErrTorn, p)
	}
	if want := AppendPayload(nil, stream, n, len(p)); !bytes.Equal(p, want) {
		return "", 0, fmt.Errorf("%w: says it is %s, but differs from it: %.60q", ErrTorn, id, p)
	}
	return stream, n, nil
}
