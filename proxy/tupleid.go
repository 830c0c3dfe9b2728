package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"ftproxy/logbuffer"
)

// TupleID hashes what identifies a tuple within scope (the configured source's name). Equal ids of different scopes are
// different. It never returns the zero ID.
func TupleID(scope string, id []byte) logbuffer.ID {
	h := sha256.New()
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(scope)))
	h.Write(size[:])
	h.Write([]byte(scope))
	h.Write(id)
	var out logbuffer.ID
	copy(out[:], h.Sum(nil))
	if out == (logbuffer.ID{}) {
		out[0] = 1
	}
	return out
}

// IDRule says where a tuple's id for deduplication stands. The zero value means that tuples have none.
type IDRule struct {
	kind    idKind
	name    string   // header
	pointer []string // reference tokens of a JSON pointer
}

type idKind uint8

const (
	idNone idKind = iota
	idHeader
	idKey
	idJSON
	idContent
)

// ParseIDRule reads "header:NAME", "key", "json:/pointer" (RFC 6901), "content" (key and value; headers do not count)
// or "none".
func ParseIDRule(text string) (IDRule, error) {
	kind, rest, found := strings.Cut(text, ":")
	switch {
	case text == "" || text == "none":
		return IDRule{}, nil
	case text == "key":
		return IDRule{kind: idKey}, nil
	case text == "content":
		return IDRule{kind: idContent}, nil
	case kind == "header" && found:
		if rest == "" || strings.ContainsAny(rest, " \t\r\n:") {
			return IDRule{}, fmt.Errorf("id rule %q: the header's name is missing or not a name; "+
				"example: header:Idempotency-Key", text)
		}
		return IDRule{kind: idHeader, name: rest}, nil
	case kind == "json" && found:
		pointer, err := parsePointer(rest)
		if err != nil {
			return IDRule{}, fmt.Errorf("id rule %q: %w; example: json:/order/id", text, err)
		}
		return IDRule{kind: idJSON, pointer: pointer}, nil
	}
	return IDRule{}, fmt.Errorf("id rule %q: unknown; use header:NAME, key, json:/pointer, content or none", text)
}

func parsePointer(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if text[0] != '/' {
		return nil, fmt.Errorf("a JSON pointer starts with a slash")
	}
	tokens := strings.Split(text[1:], "/")
	for i, token := range tokens {
		bare := strings.NewReplacer("~0", "", "~1", "").Replace(token)
		if strings.Contains(bare, "~") {
			return nil, fmt.Errorf("~ in a JSON pointer is written ~0, / is written ~1")
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return tokens, nil
}

// Wanted tells whether tuples should have an id. One that has none all the same is admitted, and counted by its source.
func (r IDRule) Wanted() bool { return r.kind != idNone }

// Header returns the name of the header that holds the id, "" if no header does.
func (r IDRule) Header() string { return r.name }

// String returns the rule as ParseIDRule reads it.
func (r IDRule) String() string {
	switch r.kind {
	case idHeader:
		return "header:" + r.name
	case idKey:
		return "key"
	case idContent:
		return "content"
	case idJSON:
		var s strings.Builder
		s.WriteString("json:")
		for _, token := range r.pointer {
			s.WriteString("/" + strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1"))
		}
		return s.String()
	default:
		return "none"
	}
}

// ID returns the id of t, or false if it has none: the header, key or JSON value is missing, null or empty.
func (r IDRule) ID(scope string, t *logbuffer.Tuple) (logbuffer.ID, bool) {
	var id []byte
	switch r.kind {
	case idHeader:
		for i := range t.Headers {
			if strings.EqualFold(t.Headers[i].Key, r.name) {
				id = t.Headers[i].Value
				break
			}
		}
	case idKey:
		id = t.Key
	case idJSON:
		id = lookUp(t.Value, r.pointer)
	case idContent:
		id = content(t)
	default:
	}
	if len(id) == 0 {
		return logbuffer.ID{}, false
	}
	return TupleID(scope, id), true
}

// content joins key and value unambiguously; null and empty are told apart.
func content(t *logbuffer.Tuple) []byte {
	joined := make([]byte, 0, len(t.Key)+len(t.Value)+10)
	for _, part := range [][]byte{t.Key, t.Value} {
		if part == nil {
			joined = append(joined, 0)
			continue
		}
		joined = binary.AppendUvarint(append(joined, 1), uint64(len(part)))
		joined = append(joined, part...)
	}
	return joined
}

// lookUp returns what the pointer names in a JSON text: a string's own text, anything else as it is written, nothing
// for null, for what is not there and for what is not JSON.
func lookUp(text []byte, pointer []string) []byte {
	for _, token := range pointer {
		text = step(text, token)
		if text == nil {
			return nil
		}
	}
	text = bytes.TrimSpace(text)
	if !json.Valid(text) || string(text) == "null" {
		return nil
	}
	if text[0] != '"' {
		return append([]byte("json:"), text...)
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return nil
	}
	return []byte(s)
}

// step goes one reference token down.
func step(text []byte, token string) []byte {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil
	}
	switch text[0] {
	case '{':
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			return nil
		}
		return members[token]
	case '[':
		i, err := strconv.Atoi(token)
		if err != nil || i < 0 || strconv.Itoa(i) != token {
			return nil
		}
		var elements []json.RawMessage
		if err := json.Unmarshal(text, &elements); err != nil || i >= len(elements) {
			return nil
		}
		return elements[i]
	}
	return nil
}
