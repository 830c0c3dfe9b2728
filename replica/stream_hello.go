package replica

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

const (
	// helloVersion is the version of the links between nodes.
	helloVersion = 1
	// maxHello bounds a hello and its answer, in bytes.
	maxHello = 4 << 10
	// maxControl bounds a question and its answer on a control connection, in bytes.
	maxControl = 256 << 10
)

// hello is what the dialing node says first, after the link byte.
type hello struct {
	Version  int      `json:"version"`
	Operator string   `json:"operator"`
	Lineage  string   `json:"lineage"`
	From     serverID `json:"from"`
	// To is the server id that is meant; empty for whoever answers at the peer's address.
	To serverID `json:"to,omitempty"`
}

// welcomeFrame answers a hello.
type welcomeFrame struct {
	ID      serverID `json:"id"`
	Lineage string   `json:"lineage"`
	Refusal *refusal `json:"refusal,omitempty"`
}

// refusal is a definite no of a peer to a hello.
type refusal struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// The codes of a refusal.
const (
	refusedVersion = "version"
	refusedName    = "name"
	refusedID      = "id"
	refusedLineage = "lineage"
	refusedEarly   = "early" // ask again
)

// Error implements error.
func (r *refusal) Error() string { return "refused: " + r.Text }

func writeHello(w io.Writer, link byte, h hello) error {
	frame, err := appendFrame([]byte{link}, h)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

func readHello(conn net.Conn) (byte, hello, error) {
	var link [1]byte
	if _, err := io.ReadFull(conn, link[:]); err != nil {
		return 0, hello{}, err
	}
	switch link[0] {
	case linkRaft, linkForward, linkControl:
	default:
		return 0, hello{}, fmt.Errorf("first byte %#x is none of this protocol's", link[0])
	}
	var h hello
	err := readFrameMax(conn, &h, maxHello)
	return link[0], h, err
}

// A frame is a length (4 bytes, big-endian) and JSON. Only handshakes and control connections use it.
func appendFrame(dst []byte, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(body))), body...), nil
}

func writeFrame(w io.Writer, v any) error {
	frame, err := appendFrame(nil, v)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

func readFrame(r io.Reader, v any) error { return readFrameMax(r, v, maxControl) }

func readFrameMax(r io.Reader, v any, most uint32) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > most {
		return fmt.Errorf("frame of %d bytes, at most %d are admitted here", n, most)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
