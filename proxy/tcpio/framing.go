package tcpio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Framing tells where a tuple ends.
type Framing uint8

const (
	// Lines means that a tuple ends with a line feed; a carriage return before it is not part of the tuple.
	Lines Framing = iota
	// Frames means that a tuple follows its length, four bytes, big-endian.
	Frames
)

const frameHeader = 4

var errNewline = errors.New("the value has a line feed, which would split it in two lines: use framing=frames or " +
	"format=json")

// split cuts the first complete tuple off p; size is 0 when there is none yet. from is where the search may start,
// since what is before is known.
func (f Framing) split(p []byte, from, maxBytes int) (payload []byte, size int, err error) {
	if f == Frames {
		return splitFrame(p, maxBytes)
	}
	i := bytes.IndexByte(p[from:], '\n')
	if i < 0 {
		if len(p) > maxBytes+1 {
			return nil, 0, tooLarge("line", maxBytes)
		}
		return nil, 0, nil
	}
	size = from + i + 1
	payload = bytes.TrimSuffix(p[:size-1], []byte{'\r'})
	if len(payload) > maxBytes {
		return nil, 0, tooLarge("line", maxBytes)
	}
	return payload, size, nil
}

func splitFrame(p []byte, maxBytes int) (payload []byte, size int, err error) {
	if len(p) < frameHeader {
		return nil, 0, nil
	}
	n := binary.BigEndian.Uint32(p)
	if uint64(n) > uint64(maxBytes) {
		return nil, 0, &refusal{fmt.Sprintf("%v (its first four bytes say %d; does this client send lines?)",
			tooLarge("frame", maxBytes), n)}
	}
	size = frameHeader + int(n)
	if len(p) < size {
		return nil, 0, nil
	}
	return p[frameHeader:size], size, nil
}

// join appends payload with its framing.
func (f Framing) join(dst, payload []byte) ([]byte, error) {
	if f == Frames {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
		return append(dst, payload...), nil
	}
	if bytes.IndexByte(payload, '\n') >= 0 {
		return dst, errNewline
	}
	return append(append(dst, payload...), '\n'), nil
}

// String returns the name that the configuration uses.
func (f Framing) String() string {
	if f == Frames {
		return "frames"
	}
	return "lines"
}

// refusal is an error whose text is for the client.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func tooLarge(what string, maxBytes int) error {
	return &refusal{fmt.Sprintf("%s larger than FTPROXY_TUPLE_MAX_BYTES (%d bytes)", what, maxBytes)}
}
